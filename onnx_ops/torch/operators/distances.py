"""Distances between rows, and between all pairs of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import branch
from onnx_ops.torch.base.nodes import Value, integers, number, op
from onnx_ops.torch.base.second_derivatives import gradients_of
from onnx_ops.torch.base.table import corrects, replaces
from onnx_ops.torch.base.transforms import within_transforms
from onnx_ops.torch.operators.sizes_as_data import triu_indices

MANY_ROWS = 25
"""With more rows than this, PyTorch computes Euclidean distances by a product of matrices, which is less accurate."""


@replaces(torch.cdist)
def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    rows = x1.shape[-2], x2.shape[-2]
    if p == 2 and compute_mode == "use_mm_for_euclid_dist":
        return _by_product(x1, x2)
    if p == 2 and compute_mode == "use_mm_for_euclid_dist_if_necessary":
        if any(statically_known_true(count > MANY_ROWS) for count in rows):
            return _by_product(x1, x2)
        if not within_transforms() and not all(statically_known_true(count <= MANY_ROWS) for count in rows):
            batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
            found: Tensor = euclidean_distances(*(x.expand(*batch, *x.shape[-2:]) for x in (x1, x2)))
            return found
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _by_product(x1: Tensor, x2: Tensor) -> Tensor:
    squares = x1.square().sum(-1, keepdim=True) + x2.square().sum(-1).unsqueeze(-2)
    return _root(squares - 2 * (x1 @ x2.transpose(-1, -2)))


# --- of a number of rows that is known in a step ----------------------------------------------------------------------


def _depending_on_rows(
    x1: Value, x2: Value, name: str, by_product: Callable[[], Sequence[Value]], by_pair: Callable[[], Sequence[Value]]
) -> Sequence[Value]:
    axis = len(x1.shape) - 2
    most = op.Max(*(op.Shape(x, start=axis, end=axis + 1) for x in (x1, x2)))
    is_many = op.Squeeze(op.Greater(most, integers([MANY_ROWS])))
    return branch(f"{name}_of_{x1.name}_and_{x2.name}", is_many, by_product, by_pair)


def _transposed(x: Value, rank: int) -> Value:
    return op.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _difference(x1: Value, x2: Value) -> Value:
    return op.Sub(op.Unsqueeze(x1, integers([-2])), op.Unsqueeze(x2, integers([-3])))


def _total(x: Value, axis: int, keepdims: int = 0) -> Value:
    return op.ReduceSum(x, integers([axis]), keepdims=keepdims)


def _distances_nodes(x1: Value, x2: Value) -> Value:
    zero, two, rank = number(0.0, x1), number(2.0, x1), len(x1.shape)

    def by_product() -> Sequence[Value]:
        squares = op.Add(_total(op.Mul(x1, x1), -1, 1), _transposed(_total(op.Mul(x2, x2), -1, 1), rank))
        found = op.Sub(squares, op.Mul(op.MatMul(x1, _transposed(x2, rank)), two))
        return [op.Sqrt(op.Where(op.Less(found, zero), zero, found))]

    def by_pair() -> Sequence[Value]:
        difference = _difference(x1, x2)
        return [op.Sqrt(_total(op.Mul(difference, difference), -1))]

    (found,) = _depending_on_rows(x1, x2, "distances", by_product, by_pair)
    return found


@custom_operator(_distances_nodes, lambda x1, x2: x1.new_empty((*x1.shape[:-1], x2.shape[-2])))
def euclidean_distances(x1: Tensor, x2: Tensor) -> Tensor:
    """(..., m, n) between the rows of (..., m, k) and (..., n, k), with the same leading sizes."""
    return torch.cdist(x1, x2)


def _gradients_nodes(grad: Value, x1: Value, x2: Value, distances: Value) -> Sequence[Value]:
    zero = number(0.0, grad)
    weights = op.Where(op.Equal(distances, zero), zero, op.Div(grad, distances))

    def by_product() -> Sequence[Value]:
        across = _transposed(weights, len(x1.shape))
        first = op.Sub(op.Mul(x1, _total(weights, -1, 1)), op.MatMul(weights, x2))
        return first, op.Sub(op.Mul(x2, _total(across, -1, 1)), op.MatMul(across, x1))

    def by_pair() -> Sequence[Value]:
        terms = op.Mul(op.Unsqueeze(weights, integers([-1])), _difference(x1, x2))
        return _total(terms, -2), op.Neg(_total(terms, -3))

    return _depending_on_rows(x1, x2, f"gradients_{grad.name}", by_product, by_pair)


@custom_operator(_gradients_nodes, lambda grad, x1, x2, distances: (x1.new_empty(x1.shape), x2.new_empty(x2.shape)))
def euclidean_distances_backward(grad: Tensor, x1: Tensor, x2: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `euclidean_distances`, 0 where the distance is."""
    weights = torch.where(distances == 0, 0.0, grad / distances)
    terms = weights.unsqueeze(-1) * (x1.unsqueeze(-2) - x2.unsqueeze(-3))
    return terms.sum(-2), -terms.sum(-3)


def _setup(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _gradients(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
    x1, x2, distances = ctx.saved_tensors
    if torch.is_grad_enabled():  # to be differentiated again
        return tuple(gradients_of(lambda x1, x2: _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), 2), [x1, x2], [grad]))
    found: tuple[Tensor, Tensor] = euclidean_distances_backward(grad, x1, x2, distances)
    return found


euclidean_distances.register_autograd(_gradients, setup_context=_setup)


# --- others -----------------------------------------------------------------------------------------------------------


@replaces(torch.pdist)
def _pdist(input: Tensor, p: float = 2.0) -> Tensor:
    first, second = triu_indices(input.shape[0], input.shape[0], 1, device=input.device)
    return _norm(input.index_select(0, first) - input.index_select(0, second), p)


@corrects(torch.pdist)
def _pdist_of_rows(input: Tensor, p: float = 2.0) -> Tensor:
    """PyTorch's gradient of no rows is a division by 0 on CPUs, which ends the process."""
    return torch.pdist(input, p) if input.shape[0] else _pdist(input, p)


def _norm(difference: Tensor, p: float) -> Tensor:
    if p == 0:
        return (difference != 0).to(difference.dtype).sum(-1)
    if p == 1:
        return difference.abs().sum(-1)
    if p == 2:
        return _root(difference.square().sum(-1))
    if p == float("inf"):
        return difference.abs().amax(-1)
    size = difference.abs()
    # A difference of 0 has no gradient; the power's would be infinite for p below 1.
    powers = torch.where(size == 0, 0.0, torch.where(size == 0, 1.0, size).pow(p)).sum(-1)
    return torch.where(powers == 0, 0.0, torch.where(powers == 0, 1.0, powers).pow(1 / p))


def _root(squares: Tensor) -> Tensor:
    """The square root, with gradient 0 at 0 and at values that rounding has made negative."""
    return torch.where(squares <= 0, 0.0, torch.where(squares <= 0, 1.0, squares).sqrt())  # NaN is neither


@replaces(torch.pairwise_distance)
def _pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, dim=-1, keepdim=keepdim)
