"""Views by strides, such as windows that overlap, of tensors with dynamic sizes or with axes in another order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic, statically_known_true

from onnx_ops.torch.base.table import replaces


@replaces(torch.as_strided, torch.Tensor.as_strided)
def _as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """The elements by their indices: PyTorch's gradient of a view makes numbers of dynamic sizes.

    A graph has the elements of a tensor in the order of its axes. Of a tensor that is contiguous, views with static
    sizes or without a gradient stay views, as do those of tensors with gaps in memory, and those past the last element.
    """
    is_differentiated = any(map(is_symbolic, input.shape)) and input.requires_grad
    if input.is_contiguous() and not is_differentiated:
        return torch.as_strided(input, size, stride, storage_offset)
    stored = input.permute(_order_in_memory(input))
    if not stored.is_contiguous():
        return torch.as_strided(input, size, stride, storage_offset)
    size, stride = ([n.item() if isinstance(n, Tensor) else n for n in numbers] for numbers in (size, stride))
    start = 0 if storage_offset is None else storage_offset - input.storage_offset()
    last = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not statically_known_true(last < input.numel()):
        return torch.as_strided(input, size, stride, storage_offset)
    index = torch.full((), start, device=input.device)
    for n, step in zip(size, stride, strict=True):
        index = index.unsqueeze(-1) + step * torch.arange(n, device=input.device)
    return stored.flatten().index_select(0, index.flatten()).view(list(size))


def _order_in_memory(tensor: Tensor) -> list[int]:
    """The axes of a tensor by their strides in the example, the largest one first."""
    strides = [step.node.hint if isinstance(step, torch.SymInt) else step for step in tensor.stride()]
    return sorted(range(tensor.dim()), key=strides.__getitem__, reverse=True)
