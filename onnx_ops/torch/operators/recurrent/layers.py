"""Recurrent layers: LSTM, GRU and RNN. An LSTM without projections is DynamicRNN in each direction.

The loop over time of the others is unrolled; over a dynamic number of steps it is a Scan, and over packed sequences,
whose length depends on data.

The input of a layer is multiplied by its weights once for all steps, and so are the gradients of the weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils._pytree import tree_map_only

from onnx_ops.torch.base.requirements import require_elements
from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.operators.recurrent.again import gradients_again
from onnx_ops.torch.operators.recurrent.cells import KINDS, Tensors, recurrent_product
from onnx_ops.torch.operators.recurrent.lstm import LstmDirection
from onnx_ops.torch.operators.recurrent.packing import Packing
from onnx_ops.torch.operators.recurrent.scan import ScannedDirection

# --- a layer in one direction -----------------------------------------------------------------------------------------


def _sum(terms: Sequence[Tensor | None]) -> Tensor | None:
    given = [term for term in terms if term is not None]
    return sum(given[1:], given[0]) if given else None


class Direction(torch.autograd.Function):
    """From a sequence (T, N, I) and states (1, N, H) to the hidden states (T, N, H), and the final states."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        name: str,
        backwards: bool,
        sequence: Tensor,
        input_weight: Tensor,
        input_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        projection: Tensor | None,
        *starts: Tensor,
    ) -> Tensors:
        # In two dimensions, as PyTorch adds the bias of a transposed sequence apart from the product.
        given = functional.linear(sequence.flatten(0, 1), input_weight, input_bias).unflatten(0, sequence.shape[:2])
        turned, kind = weight.t(), KINDS[name]
        order = range(sequence.shape[0])
        states = starts
        before: list[Tensor] = []  # hidden states before each step; `made`: the next ones before their projection
        made: list[Tensor] = []
        hidden: list[Tensor] = []
        kept: list[Tensor] = []
        for t in reversed(order) if backwards else order:
            before.append(states[0])
            recurrent = recurrent_product(states[0], turned)
            if bias is not None:
                recurrent = recurrent + bias
            states, own = kind.step(given[t : t + 1], recurrent, states)
            if projection is not None:
                made.append(states[0])
                states = (recurrent_product(states[0], projection.t()), *states[1:])
            hidden.append(states[0])
            kept += own
        ctx.kind, ctx.backwards, ctx.count = kind, backwards, len(order)
        ctx.has_biases = input_bias is not None, bias is not None
        ctx.projected = projection is not None
        ctx.name, ctx.states = name, len(starts)
        inputs = sequence, input_weight, input_bias, weight, bias, projection, *starts
        ctx.save_for_backward(*inputs, *before, *made, *kept)
        ctx.set_materialize_grads(False)
        return torch.cat(hidden[::-1] if backwards else hidden), *states

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> Any:
        gradients = functools.partial(Direction._gradients, ctx, *grads)
        if not torch.is_grad_enabled():
            return None, None, *gradients()
        inputs = ctx.saved_tensors[: 6 + ctx.states]
        return None, None, *gradients_again(ctx.name, ctx.backwards, None, inputs, grads, gradients)

    @staticmethod
    def _gradients(ctx: FunctionCtx, by_outputs: Tensor | None, *by_states: Tensor | None) -> tuple[Tensor | None, ...]:
        steps = ctx.count
        sequence, input_weight, _, weight, _, projection, *rest = ctx.saved_tensors
        rest = rest[ctx.states :]
        before, rest = rest[:steps], rest[steps:]
        made, rest = (rest[:steps], rest[steps:]) if ctx.projected else ([], rest)
        kept = [rest[i : i + len(rest) // steps] for i in range(0, len(rest), len(rest) // steps)]
        places = range(steps - 1, -1, -1) if ctx.backwards else range(steps)

        gradients = list(by_states)
        by_given: list[Tensor] = []
        by_recurrent: list[Tensor] = []
        by_projected: list[Tensor] = []
        for n in range(steps - 1, -1, -1):
            if by_outputs is not None:
                gradients[0] = _sum([gradients[0], by_outputs[places[n] : places[n] + 1]])
            if all(gradient is None for gradient in gradients):
                gradients[0] = torch.zeros_like(before[0])
            if projection is not None:
                shown = torch.zeros_like(before[0]) if gradients[0] is None else gradients[0]
                by_projected.append(shown)
                gradients[0] = recurrent_product(shown, projection)
            given, recurrent, gradients = ctx.kind.back(tuple(gradients), kept[n])
            by_given.append(given)
            by_recurrent.append(recurrent)
            gradients[0] = _sum([gradients[0], recurrent_product(recurrent, weight)])

        def in_place(tensors: list[Tensor]) -> Tensor:
            """Of tensors of the steps, the last one first: all in the order of the sequence."""
            return torch.cat(tensors if ctx.backwards else tensors[::-1])

        def rows(tensors: list[Tensor]) -> Tensor:
            return in_place(tensors).flatten(0, 1)

        whole_given, whole_recurrent = rows(by_given), rows(by_recurrent)
        by_bias = whole_recurrent.sum(0) if ctx.has_biases[1] else None
        return (
            in_place(by_given) @ input_weight if ctx.needs_input_grad[2] else None,
            whole_given.t() @ sequence.flatten(0, 1),
            whole_given.sum(0) if ctx.has_biases[0] else None,
            whole_recurrent.t() @ rows(before[::-1]),
            by_bias,
            rows(by_projected).t() @ rows(made[::-1]) if ctx.projected else None,
            *gradients,
        )


# --- PyTorch's functions ----------------------------------------------------------------------------------------------


def _layers(
    name: str,
    sequence: Tensor,
    mask: Tensor | None,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Tensors:
    """All layers: the hidden states of the last one, and the final states of all of them.

    Args:
        sequence: (T, N, I).
        mask: (T, N) bool, which steps there are; the states stay as they are in others. None if all are there.
    """
    kind = KINDS[name]
    unrolled = mask is None and not is_symbolic(sequence.shape[0])
    direction_of = Direction.apply if unrolled else functools.partial(ScannedDirection.apply, mask)
    directions = 2 if bidirectional else 1
    per_direction = len(weights) // (num_layers * directions)
    ends: list[list[Tensor]] = []
    for layer in range(num_layers):
        if layer and dropout and train:
            sequence = functional.dropout(sequence, dropout)
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            input_weight, weight, *rest = weights[place * per_direction : (place + 1) * per_direction]
            biases = (rest.pop(0), rest.pop(0)) if has_biases else None
            bias: tuple[Tensor | None, Tensor | None] = (None, None)
            if biases is not None:
                bias = biases if kind.keeps_recurrent_bias_apart else (biases[0] + biases[1], None)
            before = [state[place : place + 1] for state in states]
            backwards, projection = direction == 1, rest[0] if rest else None
            if name == "lstm" and projection is None:
                output, *end = LstmDirection.apply(mask, backwards, sequence, input_weight, bias[0], weight, *before)
            else:
                output, *end = direction_of(
                    name, backwards, sequence, input_weight, bias[0], weight, bias[1], projection, *before
                )
            outputs.append(output)
            ends.append(end)
        sequence = torch.cat(outputs, -1) if bidirectional else output
    return sequence, *(torch.cat(parts) for parts in zip(*ends, strict=True))


def _computed(
    name: str,
    sequence: Tensor,
    mask: Tensor | None,
    hx: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    *settings: Any,
) -> Tensors:
    """The results of all layers for a padded sequence (T, N, I), in its dtype.

    Steps of 16 bits, as under torch.autocast, are computed in float32, without rounding between them.
    """
    dtype = torch.promote_types(sequence.dtype, torch.float32)
    states, weights = tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(dtype), ([hx] if isinstance(hx, Tensor) else hx, params)
    )
    with torch.autocast("cpu", enabled=False):
        outputs = _layers(name, sequence.to(dtype), mask, states, weights, *settings)
    return tuple(output.to(sequence.dtype) for output in outputs)


def _instead_of(name: str) -> Callable[..., Tensors]:
    """The replacement of torch.lstm, torch.gru, torch.rnn_tanh or torch.rnn_relu, each of which has two forms."""

    def padded(
        input: Tensor,
        hx: Tensor | Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> Tensors:
        settings = (has_biases, num_layers, dropout, train, bidirectional)
        require_elements(input, [1 if batch_first else 0])
        whole, *ends = _computed(name, input.transpose(0, 1) if batch_first else input, None, hx, params, *settings)
        return whole.transpose(0, 1) if batch_first else whole, *ends

    def packed(
        data: Tensor, batch_sizes: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], *settings: Any
    ) -> Tensors:
        packing = Packing.of(batch_sizes)
        whole, *ends = _computed(name, packing.pad(data), packing.mask, hx, params, *settings)
        return packing.pack(whole), *ends

    def layers(*args: Any, **options: Any) -> Tensors:
        weights_are_fourth = len(args) > 3 and not isinstance(args[3], bool)
        return (packed if weights_are_fourth else padded)(*args, **options)

    return layers


for _name in KINDS:
    replaces(getattr(torch, _name))(_instead_of(_name))
