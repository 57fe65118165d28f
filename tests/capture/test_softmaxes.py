"""Softmax and LogSoftmax over the channels of images, which captures write out, compared with PyTorch."""

from __future__ import annotations

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

from onnx_ops.torch.rewriting.softmaxes import write_out_softmaxes

SHAPE = (2, 3, 8, 9)
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def written_out(op_type: str, axis: int, shape: tuple[int | str, ...], dtype: str) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TYPES[dtype], shape) for name in ("x", "y")]
    node = helper.make_node(op_type, ["x"], ["y"], axis=axis)
    graph = helper.make_graph([node], "softmax", values[:1], values[1:])
    model = ir.serde.deserialize_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    )
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
