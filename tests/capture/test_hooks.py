"""Hooks that change gradients are part of a capture; those that run outside of a step are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn

import onnx_ops
import onnx_ops.torch
from onnx_ops.torch import CaptureError


def mean_square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def test_hooks_of_parameters_and_modules_change_gradients() -> None:
    """As masks of pruned weights do; PyTorch's own gradients come from backward(), which calls the same hooks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    mask = torch.tensor([[1.0], [0.0], [1.0]])
    model[0].weight.register_hook(lambda gradient: gradient * mask)
    model[2].register_full_backward_hook(lambda module, before, after: (before[0] / 2,))
    x = torch.randn(4, 3)
    mean_square(model, x).backward()
    capture = gradients(model, mean_square, (x,))
    wanted = {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    got = onnx_ops.InferenceSession(capture.model).run([*wanted], capture.state | {"x": x.numpy()})
    for (name, gradient), array in zip(wanted.items(), got, strict=True):
        assert gradient is not None
        np.testing.assert_allclose(array, gradient.numpy(), rtol=1e-5, atol=1e-7, err_msg=name)
    assert not wanted["grad.0.weight"][1].any()


def test_hooks_after_the_accumulation_of_gradients_are_refused() -> None:
    model = nn.Linear(3, 2)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(CaptureError, match="'weight' has a hook of register_post_accumulate_grad_hook"):
        gradients(model, mean_square, (torch.ones(4, 3),))


def test_a_loss_that_calls_backward_is_refused() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        value = mean_square(model, x)
        value.backward()
        return value

    with pytest.raises(CaptureError, match="return it without a call of backward"):
        gradients(nn.Linear(3, 2), loss, (torch.ones(4, 3),))


def test_a_failure_in_evaluation_mode_says_how_to_leave_that_graph_out() -> None:
    class Clipping(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            result.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
            return result

    with pytest.raises(CaptureError, match=r"doesn't require gradient.*inference=False leaves that graph out"):
        onnx_ops.torch.gradients(Clipping(3, 2), mean_square, (torch.ones(4, 3),))
    gradients(Clipping(3, 2), mean_square, (torch.ones(4, 3),))
