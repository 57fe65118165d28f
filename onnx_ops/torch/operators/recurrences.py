"""Linear recurrences and running products along an axis of dynamic size, as a Scan forward and one backward."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import scan
from onnx_ops.torch.base.nodes import Value, integers, number, op


def _nodes(factors: Value, terms: Value, backwards: bool) -> Value:
    start = op.Expand(number(0.0, terms), op.Shape(terms, start=1))
    start = op.Unsqueeze(start, integers([0]))
    start.dtype, start.shape = terms.dtype, ir.Shape([1, *terms.shape[1:]])

    def step(before: Value, factor: Value, term: Value) -> tuple[Value, Value]:
        after = op.Add(op.Mul(factor, before), term)
        return after, after

    return scan(f"{terms.name}_recurrence_{int(backwards)}", [start], [factors, terms], 1, backwards, step)[1]


@custom_operator(_nodes, lambda factors, terms, backwards: terms.new_empty(terms.shape))
def recurrence(factors: Tensor, terms: Tensor, backwards: bool) -> Tensor:
    """y[t] = factors[t] * y[t - 1] + terms[t] of tensors (T, ...) of a shape; backwards, y[t + 1] takes its place.

    The factor of the first step must be finite: it is multiplied by 0."""
    rows: list[Tensor] = []
    before = torch.zeros_like(terms[0])
    order = range(terms.shape[0])
    for t in reversed(order) if backwards else order:
        before = factors[t] * before + terms[t]
        rows.append(before)
    return torch.stack(rows[::-1] if backwards else rows)


def _setup(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
    factors, _, ctx.backwards = inputs
    ctx.save_for_backward(factors, output)


def _before(rows: Tensor, backwards: bool, fill: float) -> Tensor:
    """The rows of the steps before, `fill` for that of the first step."""
    filled = torch.full_like(rows[:1], fill)
    return torch.cat([rows[1:], filled] if backwards else [filled, rows[:-1]])


def _gradients(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
    factors, found = ctx.saved_tensors
    by_terms = recurrence(_before(factors, not ctx.backwards, 1.0), grad, not ctx.backwards)
    return by_terms * _before(found, ctx.backwards, 0.0), by_terms, None


recurrence.register_autograd(_gradients, setup_context=_setup)


def dtype_of_products(factors: Tensor) -> torch.dtype:
    """The dtype of a product for which none is asked for: int64 of integers and booleans."""
    return factors.dtype if factors.is_floating_point() or factors.is_complex() else torch.int64


def running_products(rows: Tensor) -> Tensor:
    """The products of the rows (T, ...) up to each one, in float64 as PyTorch computes them.

    The gradient with respect to an element is that of the product of the others, so that it may be 0.

    Returns:
        (1 + T, ...), of which the first ones are 1: there may be no rows, for which onnxruntime runs no Scan.
    """
    wide = rows.to(torch.float64) if rows.is_floating_point() else rows
    ones = wide.new_ones((1, *wide.shape[1:]))
    return recurrence(torch.cat([ones, wide]), torch.cat([ones, torch.zeros_like(wide)]), False).to(rows.dtype)
