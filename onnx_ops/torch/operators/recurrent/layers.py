"""Recurrent layers: LSTM, GRU and RNN. An LSTM without projections is DynamicRNN in each direction, others are a Scan.

The input of a layer is multiplied by its weights once for all steps, and so are the gradients of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.utils._pytree import tree_map_only

from onnx_ops.torch.base.requirements import require_elements
from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.operators.recurrent.cells import KINDS, Tensors
from onnx_ops.torch.operators.recurrent.lstm import LstmDirection
from onnx_ops.torch.operators.recurrent.packing import Packing
from onnx_ops.torch.operators.recurrent.scan import Direction

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
                output, *end = Direction.apply(
                    mask, name, backwards, sequence, input_weight, bias[0], weight, bias[1], projection, *before
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
