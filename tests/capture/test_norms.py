"""Gradients of normalization in captured steps, compared with PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captures import compared, gradients
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops.torch.capture import Capture


def count(captured: Capture, op_type: str) -> int:
    return sum(node.op_type == op_type for node in captured.model.graph.node)


class Norms(nn.Module):
    """Over the last axis, over two axes without a weight, and of an input without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.LayerNorm(6), nn.LayerNorm(6, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.layer_norm(self.first(x).sin(), (5, 6)) + x)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * torch.linspace(-1, 2, 30, dtype=x.dtype).reshape(5, 6)).square().mean()


def rows(batch: int) -> Tensor:
    return torch.randn(batch, 5, 6, generator=torch.Generator().manual_seed(batch)) * 3 + 1


def test_by_op() -> None:
    torch.manual_seed(0)
    captured = gradients(Norms(), loss, (rows(3),))
    assert count(captured, "LayerNormBackward") == 3
    assert captured.inference is None or not any(
        n.op_type == "LayerNormBackward" for n in captured.inference.graph.node
    )
    compared(Norms(), loss, [rows(3), rows(1)], {0: Dim("N")})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Norms().to(dtype), rows(3).to(dtype)
    captured = gradients(model, loss, (x,))
    assert count(captured, "LayerNormBackward") == 3
    if dtype is not torch.float64:
        return
    given = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    names = [f"grad.{name}" for name in given]
    found = onnx_ops.InferenceSession(captured.model).run(names, {**given, "x": rows(3).double().numpy()})
    expected = torch.autograd.grad(loss(model, x), list(model.parameters()))
    for name, got, wanted in zip(names, found, expected, strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-12, atol=1e-13, err_msg=name)  # float64 sums


def test_normalized_axes_of_dynamic_size() -> None:
    """They have no attribute of the op: the gradient is in the nodes of its formula."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)

    def weighted(model: nn.Module, x: Tensor) -> Tensor:
        hidden = model(x)
        return (functional.layer_norm(hidden, hidden.shape[1:]) * x[..., :4]).square().mean()

    dims = {1: Dim("T", min=2)}
    captured = gradients(model, weighted, (torch.randn(3, 5, 6),), dynamic_shapes=(dims,))
    assert count(captured, "LayerNormBackward") == 0
    compared(model, weighted, [torch.randn(3, 5, 6), torch.randn(3, 7, 6)], dims)


def test_second_derivatives() -> None:
    """A penalty of the gradient by the input, as of a critic."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1, bias=False))

    def penalty(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    compared(model, penalty, [torch.randn(4, 6), torch.randn(7, 6)], {0: Dim("N")})


class GroupNorms(nn.Module):
    """Of one group, of several, of one channel each without scales, and of channels without space."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.several, self.last = nn.GroupNorm(1, 6), nn.GroupNorm(3, 6, eps=0.1), nn.GroupNorm(2, 6)
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        image = functional.group_norm(self.several(self.one(x.mT)).sin() + x.mT, 6)
        return self.last(image[..., 1] + image.sum(-1)).unsqueeze(-1) + image


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.full)], ids=str)
def test_group_norms_by_op(dtype: torch.dtype) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * torch.linspace(-1, 2, 5, dtype=x.dtype)).square().mean()

    torch.manual_seed(0)
    model = GroupNorms().to(dtype)
    captured = compared(model, loss, [rows(3).to(dtype), rows(1).to(dtype)], {0: Dim("N")})
    assert count(captured, "GroupNormBackward") == 4


@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norms_of_lines(channels_last: bool) -> None:
    """Of images with an axis of size 1, whose gradient in PyTorch is wrong if it has another order in memory."""
    torch.manual_seed(0)
    lines, weights = torch.randn(3, 4, 5, 1), torch.randn(3, 4, 5, 1)

    def last(x: Tensor) -> Tensor:
        return x.transpose(1, 3).contiguous().transpose(1, 3)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(last(x) if channels_last else x)
        return (y * (weights if channels_last else last(weights))).sum()

    captured = gradients(nn.BatchNorm2d(4), loss, (lines,))
    got = onnx_ops.InferenceSession(captured.model).run(
        ["grad.weight", "grad.bias"], captured.state | {"x": lines.numpy()}
    )
    normal = (lines - lines.mean((0, 2, 3), True)) / (lines.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    for array, each in zip(got, (weights * normal, weights), strict=True):
        # Sums of 15 terms in float32.
        np.testing.assert_allclose(array, each.sum((0, 2, 3)).numpy(), rtol=1e-5, atol=1e-5)


def test_norms_of_one_image() -> None:
    """With its channels last in the gradient, where PyTorch's is wrong; that of the same image twice is right."""
    torch.manual_seed(0)
    image, scales, shifts = torch.randn(1, 5, 3, 3), nn.Parameter(torch.rand(3, 5)), nn.Parameter(torch.randn(3, 5))
    model = nn.ParameterList([scales, shifts])
    weights = torch.randn(9, 5)

    def loss(model: nn.ParameterList, x: Tensor) -> Tensor:
        (a, b, c), (d, e, f) = model
        mean, variance = torch.linspace(-1, 1, 5), torch.linspace(1, 2, 5)
        results = [
            functional.batch_norm(x, None, None, a, d, training=True),
            functional.batch_norm(x, mean, variance, b, e),
            functional.instance_norm(x, None, None, c, f),
        ]
        return sum(((y.flatten(2).mT * weights).sum() for y in results), x.new_zeros(()))

    captured = gradients(model, loss, (image,))
    names = ["loss", "grad.0", "grad.1"]
    got = onnx_ops.InferenceSession(captured.model).run(names, captured.state | {"x": image.numpy()})
    value = loss(model, torch.cat([image, image])) / 2
    wanted = value, *torch.autograd.grad(value, [scales, shifts])
    for name, array, tensor in zip(names, got, wanted, strict=True):
        # Sums of 9 terms in float32.
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
