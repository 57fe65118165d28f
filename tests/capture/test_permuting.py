"""Transposes of more axes than one, as two that are computed by copies of blocks."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from captures import compared_at
from onnx import helper
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from onnx_ops.torch.rewriting.permuting import split_transposes

PATCHES = (0, 2, 4, 3, 5, 1)


def model_of(perms: list[tuple[int, ...]], shape: list[str | int]) -> onnx.ModelProto:
    """All of these transposes of x, split."""
    nodes = [helper.make_node("Transpose", ["x"], [f"y{i}"], perm=perm) for i, perm in enumerate(perms)]
    outputs = [helper.make_tensor_value_info(f"y{i}", onnx.TensorProto.FLOAT, None) for i in range(len(perms))]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "transposes", inputs, outputs)
    opsets = [helper.make_opsetid("", 21)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    split_transposes(model)
    return ir.to_proto(model)


@pytest.mark.parametrize("shape", [("N", "C", 9, 16), (5, 1, 41, 12), (4, 7, 12, "C", 5)], ids=str)
def test_all_orders_of_axes(shape: tuple[str | int, ...]) -> None:
    perms = list(itertools.permutations(range(len(shape))))
    model = model_of(perms, list(shape))
    assert sum(node.op_type == "Reshape" for node in model.graph.node) >= len(perms) // 6
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in (0, 1, 3):
        x = np.random.default_rng(0).standard_normal([size if isinstance(n, str) else n for n in shape])
        x = x.astype(np.float32)
        for perm, y in zip(perms, session.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(y, x.transpose(perm), err_msg=str(perm))


@pytest.mark.parametrize(
    ("perm", "shape"),
    [
        (PATCHES, ("N", 3, 4, 8, 4, 8)),
        ((2, 4, 5, 1, 3, 0), (3, 32, 2, 8, 1, 12)),
        ((4, 2, 1, 3, 0), ("N", 9, 8, 1, 12)),
        ((3, 1, 0, 2), ("N", "C", 12, 12)),
        ((2, 0, 1, 3), (32, 64, 64, 4)),
    ],
    ids=str,
)
def test_onnxruntime_does_not_join_the_two(perm: tuple[int, ...], shape: tuple[str | int, ...], tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    model = model_of([perm], list(shape))
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(options.optimized_model_filepath)
    transposes, expected = (
        [list(node.attribute[0].ints) for node in each.graph.node if node.op_type == "Transpose"]
        for each in (optimized, model)
    )
    assert len(transposes) == 2
    assert transposes == expected


@pytest.mark.parametrize(
    ("perm", "shape"),
    [
        ((0, 2, 1), (8, 64, 64)),
        ((0, 2, 3, 1), (8, 64, 8, 8)),
        ((0, 3, 4, 1, 2), (8, 4, 16, 8, 8)),
        ((0, 2, 1, 3), (8, 64, 8, 8)),
        (PATCHES, (1, 3, 2, 8, 2, 8)),
        ((0, 2, 1, 3), (1, 64, 1, 64)),
        ((3, 1, 2, 0), (64, 2, 3, 2)),
    ],
    ids=str,
)
def test_others_remain(perm: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Moves of one axis, or of axes that stay together; of long blocks; of few elements; of axes of size 1."""
    assert len(model_of([perm], list(shape)).graph.node) == 1


@pytest.mark.parametrize(
    ("perm", "shape"),
    [
        ((2, 3, 0, 1, 4), (32, 32, 12, 7, 1)),
        ((2, 3, 0, 4, 1), ("N", 32, 12, 7, 1)),
        ((0, 2, 1, 4, 3), (8, 64, 1, 8, 8)),
    ],
    ids=str,
)
def test_exchanges_of_groups_beside_axes_of_size_one_are_single(
    perm: tuple[int, ...], shape: tuple[str | int, ...]
) -> None:
    """onnxruntime is slow where the axis of size 1 is in between or last."""
    nodes = model_of([perm], list(shape)).graph.node
    assert [node.op_type for node in nodes if node.op_type != "Constant"] == ["Reshape", "Transpose", "Reshape"]


class Shuffled(nn.Module):
    """Shuffled pixels, and patches of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4).reshape(4, 1, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = x * self.scale
        patches = x.unflatten(3, (-1, 4)).unflatten(2, (-1, 4)).permute(PATCHES).flatten(3).flatten(1, 2)
        return [functional.pixel_shuffle(x, 2), functional.pixel_unshuffle(x, 2), patches]


def test_shuffled_pixels() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return sum((y * torch.linspace(-1, 1, y.shape[-1])).square().mean() for y in model(x))

    compared_at(Shuffled(), loss, [(2, 4, 16, 24), (3, 4, 16, 24), (1, 4, 16, 24)], Dim("N"))
