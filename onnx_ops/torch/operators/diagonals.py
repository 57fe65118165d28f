"""Diagonals of matrices: writing to them, and the gradient of reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.nodes import integers, op, sizes
from onnx_ops.torch.base.table import decomposes, replaces, translates

aten = torch.ops.aten


@translates(aten.diagonal_scatter.default)
def _diagonal_scatter(self: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """On the diagonal, a matrix whose rows (below the main diagonal, whose columns) each repeat one element of src."""
    shape = sizes(self)
    rank, first, second = len(shape), dim1 % len(shape), dim2 % len(shape)
    rows, columns = shape[first], shape[second]
    if min(rows, columns) < 0:
        raise CaptureError(
            "a diagonal is written to of a matrix whose sizes are dynamic; let dynamic_shapes not name them"
        )
    order = [axis for axis in range(rank) if axis not in (first, second)] + [first, second]
    across, size = (-1, rows) if offset >= 0 else (-2, columns)
    place = np.eye(rows, columns, offset, dtype=bool)
    missing = size - int(place.sum())
    padded = op.Pad(src, integers([0] * (2 * rank - 3) + [missing])) if missing else src
    matrix = op.Unsqueeze(padded, integers([across]))
    written = op.Where(op.Constant(value=ir.tensor(place)), matrix, op.Transpose(self, perm=order))
    return op.Transpose(written, perm=[order.index(axis) for axis in range(rank)])


@decomposes(aten.diagonal_backward.default)
def _diagonal_backward(grad: Tensor, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Tensor:
    rank = len(input_sizes)
    first, second = dim1 % rank, dim2 % rank
    rows, columns = input_sizes[first], input_sizes[second]
    square = torch.diag_embed(grad, offset, -2, -1)
    size = square.shape[-1]
    square = torch.nn.functional.pad(square, [0, max(columns - size, 0), 0, max(rows - size, 0)])
    square = square.narrow(-2, 0, rows).narrow(-1, 0, columns)
    return square.movedim((-2, -1), (first, second))


@replaces(torch.Tensor.fill_diagonal_)
def _fill_diagonal_(input: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """With `wrap` the diagonal of a tall matrix starts again after each row that it skips."""
    if input.dim() == 2 and wrap:
        rows, columns = (torch.arange(size, device=input.device) for size in input.shape)
        place = (rows % (input.shape[1] + 1)).unsqueeze(1) == columns
    else:
        places = torch.meshgrid([torch.arange(size, device=input.device) for size in input.shape], indexing="ij")
        place = torch.stack([axis == places[0] for axis in places]).all(0)
    return input.masked_fill_(place, fill_value)
