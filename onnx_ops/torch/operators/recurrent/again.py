"""Gradients of a recurrent layer in one direction that are to be differentiated again: those of PyTorch's cells."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.nn import functional

from onnx_ops.torch.base.second_derivatives import gradients_of


def _lstm_cell(
    given: Tensor, states: Sequence[Tensor], input_weight: Tensor, weight: Tensor, *biases: Tensor | None
) -> Sequence[Tensor]:
    """torch.lstm_cell takes no hidden states of another size than the cell states, as projections have."""
    gates = functional.linear(given, input_weight, biases[0]) + functional.linear(states[0], weight, biases[1])
    into, forget, new, out = gates.chunk(4, -1)
    cell = forget.sigmoid() * states[1] + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


CELLS: dict[str, Callable[..., Any]] = {
    "lstm": _lstm_cell,
    "gru": torch.gru_cell,
    "rnn_tanh": torch.rnn_tanh_cell,
    "rnn_relu": torch.rnn_relu_cell,
}

Gradients = Sequence[Tensor | None]


def gradients_again(
    name: str,
    backwards: bool,
    mask: Tensor | None,
    inputs: Gradients,
    grads: Gradients,
    gradients: Callable[[], Gradients],
) -> Gradients:
    """The gradients of a layer in one direction with respect to its inputs.

    Over a static number of steps, PyTorch differentiates them any number of times. Over others it raises an error.

    Args:
        name: of the kind of layer.
        backwards: the direction.
        mask: which steps there are; None if all are.
        inputs: the sequence (T, N, I), the weights of the input and their bias, those of the hidden state and theirs,
            the projection, and the states (1, N, H); None for what the layer does not have.
        grads: with respect to the hidden states and the final states.
        gradients: computes them as if they were not differentiated again.
    """
    sequence = inputs[0]
    assert sequence is not None
    if mask is None and not is_symbolic(sequence.shape[0]):
        return gradients_of(functools.partial(_steps, name, backwards), inputs, grads)
    with torch.no_grad():
        found = gradients()
    there = [gradient for gradient in found if gradient is not None]
    marked = iter(_Once.apply(name, len(there), *there, *inputs, *grads))
    return [None if gradient is None else next(marked) for gradient in found]


def _steps(
    name: str,
    backwards: bool,
    sequence: Tensor,
    input_weight: Tensor,
    input_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
    *states: Tensor,
) -> list[Tensor]:
    """The hidden states (T, N, H), and the final states."""
    now = [state.squeeze(0) for state in states]
    hidden = []
    for row in reversed(sequence.unbind(0)) if backwards else sequence.unbind(0):
        after = CELLS[name](row, now if name == "lstm" else now[0], input_weight, weight, input_bias, bias)
        now = list(after) if name == "lstm" else [after]
        if projection is not None:
            now[0] = now[0] @ projection.t()
        hidden.append(now[0])
    return [torch.stack(hidden[::-1] if backwards else hidden), *(state.unsqueeze(0) for state in now)]


class _Once(torch.autograd.Function):
    """The first tensors, which depend on all others in a way that cannot be differentiated."""

    @staticmethod
    def forward(ctx: FunctionCtx, name: str, count: int, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.name = name
        return tuple(None if tensor is None else tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Any:
        kind = ctx.name.split("_")[0].upper()
        raise NotImplementedError(
            f"the gradients of a layer {kind} are differentiated again, as by create_graph=True, over a number of steps"
            " that is dynamic or that of packed sequences; let dynamic_shapes not name it, and call the layer with"
            " padded sequences"
        )
