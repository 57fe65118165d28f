"""Captures whose axes of space and time are dynamic, run at several sizes, beside PyTorch in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
from onnx_ops.torch import Capture, CaptureError, gradients

# Of the largest entry of a tensor: sums of some hundred terms in another order.
OFF = {torch.float32: 1e-5, torch.float64: 1e-11}


def loss(network: nn.Module, x: Tensor) -> Tensor:
    y = network(x)
    return (y * (0.7 * y).sin()).mean()


def captured(network: nn.Module, x: Tensor, *axes: int, least: int = 2) -> Capture:
    dims = {axis: Dim(f"D{axis}", min=least) for axis in axes}
    return gradients(network, loss, (x.requires_grad_(),), dynamic_shapes=({0: Dim("N"), **dims},))


def same_as_torch(capture: Capture, network: nn.Module, x: Tensor) -> None:
    """Loss and all gradients, and what the model gives in evaluation mode."""
    dtype = x.dtype
    exact, given = copy.deepcopy(network).double(), x.detach().double().requires_grad_()
    value = loss(exact, given)
    value.backward()
    wanted = {"loss": value, "grad.x": given.grad}
    wanted |= {f"grad.{name}": parameter.grad for name, parameter in exact.named_parameters()}
    session = onnx_ops.InferenceSession(capture.model)
    got = session.run(list(wanted), capture.state | {"x": x.detach().numpy()})
    assert capture.inference is not None
    exact.eval()
    wanted["output"] = exact(given)
    got.append(onnx_ops.InferenceSession(capture.inference).run(None, {"input": x.detach().numpy()})[0])
    for (name, tensor), array in zip(wanted.items(), got, strict=True):
        assert tensor is not None
        truth = tensor.detach().numpy()
        assert array.shape == truth.shape, name
        np.testing.assert_allclose(array, truth, rtol=0, atol=OFF[dtype] * np.abs(truth).max(), err_msg=name)


def check(network: nn.Module, sizes: Sequence[tuple[int, ...]], dtype: torch.dtype, channels: int = 4) -> None:
    """Capture with the first sizes (batch, *space), and compare at all."""
    torch.manual_seed(0)
    network = network.to(dtype)
    examples = [torch.randn(size[0], channels, *size[1:], dtype=dtype) for size in sizes]
    capture = captured(network, examples[0], *range(2, examples[0].dim()), least=4)
    for x in examples:
        same_as_torch(capture, network, x)


SIZES = {
    1: [(2, 16), (3, 24), (1, 13)],
    2: [(2, 12, 16), (3, 9, 8), (1, 11, 21)],
    3: [(2, 6, 8, 7), (1, 8, 5, 10)],
}
CONVOLUTION = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def convolutions(rank: int) -> nn.Module:
    """One after the other: padded, pointwise, grouped with a stride, depthwise, dilated, transposed with a stride."""
    kind, transposed = CONVOLUTION[rank], TRANSPOSED[rank]
    return nn.Sequential(
        kind(4, 10, 3, padding=1),
        nn.Tanh(),
        kind(10, 6, 1),
        kind(6, 6, 2, stride=2, padding=1, groups=2),
        nn.Tanh(),
        kind(6, 6, 3, padding=1, groups=6),
        kind(6, 3, 2, stride=3, padding=2, dilation=2),
        transposed(3, 4, 3, 2, 1, output_padding=1),
        nn.Tanh(),
        transposed(4, 2, 2, groups=2),
    )


@pytest.mark.parametrize(("rank", "dtype"), [(1, torch.float32), (2, torch.float64)], ids=str)
def test_convolutions(rank: int, dtype: torch.dtype) -> None:
    check(convolutions(rank), SIZES[rank], dtype)


@pytest.mark.full
@pytest.mark.parametrize("dtype", OFF, ids=str)
@pytest.mark.parametrize("rank", CONVOLUTION)
def test_convolutions_of_any_rank(rank: int, dtype: torch.dtype) -> None:
    check(convolutions(rank), SIZES[rank], dtype)


@pytest.mark.full
@pytest.mark.parametrize("rank", CONVOLUTION)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padding_modes(rank: int, mode: Any) -> None:
    check(CONVOLUTION[rank](4, 6, 4, padding="same", padding_mode=mode), SIZES[rank], torch.float32)


def test_room_for_more_places_than_there_are() -> None:
    """An output_padding as large as the stride is refused."""
    network = nn.ConvTranspose1d(3, 3, 3, 1, dilation=2, output_padding=1)
    with pytest.raises(CaptureError, match=r"output_padding \[1\], as large as its stride \[1\], needs sizes of space"):
        captured(network, torch.randn(2, 3, 7), 2)


def made(forward: Callable[[nn.Linear, Tensor], Tensor]) -> nn.Module:
    """A linear layer that does something of its own."""

    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)

    return Layer(4, 4)


def test_what_pytorch_may_limit_itself_is_limited() -> None:
    """With Dim.AUTO a graph that holds only for some sizes takes no others; it must not answer for them."""

    def branch(layer: nn.Linear, x: Tensor) -> Tensor:
        y = nn.functional.linear(x, layer.weight)
        return y * 2 if x.shape[0] % 2 else y * x.shape[1]

    x = torch.randn(3, 5, 4)
    capture = gradients(made(branch), loss, (x,), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},))
    assert capture.inference is not None
    for model in (capture.model, capture.inference):
        shape = next(value for value in model.graph.input if value.name in ("x", "input")).type.tensor_type.shape
        assert [size.dim_value for size in shape.dim] == [3, 0, 4]
        assert shape.dim[1].dim_param
