"""Hardshrink and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as functional
from onnxscript import opset18 as op
from torch import Tensor

from onnx_ops.torch.whole.operators import Table, aclnn, whole_operator

TABLE: Table = {}
aten = torch.ops.aten


def _limit(value: Any, lambd: float) -> float:
    """`lambd` rounded to the dtype of a value, as PyTorch compares with it."""
    return float(np.asarray(lambd).astype(value.dtype.numpy()))


def _shrunk(limited: Any, self: Any, lambd: float) -> Any | None:
    """`limited` where self is beyond the limit, else 0, if the attribute of a node cannot say that limit."""
    if lambd < 0:  # nothing is within such a limit
        return op.Identity(limited)
    if self.dtype is ir.DataType.DOUBLE and float(np.float32(lambd)) != lambd:
        limit, zero = (op.Constant(value=ir.tensor(np.asarray(number, np.float64))) for number in (lambd, 0.0))
        return op.Where(op.LessOrEqual(op.Abs(self), limit), zero, limited)
    return None


def _forward(self: Any, lambd: float = 0.5) -> Any:
    shrunk = _shrunk(self, self, lambd)
    return aclnn.Hardshrink(self, lambd=_limit(self, lambd)) if shrunk is None else shrunk


def _backward(grad: Any, self: Any, lambd: float) -> Any:
    shrunk = _shrunk(grad, self, lambd)
    return aclnn.HardshrinkBackward(grad, self, lambd=_limit(self, lambd)) if shrunk is None else shrunk


TABLE[aten.hardshrink.default] = _forward
TABLE[aten.hardshrink_backward.default] = _backward


def _like(self: Tensor, *rest: Any) -> Tensor:
    return self.new_empty(self.shape)


@whole_operator(TABLE, _forward, _like)
def hardshrink(self: Tensor, lambd: float) -> Tensor:
    return aten.hardshrink(self, lambd).clone()


@whole_operator(TABLE, _backward, _like)
def hardshrink_backward(grad: Tensor, self: Tensor, lambd: float) -> Tensor:
    return aten.hardshrink_backward(grad.contiguous(), self.contiguous(), lambd).clone()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.lambd = inputs[1]


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
    return hardshrink_backward(grad, *ctx.saved_tensors, ctx.lambd), None


hardshrink.register_autograd(_gradient, setup_context=_setup)


def _functional(input: Tensor, lambd: float = 0.5) -> Tensor:
    return hardshrink(input, float(lambd))


FUNCTIONS = {function: _functional for function in (functional.hardshrink, torch.hardshrink, torch.Tensor.hardshrink)}
