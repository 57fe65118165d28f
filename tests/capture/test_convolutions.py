"""Gradients of convolutions in captured graphs, compared with PyTorch."""

from __future__ import annotations

from collections import Counter

import captures
import numpy as np
import onnx
import pytest
import torch
from cases import names_with
from torch import Tensor, nn

import onnx_ops
from onnx_ops.torch import gradients
from onnx_ops.torch.capture import Capture


def compare(
    network: nn.Module,
    x: Tensor,
    off: float,
    by_filter: int,
    by_input: int,
    transposed: bool = False,
    convolutions: int = 0,
    depthwise: int = 0,
) -> Capture:
    """Capture with some samples, and compare the gradients of one more.

    The graph has so many nodes of the gradients of depthwise convolutions by filters and by inputs, of other
    convolutions, and of depthwise ones, and ConvTranspose only if convolutions are transposed. The inference graph has
    none of these ops.
    """

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        return network(x).square().sum()

    capture = gradients(network, loss, (x,), dynamic_shapes=({0: torch.export.Dim("N")},))
    kinds = [node.op_type for node in capture.model.graph.node]
    assert kinds.count("DepthwiseConv2DBackpropFilter") == by_filter
    assert kinds.count("DepthwiseConv2DBackpropInput") == by_input
    assert kinds.count("ConvolutionBackward") == convolutions
    assert kinds.count("DepthwiseConv2D") == depthwise
    assert "ConvTranspose" not in kinds or transposed
    assert capture.inference is not None
    assert not capture.inference.functions
    assert all(node.domain == "" for node in capture.inference.graph.node)
    x = torch.cat([x, x[:1].flip(-1)])
    loss(network, x).backward()
    session = onnx_ops.InferenceSession(capture.model)
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        (got,) = session.run([f"grad.{name}"], capture.state | {"x": x.numpy()})
        wanted = parameter.grad.numpy()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=off * np.abs(wanted).max(), err_msg=name)
    return capture


# Sums of a few hundred terms, in another order.
OFF = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", names_with(full=[torch.float64], names=OFF), ids=str)
def test_depthwise(dtype: torch.dtype) -> None:
    """Strides, dilations, padding and several filters per channel, also of transposed convolutions."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Tanh(),
        nn.Conv2d(4, 8, (3, 2), (2, 1), (1, 0), (1, 2), groups=4, bias=False),
        nn.Tanh(),
        nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding=1, groups=8),
    ).to(dtype)
    depthwise = 3 if dtype == torch.float32 else 0
    compare(network, torch.randn(3, 4, 9, 8, dtype=dtype), OFF[dtype], 3, 1, transposed=True, depthwise=depthwise)


@pytest.mark.parametrize("rank", [1, 3])
def test_depthwise_along_lines_and_in_volumes(rank: int) -> None:
    torch.manual_seed(0)
    convolution = {1: nn.Conv1d, 3: nn.Conv3d}[rank]
    network = nn.Sequential(convolution(3, 6, 3, 2, 1, groups=3), nn.Tanh(), convolution(6, 6, 2, groups=6))
    compare(network, torch.randn(2, 3, *range(7, 7 + rank)), OFF[torch.float32], 2, 1, depthwise=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_room_for_more_places_than_there_are(dtype: torch.dtype) -> None:
    """An output_padding as large as the stride, which dilations allow, but not onnxruntime's ConvTranspose."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.ConvTranspose1d(3, 3, 3, 1, dilation=2, output_padding=1, groups=3),
        nn.Tanh(),
        nn.ConvTranspose1d(3, 4, 3, 2, padding=1, dilation=4, output_padding=3),
        nn.Tanh(),
        nn.ConvTranspose1d(4, 2, 2, 1, padding=3, dilation=3, output_padding=2),
    ).to(dtype)
    compare(network, torch.randn(2, 3, 7, dtype=dtype), OFF[dtype], 1, 0, transposed=True, convolutions=2)


def test_groups_of_several_channels() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), nn.Conv2d(6, 24, (2, 3), (1, 2), (1, 0), (2, 1), groups=3)
    )
    compare(network, torch.randn(2, 4, 8, 7), OFF[torch.float32], 0, 0, convolutions=2)


def test_pointwise() -> None:
    """A product of matrices at each place, in both directions."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 6, 1), nn.Tanh(), nn.Conv2d(6, 3, 1), nn.Tanh(), nn.ConvTranspose2d(3, 2, 1))
    compare(network, torch.randn(2, 4, 6, 5), OFF[torch.float32], 0, 0)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_strided_pointwise(rank: int) -> None:
    """With many weights, by products of matrices; the last pixels of an axis are read or not."""
    torch.manual_seed(0)
    conv = [nn.Conv1d, nn.Conv2d, nn.Conv3d][rank - 1]
    strides = [2, 1, 3][:rank], [1, 3, 2][:rank]
    network = nn.Sequential(
        conv(4, 256, 1), nn.Tanh(), conv(256, 256, 1, strides[0]), nn.Tanh(), conv(256, 257, 1, strides[1])
    )
    capture = compare(network, torch.randn(2, 4, *(9, 7, 8)[:rank]), 1e-5, 0, 0)
    assert capture.inference is not None
    strided = [node for node in capture.inference.graph.node if node.op_type == "Conv"]
    assert [onnx.helper.get_node_attr_value(node, "strides") for node in strided[1:]] == list(strides)


def test_strided_pointwise_on_dynamic_images() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 256, 1), nn.Tanh(), nn.Conv2d(256, 256, 1, 2), nn.Conv2d(256, 256, 1, (1, 3)))
    dims = torch.export.Dim("N"), torch.export.Dim("H", min=4), torch.export.Dim("W", min=4)
    shapes = ({0: dims[0], 2: dims[1], 3: dims[2]},)
    capture = gradients(network, lambda m, x: m(x).square().sum(), (torch.randn(2, 3, 8, 10),), dynamic_shapes=shapes)
    assert "ConvolutionBackward" not in {node.op_type for node in capture.model.graph.node}
    session = onnx_ops.InferenceSession(capture.model)
    for height, width in ((7, 9), (8, 12), (5, 4)):
        x = torch.randn(3, 3, height, width)
        network.zero_grad()
        network(x).square().sum().backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None
            (got,) = session.run([f"grad.{name}"], capture.state | {"x": x.numpy()})
            wanted = parameter.grad.numpy()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max(), err_msg=name)


@pytest.mark.parametrize("dtype", OFF, ids=str)
def test_pointwise_on_few_pixels(dtype: torch.dtype) -> None:
    """Products of matrices for the pixels of all samples where there are gradients by weights and inputs."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 6, 1), nn.Tanh(), nn.ConvTranspose2d(6, 3, 1), nn.Tanh(), nn.Conv2d(3, 5, 1))
    network = network.to(dtype)
    capture = compare(network, torch.randn(2, 4, 3, 2, dtype=dtype), OFF[dtype], 0, 0)
    kinds = Counter(node.op_type for node in capture.model.graph.node)
    assert (kinds["Conv"], kinds["Convolution"], kinds["ConvTranspose"]) == (int(dtype == torch.float32), 0, 0)
    line = nn.Sequential(nn.Conv1d(4, 6, 1), nn.Tanh(), nn.Conv1d(6, 5, 1)).to(dtype)
    compare(line, torch.randn(2, 4, 1, dtype=dtype), OFF[dtype], 0, 0)


@pytest.mark.parametrize("dtype", names_with(full=[torch.float32], names=OFF), ids=str)
def test_more_channels(dtype: torch.dtype) -> None:
    """Strides, dilations, padding, groups and a transposed convolution, by the ops of this domain."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(9, 18, 3, 2, 1),
        nn.Tanh(),
        nn.Conv2d(18, 20, (3, 2), (1, 2), (2, 0), (1, 2), groups=2, bias=False),
        nn.Tanh(),
        nn.ConvTranspose2d(20, 11, 3, 2, 1, output_padding=1),
    ).to(dtype)
    compare(network, torch.randn(3, 9, 12, 11, dtype=dtype), OFF[dtype], 0, 0, transposed=True, convolutions=3)


@pytest.mark.parametrize("dtype", OFF, ids=str)
def test_few_channels(dtype: torch.dtype) -> None:
    """Of inputs, with gradients with respect to these, and of the output of a transposed convolution."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 3, 3, 1, 1), nn.Tanh(), nn.Conv2d(3, 5, (3, 4), 2, 1), nn.Tanh(), nn.ConvTranspose2d(5, 1, 4, 2, 1)
    ).to(dtype)
    compare(network, torch.randn(2, 2, 17, 22, dtype=dtype), OFF[dtype], 0, 0, transposed=True, convolutions=3)


@pytest.mark.parametrize("dtype", OFF, ids=str)
def test_patches(dtype: torch.dtype) -> None:
    """Windows that tile an image, with a rest at the end, are reshaped for the gradient of the weights."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, (2, 3), (2, 3)), nn.Tanh(), nn.ConvTranspose2d(4, 3, 2, 2, output_padding=(1, 0))
    ).to(dtype)
    capture = compare(network, torch.randn(2, 3, 7, 8, dtype=dtype), OFF[dtype], 0, 0, transposed=True)
    if dtype is torch.float32:
        assert "Concat" not in {node.op_type for node in capture.model.graph.node}
    volume = nn.Sequential(nn.Conv3d(2, 3, 2, 2, bias=False), nn.Tanh(), nn.Flatten(1), nn.Unflatten(1, (3, -1)))
    compare(volume.to(dtype), torch.randn(2, 2, 4, 5, 2, dtype=dtype), OFF[dtype], 0, 0)


def test_patches_of_dynamic_images() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 3), nn.Tanh(), nn.ConvTranspose2d(4, 5, 2, 2))
    sizes = torch.export.Dim("N"), torch.export.Dim("H", min=3), torch.export.Dim("W", min=3)
    capture = captures.gradients(
        network,
        lambda network, x: network(x).square().mean(),
        (torch.randn(2, 3, 7, 9),),
        dynamic_shapes=(dict(zip((0, 2, 3), sizes, strict=True)),),
    )
    session = onnx_ops.InferenceSession(capture.model)
    for shape in ((2, 3, 7, 9), (1, 3, 3, 5), (3, 3, 12, 8)):
        x = torch.randn(shape)
        wanted = torch.autograd.grad(network(x).square().mean(), list(network.parameters()))
        names = [f"grad.{name}" for name, _ in network.named_parameters()]
        for name, got, tensor in zip(names, session.run(names, capture.state | {"x": x.numpy()}), wanted, strict=True):
            scale = float(tensor.abs().max())
            np.testing.assert_allclose(got, tensor.numpy(), rtol=0, atol=OFF[torch.float32] * scale, err_msg=name)


class OwnWeights(nn.Module):
    """Convolutions with weights for each sample, as one of all samples: StyleGAN2's, and CondConv's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.transposed = nn.Parameter(torch.randn(4, 2, 3, 2)), nn.Parameter(torch.randn(2, 3, 3, 2))
        self.line, self.bias = nn.Parameter(torch.randn(4, 2, 3)), nn.Parameter(torch.randn(4))
        self.scale = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        samples = x.shape[0]
        scale = self.scale(x.mean((2, 3)))[:, :, None, None, None]
        together = x.reshape(1, -1, *x.shape[2:])
        filters = (self.weight * scale).flatten(0, 1)
        back = (self.transposed * scale[:, :2]).flatten(0, 1)
        of_lines = (self.line * scale[..., 0]).flatten(0, 1)
        biases = self.bias.repeat(samples)
        results = (
            nn.functional.conv2d(together, filters, biases, (2, 1), (1, 2), (1, 2), groups=samples),
            nn.functional.conv2d(together[0], filters, padding="same", groups=samples),
            nn.functional.conv_transpose2d(together, back, None, (2, 3), (1, 0), (1, 2), samples, (1, 2)),
            nn.functional.conv1d(together.flatten(2), of_lines, padding=1, groups=samples),
        )
        return torch.cat([result.reshape(samples, -1) for result in results], 1)


def test_dynamic_number_of_groups() -> None:
    torch.manual_seed(0)
    compare(OwnWeights(), torch.randn(3, 2, 6, 7), OFF[torch.float32], 0, 0)


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "size", "ops"),
    [
        (3, 6, 5, 1, 22, {"Convolution", "ConvolutionBackward"}),
        (3, 6, 5, 1, 14, {"ConvolutionBackward"}),
        (3, 20, 3, 1, 22, {"ConvolutionBackward"}),
        (3, 20, 7, 2, 22, {"Convolution", "ConvolutionBackward"}),
        (5, 20, 3, 1, 22, {"Convolution", "ConvolutionBackward"}),
        (3, 6, 4, 4, 24, set()),
        (3, 6, 1, 1, 22, set()),
    ],
)
def test_first_layers(channels: int, outputs: int, kernel: int, stride: int, size: int, ops: set[str]) -> None:
    """By ops of the domain where these are faster, without the gradient with respect to the images."""
    first, last = nn.Conv2d(channels, outputs, kernel, stride), nn.Conv2d(outputs, 9, 3)
    network = nn.Sequential(first, nn.Tanh(), last)

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        return network(x).square().mean()

    x = torch.randn(3, channels, size, size)
    capture = captures.gradients(network, loss, (x[:2],), dynamic_shapes=({0: torch.export.Dim("N")},))
    nodes = [node for node in capture.model.graph.node if "0.weight" in node.input]
    assert {node.op_type for node in nodes if node.domain} == ops
    assert all(node.output[0] == "" for node in nodes if node.op_type == "ConvolutionBackward")
    wanted = torch.autograd.grad(loss(network, x), list(network.parameters()))
    names = [f"grad.{name}" for name, _ in network.named_parameters()]
    got = onnx_ops.InferenceSession(capture.model).run(names, capture.state | {"x": x.numpy()})
    for name, array, tensor in zip(names, got, wanted, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=1e-5 * float(tensor.abs().max()), err_msg=name)
