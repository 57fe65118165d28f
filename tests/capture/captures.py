"""Captures without the inference graph, in two thirds of the time, for tests that do not look at it; comparisons."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim
from update_order import late_readers

import onnx_ops
import onnx_ops.torch
from onnx_ops.torch.capture import Capture
from onnx_ops.training.in_place import in_place
from onnx_ops.training.step_runner import loss_output

gradients = functools.partial(onnx_ops.torch.gradients, inference=False)


def training_step(*args: Any, **options: Any) -> Capture:
    """A captured step, whose state can be updated in place, with updates after all readers."""
    capture = onnx_ops.torch.training_step(*args, **{"inference": False, **options})
    rewritten = in_place(capture.model, loss_output(capture.model))
    assert rewritten is not None
    assert late_readers(rewritten.model) == []
    return capture


def compared(
    model: nn.Module, loss: Callable[..., Tensor], examples: list[Tensor], dims: dict[int, Dim], **options: Any
) -> Capture:
    """Capture with the first example, and compare loss and gradients with float64 at all."""
    capture = gradients(model, loss, (examples[0],), dynamic_shapes=(dims,), **options)
    session = onnx_ops.InferenceSession(capture.model)
    for x in examples:
        _compare(session, capture, loss, (model.double(), x.double()), x, bound=1e-5, least=1.0)
        model.to(examples[0].dtype)
    return capture


def compared_at(
    model: nn.Module,
    loss: Callable[..., Tensor],
    shapes: list[tuple[int, ...]],
    *dims: Any,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Capture with an example of the first shape, and compare loss and gradients in the same dtype at all."""
    torch.manual_seed(0)
    examples = [torch.randn(shape, dtype=dtype) for shape in shapes]
    capture = gradients(model, loss, (examples[0],), dynamic_shapes=(dict(enumerate(dims)),))
    session = onnx_ops.InferenceSession(capture.model)
    for x in examples:
        _compare(session, capture, loss, (model, x), x, bound=2e-5 if dtype is torch.float32 else 1e-13, least=0.0)


def _compare(
    session: onnx_ops.InferenceSession,
    capture: Capture,
    loss: Callable[..., Tensor],
    wanted_of: tuple[nn.Module, Tensor],
    x: Tensor,
    bound: float,
    least: float,
) -> None:
    """Compare with PyTorch's loss and gradients, within `bound` of the largest element of each, or of `least`."""
    model, _ = wanted_of
    value = loss(*wanted_of)
    wanted = torch.autograd.grad(value, list(model.parameters()))
    names = ["loss", *(f"grad.{name}" for name, _ in model.named_parameters())]
    got = session.run(names, capture.state | {"x": x.numpy()})
    for name, array, tensor in zip(names, got, (value.detach(), *wanted), strict=True):
        scale = max(float(tensor.abs().max()), least)
        np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=bound * scale, err_msg=name)
