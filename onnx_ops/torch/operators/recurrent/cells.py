"""The cells of recurrent layers, LSTM, GRU and RNN: one step of each, forward and backward.

PyTorch decomposes a layer into steps each of which multiplies by all weights, forward and backward. Here a step has
only the product that depends on the step before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.base.nodes import Value, aclnn, number, op

Tensors = tuple[Tensor, ...]


# --- tensors of a layer -----------------------------------------------------------------------------------------------


def of_inputs(sequence: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The products (T, N, G) of a sequence (T, N, I) with weights, of all steps.

    In two dimensions, as PyTorch adds the bias of a transposed sequence apart from the product.
    """
    return functional.linear(sequence.flatten(0, 1), weight, bias).unflatten(0, sequence.shape[:2])


def like(*tensors: Tensor) -> Tensors:
    """FakeTensors of the same shapes: while a graph is traced faster than the functions below."""
    return tuple(tensor.new_empty(tensor.shape) for tensor in tensors)


# --- kinds of layers --------------------------------------------------------------------------------------------------


class Kind(ABC):
    """One step of a kind of layer, forward and backward.

    The states are the hidden state and, of an LSTM, the cell state. `given` is the product of the layer's input with
    its weights, `recurrent` that of the hidden state.
    """

    keeps_recurrent_bias_apart = False
    """Whether the bias of the hidden state cannot be added to `given`."""

    keeps: int
    """How many tensors the gradient of a step needs."""

    @abstractmethod
    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        """The states after a step, and what its gradient needs."""

    @abstractmethod
    def back(self, gradients: Tensors, kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """The gradients with respect to `given`, to `recurrent`, and to the states before, without the part through
        `recurrent`, which are None if there is no other.

        Args:
            gradients: with respect to the states after the step.
            kept: what `step` returned for this.
        """

    @abstractmethod
    def step_nodes(
        self, given: Value, recurrent: Value, states: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        """`step` in nodes of ONNX."""

    @abstractmethod
    def back_nodes(
        self, gradients: Sequence[Value], kept: Sequence[Value]
    ) -> tuple[Value, Value, Sequence[Value | None]]:
        """`back` in nodes of ONNX."""


class Lstm(Kind):
    keeps = 3

    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        hidden, cell, gates = domain_ops.ThnnFusedLstmCell(given, recurrent, states[1])
        return (hidden, cell), (states[1], cell, gates)

    def back(self, gradients: Tensors, kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        by_gates, by_cell = domain_ops.ThnnFusedLstmCellBackward(*gradients, *kept)
        return by_gates, by_gates, [None, by_cell]

    def step_nodes(
        self, given: Value, recurrent: Value, states: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        hidden, cell, gates = aclnn.ThnnFusedLstmCell(given, recurrent, states[1])
        return (hidden, cell), (states[1], cell, gates)

    def back_nodes(
        self, gradients: Sequence[Value], kept: Sequence[Value]
    ) -> tuple[Value, Value, Sequence[Value | None]]:
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

    def back(self, gradients: Tensors, kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        (gradient,) = gradients
        reset, update, new, remembered, hidden = kept
        by_new = gradient * (1 - update) * (1 - new * new)
        by_update = gradient * (hidden - new) * update * (1 - update)
        by_reset = by_new * remembered * reset * (1 - reset)
        given = torch.cat([by_reset, by_update, by_new], -1)
        recurrent = torch.cat([by_reset, by_update, by_new * reset], -1)
        return given, recurrent, [gradient * update]

    def step_nodes(
        self, given: Value, recurrent: Value, states: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        (hidden,) = states
        given_reset, given_update, given_new = op.Split(given, num_outputs=3, axis=-1)
        reset, update, remembered = op.Split(recurrent, num_outputs=3, axis=-1)
        reset, update = op.Sigmoid(op.Add(given_reset, reset)), op.Sigmoid(op.Add(given_update, update))
        new = op.Tanh(op.Add(given_new, op.Mul(reset, remembered)))
        after = op.Add(new, op.Mul(update, op.Sub(hidden, new)))
        return (after,), (reset, update, new, remembered, hidden)

    def back_nodes(
        self, gradients: Sequence[Value], kept: Sequence[Value]
    ) -> tuple[Value, Value, Sequence[Value | None]]:
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
        """The activation, its derivative as a function of its result, and its name in ONNX."""
        self._activation, self._slope, self._node = activation, slope, node

    def step(self, given: Tensor, recurrent: Tensor, states: Tensors) -> tuple[Tensors, Tensors]:
        hidden = self._activation(given + recurrent)
        return (hidden,), (hidden,)

    def back(self, gradients: Tensors, kept: Tensors) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        (gradient,) = gradients
        before = gradient * self._slope(kept[0])
        return before, before, [None]

    def step_nodes(
        self, given: Value, recurrent: Value, states: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        hidden = getattr(op, self._node)(op.Add(given, recurrent))
        return (hidden,), (hidden,)

    def back_nodes(
        self, gradients: Sequence[Value], kept: Sequence[Value]
    ) -> tuple[Value, Value, Sequence[Value | None]]:
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
