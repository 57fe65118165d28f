"""A layer of an LSTM in one direction: DynamicRNN, over any number of steps, and DynamicRNNGrad."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.operators.recurrent.again import Gradients, gradients_again
from onnx_ops.torch.operators.recurrent.cells import Tensors, of_inputs


class LstmDirection(torch.autograd.Function):
    """From a sequence (T, N, I) and states (1, N, H) to the hidden states (T, N, H), and the final states, which change
    only where the mask (T, N) is True."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        mask: Tensor | None,
        backwards: bool,
        sequence: Tensor,
        input_weight: Tensor,
        input_bias: Tensor | None,
        weight: Tensor,
        hidden: Tensor,
        cell: Tensor,
    ) -> Tensors:
        given = of_inputs(sequence, input_weight, input_bias)
        before, init_c = hidden.squeeze(0), cell.squeeze(0)
        output, cells, gates = domain_ops.DynamicRNN(given, weight, before, init_c, mask, direction=int(backwards))
        ctx.backwards = backwards
        inputs = sequence, input_weight, input_bias, weight, hidden, cell
        ctx.save_for_backward(mask, *inputs, output, cells, gates)
        ctx.set_materialize_grads(False)
        last = 0 if backwards else -1
        return output, output[last].unsqueeze(0), cells[last].unsqueeze(0)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> Any:
        gradients = functools.partial(LstmDirection._gradients, ctx, *grads)
        if not torch.is_grad_enabled():
            return None, None, *gradients()
        mask, *inputs = ctx.saved_tensors[:7]
        inputs[4:4] = None, None  # the bias of the hidden state, and the projection

        def first() -> Gradients:
            found = list(gradients())
            found[4:4] = None, None
            return found

        found = list(gradients_again("lstm", ctx.backwards, mask, inputs, grads, first))
        return None, None, *found[:4], *found[6:]

    @staticmethod
    def _gradients(
        ctx: FunctionCtx, by_output: Tensor | None, by_hidden: Tensor | None, by_cell: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        mask, sequence, input_weight, input_bias, weight, hidden, cell, output, cells, gates = ctx.saved_tensors
        init_c = cell.squeeze(0)
        by_last = (None if gradient is None else gradient.squeeze(0) for gradient in (by_hidden, by_cell))
        by_gates, by_before, by_init_c = domain_ops.DynamicRNNGrad(
            by_output, *by_last, weight, init_c, cells, gates, mask, direction=int(ctx.backwards)
        )
        before = torch.cat([output[1:], hidden] if ctx.backwards else [hidden, output[:-1]])
        rows = by_gates.flatten(0, 1)
        return (
            by_gates @ input_weight if ctx.needs_input_grad[2] else None,
            rows.t() @ sequence.flatten(0, 1),
            None if input_bias is None else rows.sum(0),
            rows.t() @ before.flatten(0, 1),
            by_before.unsqueeze(0),
            by_init_c.unsqueeze(0),
        )
