"""A layer of an LSTM in one direction: DynamicRNN, over any number of steps, and DynamicRNNGrad."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.autograd.function import once_differentiable

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.operators.recurrent.cells import Tensors


class LstmDirection(torch.autograd.Function):
    """From a sequence (T, N, I) and states (1, N, H) to the hidden states (T, N, H), and the final states, which change
    only where the mask (T, N) is True."""

    @staticmethod
    def forward(
        ctx: Any,
        mask: Tensor | None,
        backwards: bool,
        sequence: Tensor,
        input_weight: Tensor,
        input_bias: Tensor | None,
        weight: Tensor,
        hidden: Tensor,
        cell: Tensor,
    ) -> Tensors:
        # In two dimensions, as PyTorch adds the bias of a transposed sequence apart from the product.
        given = functional.linear(sequence.flatten(0, 1), input_weight, input_bias).unflatten(0, sequence.shape[:2])
        before, init_c = hidden.squeeze(0), cell.squeeze(0)
        output, cells, gates = domain_ops.DynamicRNN(given, weight, before, init_c, mask, direction=int(backwards))
        ctx.backwards, ctx.has_bias = backwards, input_bias is not None
        ctx.save_for_backward(mask, sequence, input_weight, weight, hidden, init_c, output, cells, gates)
        ctx.set_materialize_grads(False)
        last = 0 if backwards else -1
        return output, output[last].unsqueeze(0), cells[last].unsqueeze(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor | None, by_hidden: Tensor | None, by_cell: Tensor | None) -> Any:
        mask, sequence, input_weight, weight, hidden, init_c, output, cells, gates = ctx.saved_tensors
        by_last = (None if gradient is None else gradient.squeeze(0) for gradient in (by_hidden, by_cell))
        by_gates, by_before, by_init_c = domain_ops.DynamicRNNGrad(
            by_output, *by_last, weight, init_c, cells, gates, mask, direction=int(ctx.backwards)
        )
        before = torch.cat([output[1:], hidden] if ctx.backwards else [hidden, output[:-1]])
        rows = by_gates.flatten(0, 1)
        return (
            None,
            None,
            by_gates @ input_weight if ctx.needs_input_grad[2] else None,
            rows.t() @ sequence.flatten(0, 1),
            rows.sum(0) if ctx.has_bias else None,
            rows.t() @ before.flatten(0, 1),
            by_before.unsqueeze(0),
            by_init_c.unsqueeze(0),
        )
