"""Recurrent layers: LSTM, GRU and RNN, whose loop over time is written out step by step; over a dynamic number of steps
it is a Scan.

PyTorch takes a layer apart so that each step multiplies by the weights, forward and backward. Here a step has the one
product that needs the step before it. The input of a layer enters by one product for all steps, and so do the gradients
by the weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as functional
from onnxscript import evaluator
from onnxscript import opset18 as op
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.onnx._internal.exporter._building import OpRecorder

from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.translations.nodes import integers, number
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

    keeps: int
    """How many tensors the gradient of a step needs."""

    @abstractmethod
    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        """The states after a step, and what its gradient needs."""

    @abstractmethod
    def back(self, gradients: tuple[Tensor | None, ...], kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """From gradients by the states after a step, at least one of which is there: those by `given`, by `recurrent`,
        and by the states before, as far as they do not come by way of `recurrent`."""

    @abstractmethod
    def step_nodes(self, given: Any, recurrent: Any, states: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """`step` in nodes of ONNX."""

    @abstractmethod
    def back_nodes(self, gradients: Sequence[Any], kept: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
        """`back` in nodes of ONNX."""


class Lstm(Kind):
    keeps = 3

    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        hidden, cell, gates = lstm_cell(given, recurrent, states[1])
        return (hidden, cell), (states[1], cell, gates)

    def back(self, gradients: tuple[Tensor | None, ...], kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        by_gates, by_cell = lstm_cell_backward(*gradients, *kept)
        return by_gates, by_gates, [None, by_cell]

    def step_nodes(self, given: Any, recurrent: Any, states: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        hidden, cell, gates = aclnn.ThnnFusedLstmCell(given, recurrent, states[1])
        return (hidden, cell), (states[1], cell, gates)

    def back_nodes(self, gradients: Sequence[Any], kept: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
        by_gates, by_cell = aclnn.ThnnFusedLstmCellBackward(*gradients, *kept)
        return by_gates, by_gates, [None, by_cell]


class Gru(Kind):
    keeps = 5
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

    def step_nodes(self, given: Any, recurrent: Any, states: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        (hidden,) = states
        given_reset, given_update, given_new = op.Split(given, num_outputs=3, axis=-1)
        reset, update, remembered = op.Split(recurrent, num_outputs=3, axis=-1)
        reset, update = op.Sigmoid(op.Add(given_reset, reset)), op.Sigmoid(op.Add(given_update, update))
        new = op.Tanh(op.Add(given_new, op.Mul(reset, remembered)))
        after = op.Add(new, op.Mul(update, op.Sub(hidden, new)))
        return (after,), (reset, update, new, remembered, hidden)

    def back_nodes(self, gradients: Sequence[Any], kept: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
        (gradient,) = gradients
        reset, update, new, remembered, hidden = kept
        one = number(1.0, new)
        by_new = op.Mul(op.Mul(gradient, op.Sub(one, update)), op.Sub(one, op.Mul(new, new)))
        by_update = op.Mul(op.Mul(gradient, op.Sub(hidden, new)), op.Mul(update, op.Sub(one, update)))
        by_reset = op.Mul(op.Mul(by_new, remembered), op.Mul(reset, op.Sub(one, reset)))
        given = op.Concat(by_reset, by_update, by_new, axis=-1)
        recurrent = op.Concat(by_reset, by_update, op.Mul(by_new, reset), axis=-1)
        return given, recurrent, [op.Mul(gradient, update)]


class Plain(Kind):
    """The layer that PyTorch calls RNN."""

    keeps = 1

    def __init__(self, activation: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], node: str) -> None:
        """The activation, its slope by what it has given, and its name in ONNX."""
        self._activation, self._slope, self._node = activation, slope, node

    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        hidden = self._activation(given + recurrent)
        return (hidden,), (hidden,)

    def back(self, gradients: tuple[Tensor | None, ...], kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        (gradient,) = gradients
        assert gradient is not None
        before = gradient * self._slope(kept[0])
        return before, before, [None]

    def step_nodes(self, given: Any, recurrent: Any, states: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        hidden = getattr(op, self._node)(op.Add(given, recurrent))
        return (hidden,), (hidden,)

    def back_nodes(self, gradients: Sequence[Any], kept: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
        (hidden,) = kept
        if self._node == "Relu":
            slope = op.CastLike(op.Greater(hidden, number(0.0, hidden)), hidden)
        else:
            slope = op.Sub(number(1.0, hidden), op.Mul(hidden, hidden))
        before = op.Mul(gradients[0], slope)
        return before, before, [None]


KINDS = {
    "lstm": Lstm(),
    "gru": Gru(),
    "rnn_tanh": Plain(torch.tanh, lambda hidden: 1 - hidden * hidden, "Tanh"),
    "rnn_relu": Plain(torch.relu, lambda hidden: (hidden > 0).to(hidden.dtype), "Relu"),
}


# --- a layer in one direction -----------------------------------------------------------------------------------------


def _sum(terms: Sequence[Tensor | None]) -> Tensor | None:
    given = [term for term in terms if term is not None]
    return sum(given[1:], given[0]) if given else None


class _Direction(torch.autograd.Function):
    """From a sequence (T, N, I) and states (1, N, H) to the hidden states (T, N, H), and the states in the end."""

    @staticmethod
    def forward(
        ctx: Any,
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
        given = functional.linear(sequence, input_weight, input_bias)
        turned, kind = weight.t(), KINDS[name]
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


# --- the same over a number of steps that only a run will tell -------------------------------------------------------


def _body(name: str, inputs: Sequence[ir.Value], write: Callable[..., Sequence[Any]]) -> ir.Graph:
    """What a Scan does in each step."""
    recorder = OpRecorder(evaluator.default().opset, {})
    with evaluator.default_as(recorder):
        # An output may be an input, or another output, which Scan does not take.
        outputs = [op.Identity(value) for value in write(*inputs)]
    for i, node in enumerate(recorder.nodes):
        for j, value in enumerate(node.outputs):
            value.name = f"{name}_{i}_{j}"
    return ir.Graph(inputs, outputs, nodes=recorder.nodes, name=name)


def _scan(
    name: str, states: Sequence[Any], sequences: Sequence[Any], stacked: int, backwards: bool, write: Callable[..., Any]
) -> Sequence[Any]:
    """From states (1, N, H) and sequences (T, N, ...) to the states in the end and what each step gives, one upon the
    other: `write` writes a step's nodes, and gives the next states, then what it adds to so many stacks."""
    first = [op.Squeeze(state, integers([0])) for state in states]
    inputs = [
        ir.Value(name=f"{name}_in_{i}", type=ir.TensorType(value.dtype), shape=ir.Shape(value.shape[1:]))
        for i, value in enumerate((*states, *sequences))
    ]
    node = ir.node(
        "Scan",
        [*first, *sequences],
        {
            "body": _body(name, inputs, write),
            "num_scan_inputs": len(sequences),
            "scan_input_directions": [int(backwards)] * len(sequences),
            "scan_output_directions": [int(backwards)] * stacked,
        },
        num_outputs=len(states) + stacked,
    )
    evaluator.default().nodes.append(node)
    ends, stacks = node.outputs[: len(states)], node.outputs[len(states) :]
    return [*(op.Unsqueeze(end, integers([0])) for end in ends), *stacks]


def _loop_nodes(
    kind: str, backwards: bool, given: Any, weight: Any, bias: Any, projection: Any, states: Sequence[Any]
) -> Sequence[Any]:
    def step(*values: Any) -> Sequence[Any]:
        *before, now = values
        recurrent = op.MatMul(before[0], weight)
        if bias is not None:
            recurrent = op.Add(recurrent, bias)
        (made, *others), own = KINDS[kind].step_nodes(now, recurrent, before)
        hidden = made if projection is None else op.MatMul(made, projection)
        return [hidden, *others, hidden, before[0], *([] if projection is None else [made]), *own]

    stacked = 2 + (projection is not None) + KINDS[kind].keeps
    return _scan(f"{given.name}_loop", states, [given], stacked, backwards, step)


def _loop_shapes(
    kind: str,
    backwards: bool,
    given: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
    states: list[Tensor],
) -> list[Tensor]:
    row = given.new_empty((1, *given.shape[1:]))
    (made, *_), own = KINDS[kind].step(row, row, tuple(states))
    stacks = [states[0], states[0], *([] if projection is None else [made]), *own]
    return [*_like(*states), *(given.new_empty((given.shape[0], *one.shape[1:])) for one in stacks)]


@whole_operator(TABLE, _loop_nodes, _loop_shapes)
def recurrent_loop(
    kind: str,
    backwards: bool,
    given: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
    states: list[Tensor],
) -> list[Tensor]:
    """The states in the end; then of all steps (T, N, ...) the hidden states, those before, what a step made of them
    before its projection, if there is one, and what its gradient needs."""
    rows: list[Tensors] = []
    order = range(given.shape[0])
    for t in reversed(order) if backwards else order:
        recurrent = states[0] @ weight
        (made, *others), own = KINDS[kind].step(
            given[t : t + 1], recurrent if bias is None else recurrent + bias, tuple(states)
        )
        hidden = made if projection is None else made @ projection
        rows.append((hidden, states[0], *([] if projection is None else [made]), *own))
        states = [hidden, *others]
    stacks = zip(*(reversed(rows) if backwards else rows), strict=True)
    return [*(state.clone() for state in states), *(torch.cat(stack) for stack in stacks)]


def _loop_back_nodes(
    kind: str,
    backwards: bool,
    by_outputs: Any,
    by_states: Sequence[Any],
    weight: Any,
    projection: Any,
    kept: Sequence[Any],
) -> Sequence[Any]:
    def step(*values: Any) -> Sequence[Any]:
        gradients, (by_output, *own) = list(values[: len(by_states)]), values[len(by_states) :]
        gradients[0] = shown = op.Add(gradients[0], by_output)
        if projection is not None:
            gradients[0] = op.MatMul(shown, projection)
        given, recurrent, (by_hidden, *others) = KINDS[kind].back_nodes(gradients, own)
        before = op.MatMul(recurrent, weight)
        before = before if by_hidden is None else op.Add(by_hidden, before)
        return [before, *others, given, recurrent, *([] if projection is None else [shown])]

    # The names of the steps before are those of one loop only.
    name, stacked = f"{kept[0].name}_back", 2 + (projection is not None)
    return _scan(name, by_states, [by_outputs, *kept], stacked, not backwards, step)


def _loop_back_shapes(
    kind: str,
    backwards: bool,
    by_outputs: Tensor,
    by_states: list[Tensor],
    weight: Tensor,
    projection: Tensor | None,
    kept: list[Tensor],
) -> list[Tensor]:
    gates = by_outputs.new_empty((*by_outputs.shape[:2], weight.shape[0]))
    return [*_like(*by_states), *_like(gates, gates, *([] if projection is None else [by_outputs]))]


@whole_operator(TABLE, _loop_back_nodes, _loop_back_shapes)
def recurrent_loop_backward(
    kind: str,
    backwards: bool,
    by_outputs: Tensor,
    by_states: list[Tensor],
    weight: Tensor,
    projection: Tensor | None,
    kept: list[Tensor],
) -> list[Tensor]:
    """The gradients by the states in the beginning; then of all steps (T, N, ...) those by what comes from the input,
    by what comes from the hidden state, and, if there is a projection, by what it gives."""
    gradients: list[Tensor] = list(by_states)
    rows: list[Tensors] = []
    order = range(by_outputs.shape[0])
    for t in order if backwards else reversed(order):
        shown = gradients[0] + by_outputs[t : t + 1]
        made = shown if projection is None else shown @ projection
        own = tuple(stack[t : t + 1] for stack in kept)
        given, recurrent, (by_hidden, *others) = KINDS[kind].back((made, *gradients[1:]), own)
        before = recurrent @ weight
        gradients = [before if by_hidden is None else by_hidden + before, *(g for g in others if g is not None)]
        rows.append((given, recurrent, *([] if projection is None else [shown])))
    stacks = zip(*(rows if backwards else reversed(rows)), strict=True)
    return [*(gradient.clone() for gradient in gradients), *(torch.cat(stack) for stack in stacks)]


class _ScannedDirection(torch.autograd.Function):
    """As _Direction."""

    @staticmethod
    def forward(
        ctx: Any,
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
        given = functional.linear(sequence, input_weight, input_bias)
        turned = None if projection is None else projection.t()
        found = recurrent_loop(name, backwards, given, weight.t(), bias, turned, list(states))
        ends, (hidden, *kept) = found[: len(states)], found[len(states) :]
        ctx.name, ctx.backwards, ctx.projected = name, backwards, projection is not None
        ctx.has_biases = input_bias is not None, bias is not None
        ctx.save_for_backward(sequence, input_weight, weight, *([] if projection is None else [projection]), *kept)
        return hidden, *ends

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_outputs: Tensor, *by_states: Tensor) -> Any:
        sequence, input_weight, weight, *rest = ctx.saved_tensors
        projection = rest.pop(0) if ctx.projected else None
        before = rest.pop(0)
        made = rest.pop(0) if ctx.projected else None
        found = recurrent_loop_backward(ctx.name, ctx.backwards, by_outputs, list(by_states), weight, projection, rest)
        gradients, (by_given, by_recurrent, *by_projected) = found[: len(by_states)], found[len(by_states) :]
        given, recurrent = by_given.flatten(0, 1), by_recurrent.flatten(0, 1)
        return (
            None,
            None,
            by_given @ input_weight if ctx.needs_input_grad[2] else None,
            given.t() @ sequence.flatten(0, 1),
            given.sum(0) if ctx.has_biases[0] else None,
            recurrent.t() @ before.flatten(0, 1),
            recurrent.sum(0) if ctx.has_biases[1] else None,
            None if made is None else by_projected[0].flatten(0, 1).t() @ made.flatten(0, 1),
            *gradients,
        )


# --- PyTorch's functions ----------------------------------------------------------------------------------------------


def _layers(
    name: str,
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
    kind = KINDS[name]
    sequence = input.transpose(0, 1) if batch_first else input
    of_any_length = is_symbolic(sequence.shape[0])
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
            output, *end = (_ScannedDirection if of_any_length else _Direction).apply(
                name,
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


def _instead_of(name: str) -> Callable[..., Tensors]:
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
        return _layers(name, input, states, params, *settings)

    return layers


FUNCTIONS = {getattr(torch, name): _instead_of(name) for name in KINDS}
