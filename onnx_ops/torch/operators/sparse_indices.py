"""Indices of sparse matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import corrects, decomposes, replaces


@replaces(torch._convert_indices_from_coo_to_csr)  # whose schema makes a number of a dynamic size
@decomposes(torch.ops.aten._convert_indices_from_coo_to_csr.default)
def _row_pointers(self: Tensor, size: Size, *, out_int32: bool = False) -> Tensor:
    """Where each of `size` rows starts among sorted indices of rows (N,), and N: the numbers of those before."""
    counts = torch.zeros(size + 1, dtype=torch.int64).scatter_add(0, self.long() + 1, torch.ones_like(self.long()))
    return counts.cumsum(0).to(torch.int32 if out_int32 else torch.int64)


@corrects(torch._convert_indices_from_coo_to_csr)
def _checked(self: Tensor, size: int, *, out_int32: bool = False) -> Tensor:
    """PyTorch writes outside of the result for indices that are too large, as a batch of other sizes may have them."""
    if self.numel() and not 0 <= self.max() < size:
        raise IndexError(f"the largest index is {self.max()}, expected one below {size}")
    return torch._convert_indices_from_coo_to_csr(self, size, out_int32=out_int32)
