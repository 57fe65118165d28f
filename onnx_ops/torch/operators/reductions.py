"""Sums, products, extremes, sorted elements and norms along axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.core.reduction import Reduction
from onnx_ops.torch.base.nodes import Value, integers, is_standard, may_have, number, op
from onnx_ops.torch.base.requirements import require_elements
from onnx_ops.torch.base.second_derivatives import gradients_of
from onnx_ops.torch.base.sizes import Size, may_be_empty, may_be_zero
from onnx_ops.torch.base.table import decomposed_by_pytorch, decomposes, replaces, requires, translates
from onnx_ops.torch.base.transforms import within_transforms
from onnx_ops.torch.operators.recurrences import dtype_of_products, running_products

aten = torch.ops.aten

EXACT = 1 << 24
"""Up to this number, all integers are float32 numbers."""

decomposed_by_pytorch(aten.dist.default, aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.renorm.default)


@decomposes(aten.linalg_vector_norm.default)
def _vector_norm(
    self: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """onnxruntime has no float64 ReduceL2, and torch.onnx keeps no dimensions of a norm over all of them."""
    if self.dtype is torch.float64:
        return torch._decomp.decomposition_table[aten.linalg_vector_norm.default](self, ord, dim, keepdim, dtype=dtype)
    if keepdim and not dim and self.dim():
        return aten.linalg_vector_norm(self, ord, list(range(self.dim())), keepdim, dtype=dtype)
    return NotImplemented


@decomposes(aten.mean.dim)
def _mean(self: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """NaN of no elements, for which onnxruntime's ReduceMean is 0; the translation of torch.onnx takes no None."""
    sizes = [self.shape[axis] for axis in dim] if dim else list(self.shape)
    if any(map(may_be_empty, sizes)):
        wide = dtype or self.dtype
        computed = torch.float32 if wide in (torch.float16, torch.bfloat16) else wide
        return (aten.sum.dim_IntList(self, dim, keepdim, dtype=computed) / _count(sizes, computed)).to(wide)
    if dim is not None:
        return NotImplemented
    return aten.mean.dim(self, list(range(self.dim())), keepdim, dtype=dtype)


def _count(sizes: Sequence[Size], dtype: torch.dtype) -> Tensor:
    """The number of elements; 0 where a size that is computed, such as that of x[1:], is below 0."""
    return math.prod(torch.full((), size, dtype=dtype).clamp_min(0) for size in sizes)


@decomposes(aten.mean.default)
def _mean_of_all(self: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return _mean(self, None, dtype=dtype) if any(map(may_be_empty, self.shape)) else NotImplemented


def _loss(operator: OpOverload) -> Callable[..., Any]:
    """The mean of a loss for each element as that of `_mean`, if there may be none."""
    names = [argument.name for argument in operator._schema.arguments]

    def loss(*args: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        if given.get("reduction", Reduction.MEAN) != Reduction.MEAN or not any(map(may_be_empty, args[0].shape)):
            return NotImplemented
        return aten.mean.default(operator(**given | {"reduction": Reduction.NONE}))

    return loss


for _of_elements in (
    aten.binary_cross_entropy.default,
    aten.mse_loss.default,
    aten.soft_margin_loss.default,
):
    decomposes(_of_elements)(_loss(_of_elements))


@decomposes(aten.var.correction)
def _variance(
    self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    axes = list(dim) if dim else list(range(self.dim()))
    sizes = [self.shape[axis] for axis in axes]
    if not any(map(may_be_empty, sizes)):
        return NotImplemented
    squares = (self - _mean(self, axes, keepdim=True)).square()
    count = _count(sizes, self.dtype)
    divisor = torch.clamp_min(count - (1 if correction is None else correction), 0)
    return aten.sum.dim_IntList(squares, axes, keepdim) / divisor


@decomposes(aten.logsumexp.default)
def _log_of_sum(self: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Any:
    """By PyTorch's decomposition, as onnxruntime's ReduceLogSumExp takes -inf, -450 for -inf; -inf for no elements."""
    for axis in range(self.dim()) if dim == [] else [dim] if isinstance(dim, int) else dim:
        if may_be_zero(self.shape[axis]) and self.is_floating_point():
            shape = [1 if i == axis % self.dim() else size for i, size in enumerate(self.shape)]
            self = torch.cat([self, self.new_full(shape, -math.inf)], axis)
    return torch._decomp.decomposition_table[aten.logsumexp.default](self, dim, keepdim)


@decomposes(aten.std.correction)
def _deviation(self: Tensor, dim: Sequence[int] | None = None, **options: Any) -> Any:
    variance = _variance(self, dim, **options)
    return NotImplemented if variance is NotImplemented else variance.sqrt()


@translates(aten.sum.default)
def _sum(x: Value, dtype: int = -1) -> Value:
    return _sum_along(x, None, dtype=dtype)


@translates(aten.sum.dim_IntList)
def _sum_along(x: Value, dim: Sequence[int] | None, keepdim: bool = False, dtype: int = -1) -> Value:
    """Integers are added up as int64 and wrap around; onnxruntime's ReduceSum adds them up as float64."""
    kind = x.dtype if dtype == -1 else ir.DataType(dtype)
    if not kind.is_floating_point():
        kind = ir.DataType.INT64
    rank = len(x.shape)
    axes = sorted(axis % rank for axis in dim) if dim and rank else list(range(rank))
    before = _before_cast(x)
    if before.dtype == ir.DataType.BOOL and rank:
        return _count_along(before, axes, keepdim, kind if dtype == -1 else ir.DataType(dtype))
    found = x if x.dtype == kind else op.Cast(x, to=kind)
    if kind == ir.DataType.INT64 and _may_be_large(x):
        found = _wrapping_sum(found, axes, rank)
        if keepdim and axes:
            found = op.Unsqueeze(found, integers(axes))
    elif rank:
        found = op.ReduceSum(found, integers(axes) if dim else None, keepdims=int(keepdim))
    elif found is x:
        found = op.Identity(x)
    return found if dtype in (-1, kind) else op.Cast(found, to=dtype)


def _count_along(x: Value, axes: Sequence[int], keepdim: bool, dtype: ir.DataType) -> Value:
    """The number of elements that are True, as a floating number that is exact; sums of int64 take 10 times as long."""
    is_exact = not may_have([x.shape[axis] for axis in axes], EXACT)
    numbers = op.Cast(x, to=ir.DataType.FLOAT if is_exact else ir.DataType.DOUBLE)
    return op.Cast(op.ReduceSum(numbers, integers(axes), keepdims=int(keepdim)), to=dtype)


def _before_cast(x: Value) -> Value:
    producer = x.producer()
    return producer.inputs[0] if producer is not None and is_standard(producer, "Cast") else x


def _may_be_large(x: Value) -> bool:
    """Whether sums of these integers may have more digits than a float64."""
    before = _before_cast(x)
    return before.dtype is None or before.dtype.bitwidth == 64


def _wrapping_sum(x: Value, axes: Sequence[int], rank: int) -> Value:
    """Sums of int64 along axes, which are no longer there, as products with vectors of ones."""
    sizes = op.Shape(x)
    for axis in reversed(axes):
        others = [each for each in range(rank) if each != axis]
        rows = x if axis == rank - 1 else op.Transpose(x, perm=[*others, axis])
        x = op.MatMul(rows, op.Expand(op.Constant(value_int=1), op.Gather(sizes, integers([axis]), axis=0)))
        rank -= 1
    return x


@requires(
    aten.max.default,
    aten.max.dim,
    aten.min.default,
    aten.min.dim,
    aten.amax.default,
    aten.amin.default,
    aten.argmax.default,
    aten.argmin.default,
)
def _requires_elements(self: Tensor, dim: int | Sequence[int] | None = None, *_: bool, **__: bool) -> None:
    """PyTorch raises an error for the extremes of no elements, where onnxruntime's are infinite, or fail."""
    require_elements(self, [dim] if isinstance(dim, int) else dim or None)


def _any_nan(x: Value, axes: Value | None, keepdims: int) -> tuple[Value, Value]:
    """Where x is NaN, as uint8, and whether it is anywhere along the axes; onnxruntime's extremes ignore NaN."""
    isnan = op.Cast(op.IsNaN(x), to=ir.DataType.UINT8)
    return isnan, op.Cast(op.ReduceMax(isnan, axes, keepdims=keepdims), to=ir.DataType.BOOL)


@translates(aten.any.default)
def _any(x: Value) -> Value:
    return _any_along(x, None)


@translates(aten.any.dim)
def _any_dim(x: Value, dim: int, keepdim: bool = False) -> Value:
    return _any_along(x, [dim], keepdim)


@translates(aten.any.dims)
def _any_along(x: Value, dim: Sequence[int] | None, keepdim: bool = False) -> Value:
    """False without elements: the largest of no uint8 is 0, that of no int64, as in torch.onnx, the smallest number."""
    found = op.Cast(x, to=ir.DataType.BOOL)
    if not len(x.shape):
        return found
    axes = integers(dim) if dim else None
    most = op.ReduceMax(op.Cast(found, to=ir.DataType.UINT8), axes, keepdims=int(keepdim))
    return op.Cast(most, to=ir.DataType.BOOL)


def _extreme(name: str) -> Callable[..., Any]:
    """amax or amin, without axes over all of them, which the translation of torch.onnx refuses."""

    def translated(x: Value, dim: Sequence[int] = (), keepdim: bool = False) -> Value:
        axes = integers(dim) if dim else None
        found = getattr(op, f"Reduce{name}")(x, axes, keepdims=int(keepdim))
        if not x.dtype.is_floating_point():
            return found
        return op.Where(_any_nan(x, axes, int(keepdim))[1], number(math.nan, x), found)

    return translated


def _place(name: str) -> Callable[..., Any]:
    """argmax or argmin: the first NaN is the largest and the smallest number."""

    def translated(x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        rank = len(x.shape)
        rows, axis = (x, dim) if dim is not None and rank else (op.Reshape(x, integers([-1])), 0)
        whole = rows is not x
        keepdims = int(keepdim or whole)
        found = getattr(op, f"Arg{name}")(rows, axis=axis, keepdims=keepdims)
        if x.dtype.is_floating_point():
            isnan, any_ = _any_nan(rows, integers([axis]), keepdims)
            found = op.Where(any_, op.ArgMax(isnan, axis=axis, keepdims=keepdims), found)
        return op.Reshape(found, integers([1] * rank if keepdim else [])) if whole else found

    return translated


def _extreme_along(name: str) -> Callable[..., Any]:
    """The values and indices of max or min along an axis."""
    values, place = _extreme(name), _place(name)

    def translated(x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        if len(x.shape) == 0:
            return op.Identity(x), op.Constant(value_int=0)
        return values(x, [dim], keepdim), place(x, dim, keepdim)

    return translated


for _name, _whole, _several, _one, _index in (
    ("Max", aten.max.default, aten.amax.default, aten.max.dim, aten.argmax.default),
    ("Min", aten.min.default, aten.amin.default, aten.min.dim, aten.argmin.default),
):
    translates(_whole, _several)(_extreme(_name))
    translates(_one)(_extreme_along(_name))
    translates(_index)(_place(_name))


@translates(aten.sort.default, aten.sort.stable)
def _sort(x: Value, dim: int = -1, descending: bool = False, stable: bool = True) -> tuple[Value, Value]:
    """TopK keeps the order of equal elements."""
    if len(x.shape) == 0:
        return op.Identity(x), op.Constant(value_int=0)
    axis = dim % len(x.shape)
    size = op.Shape(x, start=axis, end=axis + 1)
    ordered = op.Cast(x, to=ir.DataType.UINT8) if x.dtype == ir.DataType.BOOL else x
    values, indices = op.TopK(ordered, size, axis=dim, largest=int(descending))
    return (values if ordered is x else op.Cast(values, to=ir.DataType.BOOL)), indices


@replaces(torch.prod, torch.Tensor.prod)
def _prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """Pairwise, so that the gradient with respect to an element that is 0 is the product of the others."""
    rows = input.to(dtype or dtype_of_products(input))
    if input.dim() == 0:
        return rows.clone()
    if dim is None:
        rows, dim = rows.flatten(), 0
    if is_symbolic(rows.shape[dim]):
        product = _product(rows, dim)
        return product.unsqueeze(dim) if keepdim else product
    rows = rows.movedim(dim, -1)
    size = int(rows.shape[-1])
    if size == 0:
        rows, size = rows.sum(-1, keepdim=True) + 1, 1
    while size > 1:
        half = size // 2
        products = rows.narrow(-1, 0, half) * rows.narrow(-1, half, half)
        rows = products if size % 2 == 0 else torch.cat([products, rows.narrow(-1, size - 1, 1)], -1)
        size -= half
    return rows.movedim(-1, dim) if keepdim else rows.squeeze(-1).clone()


def _product(rows: Tensor, dim: int) -> Tensor:
    """The product along an axis of dynamic size."""
    if rows.is_complex() or within_transforms():
        return _last_product(rows, dim)
    if not rows.is_floating_point():
        return aten.prod.dim_int(rows.long(), dim).to(rows.dtype)
    found: Tensor = _Product.apply(rows, dim)
    return found


def _last_product(rows: Tensor, dim: int) -> Tensor:
    """As `_product`, in operators that PyTorch differentiates any number of times."""
    return running_products(rows.movedim(dim, 0))[-1]


class _Product(torch.autograd.Function):
    """Whose gradient, unlike PyTorch's own, does not branch on whether an element is 0."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.dim = dim
        return aten.prod.dim_int(rows.to(torch.float64), dim, True).squeeze(dim).to(rows.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, None]:
        (rows,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return gradients_of(functools.partial(_last_product, dim=ctx.dim), [rows], [grad])[0], None
        wide = rows.to(torch.float64)
        is_zero = wide == 0
        zeros = is_zero.to(torch.float64)
        # With respect to an element that is 0, if there is no other one, the product of the others.
        others = aten.prod.dim_int(wide + zeros, ctx.dim, True) * (zeros.sum(ctx.dim, keepdim=True) == 1)
        slopes = torch.where(is_zero, others, aten.prod.dim_int(wide, ctx.dim, True) / wide)
        return (grad.unsqueeze(ctx.dim) * slopes).to(rows.dtype), None
