"""Max pools in captured graphs, compared with PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from captures import compared
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops
from onnx_ops.torch import gradients

# Windows disjoint and overlapping, with padding, with dilation, and with ceil_mode.
WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "stride": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "dilation": (2, 1)},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
]


class Pools(nn.Module):
    """All pools of one convolution, of planes, of unbatched planes and of lines."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x)
        total = torch.zeros((), dtype=x.dtype)
        for window in WINDOWS:
            total = total + functional.max_pool2d(x, **window).square().sum()
        total = total + functional.max_pool2d(x[0], 2).square().sum()
        return total + functional.max_pool1d(x[:, 0], 3, 1).square().sum()


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.full)], ids=str)
def test_pools(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = Pools().to(dtype)
    x = torch.randn(3, 2, 7, 6, dtype=dtype)
    capture = gradients(network, lambda m, x: m(x), (x,), dynamic_shapes=({0: torch.export.Dim("N")},))
    kinds = [node.op_type for node in capture.model.graph.node]
    assert kinds.count("MaxPool2dWithIndices") == kinds.count("MaxPool2dWithIndicesBackward") == len(WINDOWS) + 2
    assert "MaxPool" not in kinds
    session = onnx_ops.InferenceSession(capture.model)
    x = torch.randn(5, 2, 7, 6, dtype=dtype)
    network(x).backward()
    got = session.run(["grad.convolution.weight"], capture.state | {"x": x.numpy()})[0]
    gradient = network.convolution.weight.grad
    assert gradient is not None
    off = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]  # sums of a few hundred terms in another order
    np.testing.assert_allclose(got, gradient.numpy(), rtol=0, atol=off * float(gradient.abs().max()))


def test_pools_over_volumes() -> None:
    """Batched and unbatched, with overlapping windows, padding and ceil_mode."""

    class Volumes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            total = functional.max_pool3d(x, 3, 2, 1).square().sum() + functional.max_pool3d(x[0], 2).square().sum()
            return total + functional.max_pool3d(x, (2, 1, 3), ceil_mode=True).square().sum()

    torch.manual_seed(0)
    network, x = Volumes(), torch.randn(2, 3, 5, 4, 6)
    capture = gradients(network, lambda m, x: m(x), (x,))
    kinds = [node.op_type for node in capture.model.graph.node]
    assert kinds.count("MaxPool2dWithIndices") == kinds.count("MaxPool2dWithIndicesBackward") == 3
    session = onnx_ops.InferenceSession(capture.model)
    (got,) = session.run(["grad.linear.weight"], capture.state | {"x": x.numpy()})
    network(x).backward()
    gradient = network.linear.weight.grad
    assert gradient is not None
    np.testing.assert_allclose(got, gradient.numpy(), rtol=0, atol=1e-5 * float(gradient.abs().max()))


def test_inference_asks_for_no_places() -> None:
    network = nn.Sequential(nn.Linear(6, 6), nn.MaxPool2d(3, stride=2, padding=1))
    x = torch.randn(3, 2, 7, 6)
    inference = gradients(network, lambda m, x: m(x).sum(), (x,)).inference
    assert inference is not None
    assert [node.op_type for node in inference.graph.node].count("MaxPool") == 1
    session = onnx_ops.InferenceSession(inference)
    (got,) = session.run(None, {"input": x.numpy()})
    np.testing.assert_allclose(got, network(x).detach().numpy(), rtol=0, atol=1e-6)


def test_adaptive_pools_to_sizes_that_divide_no_axis() -> None:
    """Of equal elements the first one has the index and the gradient."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        values, places = functional.adaptive_max_pool2d((2 * model(x)).relu(), (5, 4), return_indices=True)
        return (values * (places + 1).sqrt()).square().sum()

    torch.manual_seed(0)
    compared(nn.Linear(6, 6), loss, [torch.randn(n, 2, 7, 6).round() for n in (2, 1)], {0: torch.export.Dim("N")})
