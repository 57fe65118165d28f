"""Products of matrices whose rows are divided into groups, as mixtures of experts compute them."""

from __future__ import annotations

import onnx_ir as ir
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.autograd.function import FunctionCtx

from onnx_ops.torch.base.custom_ops import custom_operator, domain_ops
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.nodes import Value, integers, number, op, sizes
from onnx_ops.torch.base.table import replaces


def _group(rows: Value, bounds: Value, number: int) -> Value:
    """The rows of a group; `bounds` has 0, then the end of each group."""
    start, end = (op.Slice(bounds, integers([i]), integers([i + 1]), integers([0])) for i in (number, number + 1))
    return op.Slice(rows, start, end, integers([0]))


def _bounds(ends: Value) -> Value:
    return op.Concat(integers([0]), op.Cast(ends, to=ir.DataType.INT64), axis=0)


def _count(ends: Value) -> int:
    (count,) = sizes(ends)
    if count < 0:
        raise CaptureError("grouped_mm needs a number of groups that is not dynamic; let dynamic_shapes not name it")
    return count


def _rows_nodes(rows: Value, matrices: Value, ends: Value) -> Value:
    bounds, count = _bounds(ends), _count(ends)
    chosen = [op.Gather(matrices, op.Constant(value_int=i), axis=0) for i in range(count)]
    products = [op.MatMul(_group(rows, bounds, i), matrix) for i, matrix in enumerate(chosen)]
    last = op.Slice(bounds, integers([count]), integers([count + 1]), integers([0]))
    rest = op.Sub(op.Shape(rows, start=0, end=1), last)
    zeros = op.Expand(number(0.0, rows), op.Concat(rest, op.Shape(matrices, start=2), axis=0))
    return op.Concat(*products, zeros, axis=0)


def _matrices_nodes(left: Value, right: Value, ends: Value) -> Value:
    bounds, count = _bounds(ends), _count(ends)
    products = [
        op.MatMul(op.Transpose(_group(left, bounds, i), perm=[1, 0]), _group(right, bounds, i)) for i in range(count)
    ]
    return op.Concat(*(op.Unsqueeze(product, integers([0])) for product in products), axis=0)


@custom_operator(_rows_nodes, lambda rows, matrices, ends: rows.new_empty((rows.shape[0], matrices.shape[2])))
def grouped_rows(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Each group of rows (S, K) times its matrix (G, K, M): (S, M), zero after the last of the `ends` (G,)."""
    groups = [group @ matrices[i] for i, group in enumerate(_split(rows, ends)[:-1])]
    return torch.cat([*groups, rows.new_zeros(rows.shape[0] - int(ends[-1]), matrices.shape[2])])


@custom_operator(
    _matrices_nodes, lambda left, right, ends: left.new_empty((ends.shape[0], left.shape[1], right.shape[1]))
)
def grouped_matrices(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """For each group of rows (S, K) and (S, M) the transposed left ones times the right ones: (G, K, M)."""
    pairs = list(zip(_split(left, ends), _split(right, ends), strict=True))[:-1]
    return torch.stack([one.t() @ other for one, other in pairs])


def _split(rows: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
    return rows.tensor_split(ends.to("cpu", torch.int64))


def _save(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _rows_gradient(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
    rows, matrices, ends = ctx.saved_tensors
    by_rows, by_matrices, _ = ctx.needs_input_grad
    return (
        domain_ops.grouped_rows(gradient, matrices.mT, ends) if by_rows else None,
        domain_ops.grouped_matrices(rows, gradient, ends) if by_matrices else None,
        None,
    )


def _matrices_gradient(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
    left, right, ends = ctx.saved_tensors
    by_left, by_right, _ = ctx.needs_input_grad
    return (
        domain_ops.grouped_rows(right, gradient.mT, ends) if by_left else None,
        domain_ops.grouped_rows(left, gradient, ends) if by_right else None,
        None,
    )


torch.library.register_autograd("onnx_ops::grouped_rows", _rows_gradient, setup_context=_save)
torch.library.register_autograd("onnx_ops::grouped_matrices", _matrices_gradient, setup_context=_save)


@replaces(functional.grouped_mm, torch._grouped_mm)
def _grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Either matrix may be a stack of one matrix for each group; `offs` has the ends of the groups in the other."""
    if offs is None:
        product = torch.bmm(mat_a, mat_b)
    elif mat_a.dim() == 2 and mat_b.dim() == 2:
        product = domain_ops.grouped_matrices(mat_a.t(), mat_b, offs)
    elif mat_a.dim() == 2:
        product = domain_ops.grouped_rows(mat_a, mat_b, offs)
    else:
        product = domain_ops.grouped_rows(mat_b.t(), mat_a.mT, offs).t()
    product = product if bias is None else product + bias
    return product if out_dtype is None else product.to(out_dtype)
