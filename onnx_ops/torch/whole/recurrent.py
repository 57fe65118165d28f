"""Recurrent layers: LSTM, GRU and RNN, whose loop over time is written out step by step.

PyTorch takes a layer apart so that each step multiplies by the weights, forward and backward. Here a step has the one
product that needs the step before it. The input of a layer enters by one product for all steps, and so do the gradients
by the weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from onnxscript import opset18 as op
from torch import Tensor
from torch.autograd.function import once_differentiable

from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.whole.operators import Table, aclnn, whole_operator

TABLE: Table = {}
Tensors = tuple[Tensor, ...]


# --- operators of a step: states (1, N, H), gates (1, N, G) -----------------------------------------------------------


def _like(*tensors: Tensor) -> Tensors:
    """Tensors without values of the same shapes: faster to make while a graph is traced than by the functions below."""
    return tuple(tensor.new_empty(tensor.shape) for tensor in tensors)


@whole_operator(
    TABLE,
    lambda rows, weight: op.MatMul(rows, weight),
    lambda rows, weight: rows.new_empty((*rows.shape[:-1], weight.shape[1])),
)
def recurrent_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Rows (1, N, K) by a matrix (K, M)."""
    return rows @ weight


def _cell_node(input_gates: Any, hidden_gates: Any, cx: Any) -> Any:
    return aclnn.ThnnFusedLstmCell(input_gates, hidden_gates, cx)


def _cell_backward_node(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, storage: Any) -> Any:
    return aclnn.ThnnFusedLstmCellBackward(grad_hy, grad_cy, cx, cy, storage)


@whole_operator(TABLE, _cell_node, lambda input_gates, hidden_gates, cx: _like(cx, cx, input_gates))
def lstm_cell(input_gates: Tensor, hidden_gates: Tensor, cx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state and cell state after a step, and the gates as they act."""
    i, f, g, o = (input_gates + hidden_gates).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], -1)


@whole_operator(TABLE, _cell_backward_node, lambda grad_hy, grad_cy, cx, cy, storage: _like(storage, cx))
def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, storage: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients by the gates and by the cell state before the step."""
    zeros = torch.zeros_like(cx)
    dh, dc = (zeros if given is None else given for given in (grad_hy, grad_cy))
    i, f, g, o = storage.chunk(4, -1)
    shown = cy.tanh()
    d = dc + dh * o * (1 - shown * shown)
    gates = (d * g * i * (1 - i), d * cx * f * (1 - f), d * i * (1 - g * g), dh * shown * o * (1 - o))
    return torch.cat(gates, -1), d * f


# --- kinds of layers --------------------------------------------------------------------------------------------------


class Kind(ABC):
    """One step of a kind of layer, forward and backward.

    Its states are the hidden state and what else it has. What the products of the layer's input and of the hidden
    state with the weights give comes apart: `given` and `recurrent`.
    """

    keeps_recurrent_bias_apart = False
    """Whether the bias of the hidden state cannot be added to the input's product."""

    @abstractmethod
    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        """The states after a step, and what its gradient needs."""

    @abstractmethod
    def back(self, gradients: tuple[Tensor | None, ...], kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """From gradients by the states after a step, at least one of which is there: those by `given`, by `recurrent`,
        and by the states before, as far as they do not come by way of `recurrent`."""


class Lstm(Kind):
    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        hidden, cell, gates = lstm_cell(given, recurrent, states[1])
        return (hidden, cell), (states[1], cell, gates)

    def back(self, gradients: tuple[Tensor | None, ...], kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        by_gates, by_cell = lstm_cell_backward(*gradients, *kept)
        return by_gates, by_gates, [None, by_cell]


class Gru(Kind):
    keeps_recurrent_bias_apart = True  # one of the gates multiplies it

    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        (hidden,), width = states, states[0].shape[-1]
        reset, update = (given[..., : 2 * width] + recurrent[..., : 2 * width]).sigmoid().split(width, -1)
        remembered = recurrent[..., 2 * width :]
        new = (given[..., 2 * width :] + reset * remembered).tanh()
        return (new + update * (hidden - new),), (reset, update, new, remembered, hidden)

    def back(self, gradients: tuple[Tensor | None, ...], kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        (gradient,) = gradients
        assert gradient is not None
        reset, update, new, remembered, hidden = kept
        by_new = gradient * (1 - update) * (1 - new * new)
        by_update = gradient * (hidden - new) * update * (1 - update)
        by_reset = by_new * remembered * reset * (1 - reset)
        given = torch.cat([by_reset, by_update, by_new], -1)
        recurrent = torch.cat([by_reset, by_update, by_new * reset], -1)
        return given, recurrent, [gradient * update]


class Plain(Kind):
    """The layer that PyTorch calls RNN."""

    def __init__(self, activation: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> None:
        self._activation, self._slope = activation, slope

    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        hidden = self._activation(given + recurrent)
        return (hidden,), (hidden,)

    def back(self, gradients: tuple[Tensor | None, ...], kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        (gradient,) = gradients
        assert gradient is not None
        before = gradient * self._slope(kept[0])
        return before, before, [None]


# --- a layer in one direction -----------------------------------------------------------------------------------------


def _sum(terms: Sequence[Tensor | None]) -> Tensor | None:
    given = [term for term in terms if term is not None]
    return sum(given[1:], given[0]) if given else None


class _Direction(torch.autograd.Function):
    """From a sequence (T, N, I) and states (1, N, H) to the hidden states (T, N, H), and the states in the end."""

    @staticmethod
    def forward(
        ctx: Any,
        kind: Kind,
        backwards: bool,
        sequence: Tensor,
        input_weight: Tensor,
        input_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        projection: Tensor | None,
        *states: Tensor,
    ) -> Tensors:
        given = functional.linear(sequence, input_weight, input_bias)
        turned = weight.t()
        order = range(sequence.shape[0])
        before: list[Tensor] = []  # hidden states, and what a step made of them before its projection
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
        matrices = [input_weight, weight, *([] if projection is None else [projection])]
        ctx.save_for_backward(sequence, *matrices, *before, *made, *kept)
        ctx.set_materialize_grads(False)
        return torch.cat(hidden[::-1] if backwards else hidden), *states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_outputs: Tensor | None, *by_states: Tensor | None) -> Any:
        steps = ctx.count
        sequence, input_weight, weight, *rest = ctx.saved_tensors
        projection = rest.pop(0) if ctx.projected else None
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

        def rows(tensors: list[Tensor]) -> Tensor:
            """Of all steps, in the order in which `backward` comes to them."""
            return torch.cat(tensors).flatten(0, 1)

        whole_recurrent = rows(by_recurrent)
        by_bias = whole_recurrent.sum(0) if ctx.has_biases[1] else None
        in_place = torch.cat(by_given if ctx.backwards else by_given[::-1])
        whole_given = in_place.flatten(0, 1)
        return (
            None,
            None,
            in_place @ input_weight if ctx.needs_input_grad[2] else None,
            whole_given.t() @ sequence.flatten(0, 1),
            whole_given.sum(0) if ctx.has_biases[0] else None,
            whole_recurrent.t() @ rows(before[::-1]),
            by_bias,
            rows(by_projected).t() @ rows(made[::-1]) if ctx.projected else None,
            *gradients,
        )


# --- PyTorch's functions ----------------------------------------------------------------------------------------------


def _layers(
    kind: Kind,
    input: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Tensors:
    """All layers: the hidden states of the last one, and the states that all of them end with."""
    sequence = input.transpose(0, 1) if batch_first else input
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
            output, *end = _Direction.apply(
                kind,
                direction == 1,
                sequence,
                input_weight,
                bias[0],
                weight,
                bias[1],
                rest[0] if rest else None,
                *(state[place : place + 1] for state in states),
            )
            outputs.append(output)
            ends.append(end)
        sequence = torch.cat(outputs, -1) if bidirectional else output
    whole = sequence.transpose(0, 1) if batch_first else sequence
    return whole, *(torch.cat(parts) for parts in zip(*ends, strict=True))


def _instead_of(name: str, kind: Kind) -> Callable[..., Tensors]:
    """What takes the place of a function of PyTorch, whose states are one tensor or, of an LSTM, two."""

    def layers(
        input: Tensor,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> Tensors:
        if not isinstance(has_biases, bool):  # PyTorch's other form: data, batch_sizes, hx, params, ...
            raise CaptureError(
                f"torch.{name} of a packed sequence cannot be captured: the number of samples that each step has left"
                " is in the numbers of a tensor. Pad the sequences, and mask what comes after the end of each"
            )
        states = [hx] if isinstance(hx, Tensor) else hx
        settings = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
        return _layers(kind, input, states, params, *settings)

    return layers


FUNCTIONS = {
    torch.lstm: _instead_of("lstm", Lstm()),
    torch.gru: _instead_of("gru", Gru()),
    torch.rnn_tanh: _instead_of("rnn_tanh", Plain(torch.tanh, lambda hidden: 1 - hidden * hidden)),
    torch.rnn_relu: _instead_of("rnn_relu", Plain(torch.relu, lambda hidden: (hidden > 0).to(hidden.dtype))),
}
