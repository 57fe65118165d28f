"""Softmaxes of captured steps, which are written out or become ops of the domain, compared with PyTorch."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from captures import compared, gradients
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops.torch.rewriting.softmaxes import write_out_softmaxes

SHAPE = (2, 3, 8, 9)
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def of_one_node(op_type: str, axis: int, shape: tuple[int | str, ...], dtype: str) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TYPES[dtype], shape) for name in ("x", "y")]
    node = helper.make_node(op_type, ["x"], ["y"], axis=axis)
    graph = helper.make_graph([node], "softmax", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def written_out(op_type: str, axis: int, shape: tuple[int | str, ...], dtype: str) -> onnx.ModelProto:
    model = ir.serde.deserialize_model(of_one_node(op_type, axis, shape, dtype))
    write_out_softmaxes(model)
    return ir.serde.serialize_model(model)


def has(model: onnx.ModelProto, *op_types: str) -> bool:
    return any(node.op_type in op_types for node in model.graph.node)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [SHAPE, ("N", 3, "H", "W")])
@pytest.mark.parametrize("axis", [1, -3])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_results(op_type: str, axis: int, shape: tuple[int | str, ...], dtype: str) -> None:
    """Of large numbers, infinities and NaN too."""
    model = written_out(op_type, axis, shape, dtype)
    assert not has(model, op_type)
    x = np.random.default_rng(0).normal(0, 30, SHAPE).astype(dtype)
    x[0, 1, :4, 0] = np.nan, np.inf, -np.inf, 1e30
    x[1, :, 2, 3] = -np.inf
    (found,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    exact = torch.from_numpy(x).double()
    wanted = exact.softmax(1) if op_type == "Softmax" else exact.log_softmax(1)
    tolerance = {"float32": 2e-6, "float64": 1e-14}[dtype]  # rounding errors of sum, exponential and logarithm
    np.testing.assert_allclose(found, wanted.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("axis", "shape"), [(3, SHAPE), (-1, SHAPE), (1, (2, 3, 7, 9)), (0, (3,))])
def test_others_stay(axis: int, shape: tuple[int, ...]) -> None:
    """Over the last axis, or before few elements."""
    assert has(written_out("LogSoftmax", axis, shape, "float32"), "LogSoftmax")


def loss(model: nn.Module, x: Tensor) -> Tensor:
    labels = torch.arange(x.shape[2]) % 3
    return functional.cross_entropy(model(x), labels[None, :, None].expand(x.shape[0], x.shape[2], x.shape[3]))


def test_capture() -> None:
    torch.manual_seed(0)
    model, images = nn.Conv2d(2, 3, 1), [torch.randn(2, 2, 8, 8), torch.randn(3, 2, 8, 9)]
    assert not has(gradients(model, loss, (images[0],)).model, "LogSoftmax", "Softmax")
    compared(model, loss, images, {0: Dim("N"), 3: Dim("W")})


class Windows(nn.Module):
    """Attention in products, as Swin has it: a mask whose weights are subnormal, and positions with a gradient."""

    def __init__(self, logarithm: str) -> None:
        super().__init__()
        self.project, self.logarithm = nn.Linear(6, 18), logarithm
        self.positions = nn.Parameter(torch.linspace(-1, 1, 25).reshape(5, 5))
        mask = torch.zeros(5, 5)
        mask[:2, 2:] = mask[2:, :2] = -90
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        scores = query @ key.transpose(1, 2) / 6**0.5 + self.positions + self.mask
        weights = scores.softmax(-1)
        result = functional.dropout(weights, 0.0) @ value
        if self.logarithm == "of weights":
            return result.sum() - weights.log().mean()
        if self.logarithm == "of copies":  # the weights of elements that have a class each
            classes = weights @ torch.eye(5, dtype=x.dtype)[:, [1, 0, 4, 2, 3]]
            return result.sum() - (classes[..., 1:] + 0.0).log().mean()
        return result.square().sum()


@pytest.mark.parametrize("logarithm", ["", "of weights", "of copies"])
def test_weights_of_products(logarithm: str) -> None:
    """Subnormal weights count as 0, except where a logarithm is taken of them, whatever the processor."""
    torch.manual_seed(0)
    model, rows = Windows(logarithm), [torch.randn(batch, 5, 6) for batch in (2, 3)]
    captured = compared(model, lambda model, x: model(x), rows, {0: Dim("N")})
    assert has(captured.model, "SoftmaxBackward")
    assert has(captured.model, "SoftmaxV2") == (not logarithm)
    assert not has(captured.model, "Softmax")


def test_logarithms_of_weights() -> None:
    """Of those that are subnormal at another state: they were 1/3 each in the example."""
    model, x = nn.Linear(2, 3), torch.tensor([[1.0, 2.0]])
    with torch.no_grad():
        model.weight.zero_()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        weights = model(x).softmax(-1)
        return (weights[:, 1:] * 2).log().sum()

    captured = gradients(model, loss, (x,))
    with torch.no_grad():
        model.bias.copy_(torch.tensor([0.0, -60.0, -95.0]))
    got = onnx_ops.InferenceSession(captured.model).run(
        ["loss"], {"x": x.numpy(), **{name: tensor.numpy() for name, tensor in model.state_dict().items()}}
    )
    # Subnormal numbers have few digits: log(6e-42) is off by less than 1e-3.
    np.testing.assert_allclose(got[0], 2 * math.log(2) - 60 - 95, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("dim", "shape"), [(1, (3, 4, 5)), (-1, (3, 4)), (0, ())])
def test_gradients_along_any_axis(dim: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.linspace(-3, 3, max(math.prod(shape), 1), dtype=dtype).reshape(shape))
    model, factor = (
        nn.ParameterList([weight]),
        torch.linspace(1, 2, max(math.prod(shape), 1), dtype=dtype).reshape(shape),
    )

    def weighted(model: nn.Module, factor: Tensor) -> Tensor:
        (own,) = model.parameters()
        return (own.softmax(dim) * factor).square().sum()

    captured = gradients(model, weighted, (factor,))
    (found,) = onnx_ops.InferenceSession(captured.model).run(
        ["grad.0"], {"0": np.asarray(1.5 * weight.detach().numpy()), "factor": factor.numpy()}
    )
    exact = (1.5 * weight.detach().double()).requires_grad_()
    (exact.softmax(dim) * factor.double()).square().sum().backward()
    assert exact.grad is not None
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]  # a few roundings of terms up to 1
    np.testing.assert_allclose(found, exact.grad.numpy(), rtol=tolerance, atol=tolerance)
