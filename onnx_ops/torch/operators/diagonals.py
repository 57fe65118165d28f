"""Diagonals of matrices: reading and writing them, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.nodes import Value, integers, op
from onnx_ops.torch.base.table import decomposes, replaces, translates

aten = torch.ops.aten


@replaces(torch.diag, torch.Tensor.diag)
def _diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A copy; PyTorch's own makes a number of a dynamic offset, such as the number of samples."""
    if not is_symbolic(diagonal) or input.dim() != 2:
        return torch.diag(input, diagonal)
    row, column = (0, diagonal) if diagonal >= 0 else (-diagonal, 0)
    rows, columns = input.shape
    places = torch.arange(torch.sym_max(torch.sym_min(rows - row, columns - column), 0), device=input.device)
    return input.flatten().index_select(0, (places + row) * columns + places + column)


@translates(aten.diagonal.default, aten.diagonal_copy.default)
def _diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Every (columns + 1)-th element; torch.onnx adds up columns times 0 or 1, which spreads NaN and infinities."""
    rank = len(x.shape)
    last = [dim1 % rank, dim2 % rank]
    matrices = op.Transpose(x, perm=[*(axis for axis in range(rank) if axis not in last), *last])
    shape = op.Shape(matrices)
    rows, columns = (op.Slice(shape, integers([axis]), integers([axis + 1])) for axis in (rank - 2, rank - 1))
    row, column = max(-offset, 0), max(offset, 0)
    count = op.Max(op.Min(op.Sub(rows, integers([row])), op.Sub(columns, integers([column]))), integers([0]))
    step = op.Add(columns, integers([1]))
    start = op.Add(op.Mul(columns, integers([row])), integers([column]))
    others = op.Slice(shape, integers([0]), integers([rank - 2]))
    elements = op.Reshape(matrices, op.Concat(others, op.Mul(rows, columns), axis=0), allowzero=1)
    return op.Slice(elements, start, op.Add(start, op.Mul(count, step)), integers([rank - 2]), step)


@decomposes(aten.diagonal_scatter.default)
def _diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """On the diagonal, a matrix whose rows (below the main diagonal, whose columns) each repeat one element of src."""
    matrices = self.movedim((dim1, dim2), (-2, -1))
    rows, columns = (torch.arange(size, device=self.device) for size in matrices.shape[-2:])
    across, size = (-1, matrices.shape[-2]) if offset >= 0 else (-2, matrices.shape[-1])
    repeated = torch.nn.functional.pad(src, [0, size - src.shape[-1]]).unsqueeze(across)
    written = torch.where(rows.unsqueeze(1) + offset == columns, repeated, matrices)
    return written.movedim((-2, -1), (dim1, dim2))


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
