"""A recurrent layer in one direction: a Scan forward, over any number of steps, and one backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import scan
from onnx_ops.torch.base.nodes import Value, integers, number, op, sizes
from onnx_ops.torch.operators.recurrent.again import gradients_again
from onnx_ops.torch.operators.recurrent.cells import KINDS, Tensors, like, of_inputs


def _present(*sequences: Value | None) -> list[Value]:
    return [sequence for sequence in sequences if sequence is not None]


FEW_ROWS = (16, 32)
"""Numbers of rows for which onnxruntime multiplies a matrix by transposed rows faster than rows by a matrix: it packs
the second factor in panels of 16 columns in each product, and reads the first one as it is."""
PAGE, LINE = 4096, 64
"""Bytes: numbers that are a multiple of PAGE apart share a set of a processor's cache; LINE is its line."""


def _product_of(like: Value, weight: Value) -> Callable[[Value], Value]:
    """Writes the products of rows (N, K) with a matrix (K, M), for the steps of a loop.

    Args:
        like: a tensor (..., N, H).
        weight: the matrix, which is prepared once for all steps.
    """
    if sizes(like)[-2] not in FEW_ROWS:
        return lambda rows: op.MatMul(rows, weight)
    size = weight.dtype.numpy().itemsize
    more = LINE // size if sizes(weight)[0] * size % PAGE == 0 else 0
    if more:  # zeros, so that rows of the transposed matrix do not evict one another
        weight = op.Pad(weight, integers([0, 0, more, 0]))
    turned = op.Transpose(weight, perm=[1, 0])

    def product(rows: Value) -> Value:
        if more:
            rows = op.Pad(rows, integers([0, 0, 0, more]))
        return op.Transpose(op.MatMul(turned, op.Transpose(rows, perm=[1, 0])), perm=[1, 0])

    return product


def _loop_nodes(
    kind: str,
    backwards: bool,
    given: Value,
    mask: Value | None,
    weight: Value,
    bias: Value | None,
    projection: Value | None,
    states: Sequence[Value],
) -> Sequence[Value]:
    recur = _product_of(states[0], weight)
    project = None if projection is None else _product_of(states[0], projection)

    def step(*values: Value) -> Sequence[Value]:
        before, (now, *there) = values[: len(states)], values[len(states) :]
        recurrent = recur(before[0])
        if bias is not None:
            recurrent = op.Add(recurrent, bias)
        (made, *others), own = KINDS[kind].step_nodes(now, recurrent, before)
        after = [made if project is None else project(made), *others]
        if there:
            after = [op.Where(there[0], new, old) for new, old in zip(after, before, strict=True)]
        return [*after, after[0], before[0], *([] if project is None else [made]), *own]

    stacked = 2 + (projection is not None) + KINDS[kind].keeps
    return scan(f"{given.name}_loop", states, _present(given, mask), stacked, backwards, step)


def _loop_shapes(
    kind: str,
    backwards: bool,
    given: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
    states: list[Tensor],
) -> list[Tensor]:
    row = given.new_empty((1, *given.shape[1:]))
    (made, *_), own = KINDS[kind].step(row, row, tuple(states))
    stacks = [states[0], states[0], *([] if projection is None else [made]), *own]
    return [*like(*states), *(given.new_empty((given.shape[0], *one.shape[1:])) for one in stacks)]


@custom_operator(_loop_nodes, _loop_shapes)
def recurrent_loop(
    kind: str,
    backwards: bool,
    given: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
    states: list[Tensor],
) -> list[Tensor]:
    """The final states; then of all steps (T, N, ...) the hidden states, those before the step, those before their
    projection, if there is one, and what the gradient of the step needs.

    A step changes no states where the mask (T, N, 1) is False."""
    rows: list[Tensors] = []
    order = range(given.shape[0])
    for t in reversed(order) if backwards else order:
        recurrent = states[0] @ weight
        (made, *others), own = KINDS[kind].step(
            given[t : t + 1], recurrent if bias is None else recurrent + bias, tuple(states)
        )
        after = [made if projection is None else made @ projection, *others]
        if mask is not None:
            after = [torch.where(mask[t : t + 1], new, old) for new, old in zip(after, states, strict=True)]
        rows.append((after[0], states[0], *([] if projection is None else [made]), *own))
        states = after
    stacks = zip(*(reversed(rows) if backwards else rows), strict=True)
    return [*(state.clone() for state in states), *(torch.cat(stack) for stack in stacks)]


def _loop_back_nodes(
    kind: str,
    backwards: bool,
    by_outputs: Value,
    mask: Value | None,
    by_states: Sequence[Value],
    weight: Value,
    projection: Value | None,
    kept: Sequence[Value],
) -> Sequence[Value]:
    recur = _product_of(by_outputs, weight)
    project = None if projection is None else _product_of(by_outputs, projection)

    def step(*values: Value) -> Sequence[Value]:
        gradients, (by_output, *own) = list(values[: len(by_states)]), list(values[len(by_states) :])
        gradients[0] = op.Add(gradients[0], by_output)
        if mask is not None:
            there, given_on, zero = own.pop(0), gradients, number(0.0, by_output)
            gradients = [op.Where(there, gradient, zero) for gradient in given_on]
        shown = gradients[0]
        if project is not None:
            gradients[0] = project(shown)
        given, recurrent, (by_hidden, *others) = KINDS[kind].back_nodes(gradients, own)
        before = recur(recurrent)
        found = [before if by_hidden is None else op.Add(by_hidden, before), *others]
        if mask is not None:
            found = [op.Where(there, new, old) for new, old in zip(found, given_on, strict=True)]
        return [*found, given, recurrent, *([] if project is None else [shown])]

    # Those stacks are kept by one loop only, so that its name is unique.
    name, stacked = f"{kept[0].name}_back", 2 + (projection is not None)
    return scan(name, by_states, [*_present(by_outputs, mask), *kept], stacked, not backwards, step)


def _loop_back_shapes(
    kind: str,
    backwards: bool,
    by_outputs: Tensor,
    mask: Tensor | None,
    by_states: list[Tensor],
    weight: Tensor,
    projection: Tensor | None,
    kept: list[Tensor],
) -> list[Tensor]:
    gates = by_outputs.new_empty((*by_outputs.shape[:2], weight.shape[0]))
    return [*like(*by_states), *like(gates, gates, *([] if projection is None else [by_outputs]))]


@custom_operator(_loop_back_nodes, _loop_back_shapes)
def recurrent_loop_backward(
    kind: str,
    backwards: bool,
    by_outputs: Tensor,
    mask: Tensor | None,
    by_states: list[Tensor],
    weight: Tensor,
    projection: Tensor | None,
    kept: list[Tensor],
) -> list[Tensor]:
    """The gradients with respect to the initial states; then of all steps (T, N, ...) those with respect to `given`, to
    `recurrent`, and, if there is a projection, to its result."""
    gradients: list[Tensor] = list(by_states)
    rows: list[Tensors] = []
    order = range(by_outputs.shape[0])
    for t in order if backwards else reversed(order):
        gradients[0] = gradients[0] + by_outputs[t : t + 1]
        given_on = gradients
        if mask is not None:
            gradients = [torch.where(mask[t : t + 1], gradient, 0.0) for gradient in given_on]
        shown = gradients[0]
        made = shown if projection is None else shown @ projection
        own = tuple(stack[t : t + 1] for stack in kept)
        given, recurrent, (by_hidden, *others) = KINDS[kind].back((made, *gradients[1:]), own)
        before = recurrent @ weight
        gradients = [before if by_hidden is None else by_hidden + before, *(g for g in others if g is not None)]
        if mask is not None:
            gradients = [torch.where(mask[t : t + 1], new, old) for new, old in zip(gradients, given_on, strict=True)]
        rows.append((given, recurrent, *([] if projection is None else [shown])))
    stacks = zip(*(rows if backwards else reversed(rows)), strict=True)
    return [*(gradient.clone() for gradient in gradients), *(torch.cat(stack) for stack in stacks)]


class Direction(torch.autograd.Function):
    """From a sequence (T, N, I) and states (1, N, H) to the hidden states (T, N, H), and the final states, which change
    only where the mask (T, N) is True."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        mask: Tensor | None,
        name: str,
        backwards: bool,
        sequence: Tensor,
        input_weight: Tensor,
        input_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        projection: Tensor | None,
        *states: Tensor,
    ) -> Tensors:
        given = of_inputs(sequence, input_weight, input_bias)
        turned = None if projection is None else projection.t()
        steps = None if mask is None else mask.unsqueeze(-1)
        found = recurrent_loop(name, backwards, given, steps, weight.t(), bias, turned, list(states))
        ends, (hidden, *kept) = found[: len(states)], found[len(states) :]
        ctx.name, ctx.backwards, ctx.projected = name, backwards, projection is not None
        ctx.has_biases = input_bias is not None, bias is not None
        ctx.states = len(states)
        inputs = sequence, input_weight, input_bias, weight, bias, projection, *states
        ctx.save_for_backward(steps, *inputs, *kept)
        return hidden, *ends

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Any:
        gradients = functools.partial(Direction._gradients, ctx, *grads)
        if not torch.is_grad_enabled():
            return None, None, None, *gradients()
        mask, *inputs = ctx.saved_tensors[: 7 + ctx.states]
        return None, None, None, *gradients_again(ctx.name, ctx.backwards, mask, inputs, grads, gradients)

    @staticmethod
    def _gradients(ctx: FunctionCtx, by_outputs: Tensor, *by_states: Tensor) -> tuple[Tensor | None, ...]:
        mask, sequence, input_weight, _, weight, _, projection, *rest = ctx.saved_tensors
        rest = rest[ctx.states :]
        before = rest.pop(0)
        made = rest.pop(0) if ctx.projected else None
        found = recurrent_loop_backward(
            ctx.name, ctx.backwards, by_outputs, mask, list(by_states), weight, projection, rest
        )
        gradients, (by_given, by_recurrent, *by_projected) = found[: len(by_states)], found[len(by_states) :]
        given, recurrent = by_given.flatten(0, 1), by_recurrent.flatten(0, 1)
        return (
            by_given @ input_weight if ctx.needs_input_grad[3] else None,
            given.t() @ sequence.flatten(0, 1),
            given.sum(0) if ctx.has_biases[0] else None,
            recurrent.t() @ before.flatten(0, 1),
            recurrent.sum(0) if ctx.has_biases[1] else None,
            None if made is None else by_projected[0].flatten(0, 1).t() @ made.flatten(0, 1),
            *gradients,
        )
