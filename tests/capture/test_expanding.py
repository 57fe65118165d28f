"""What is expanded is scaled before, and broadcast by the nodes that read it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from captures import compared, gradients
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.export import Dim

from onnx_ops.torch.rewriting.expanding import delay_expands

Nodes = list[tuple[str, tuple[str, ...], str]]


def rewritten(nodes: Nodes, column: list[int | str], whole: list[int | str]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A model before and after; `e` is the column expanded to (3, 4)."""
    shapes = {"column": column, "whole": whole}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    constants = {"shape": np.array([3, 4]), "four": np.float32(4), "fours": np.full(4, 4, np.float32)}
    graph = helper.make_graph(
        [helper.make_node("Expand", ["column", "shape"], ["e"]), *(helper.make_node(k, i, [o]) for k, i, o in nodes)],
        "expands",
        inputs,
        [helper.make_tensor_value_info(nodes[-1][2], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        value_info=[
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 4])
            for name in ("e", *(output for *_, output in nodes[:-1]))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    changed = ir.serde.deserialize_model(model)
    delay_expands(changed)
    ir.passes.common.RemoveUnusedNodesPass()(changed)
    return model, ir.serde.serialize_model(changed)


@pytest.mark.parametrize(
    ("nodes", "expands"),
    [
        ([("Div", ("e", "four"), "d"), ("Mul", ("d", "whole"), "y")], 0),
        ([("Mul", ("e", "four"), "d"), ("Div", ("d", "four"), "f"), ("Sub", ("whole", "f"), "y")], 0),
        ([("Div", ("four", "e"), "d"), ("Add", ("d", "whole"), "y")], 1),  # not the first operand
        ([("Mul", ("e", "fours"), "y")], 1),  # would not have the shape of the result
        ([("Add", ("e", "e"), "y")], 1),
        ([("Mul", ("e", "whole"), "d"), ("Neg", ("e",), "n"), ("Add", ("d", "n"), "y")], 1),
        ([("Div", ("e", "four"), "y")], 1),
    ],
)
def test_the_results_are_the_same(nodes: Nodes, expands: int) -> None:
    before, after = rewritten(nodes, [3, 1], [3, 4])
    assert Counter(node.op_type for node in after.graph.node)["Expand"] == expands
    rng = np.random.default_rng(0)
    given = {"column": rng.normal(size=(3, 1)).astype(np.float32), "whole": rng.normal(size=(3, 4)).astype(np.float32)}
    given["column"][0] = np.nan
    wanted, got = (ort.InferenceSession(m.SerializeToString()).run(None, given)[0] for m in (before, after))
    np.testing.assert_array_equal(got, wanted)


def test_a_shape_that_may_be_another_one_stays_expanded() -> None:
    """The other operand has N rows, of which there may be 1."""
    _, after = rewritten([("Mul", ("e", "whole"), "y")], [3, 1], ["N", 4])
    assert next(node.op_type for node in after.graph.node) == "Expand"


class Scaled(nn.Module):
    """A mean over features, as in RMSNorm, and one over pixels, as in squeeze-and-excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return x * x.mean((1, 2), keepdim=True)


def test_gradients_of_means() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).exp().sum()

    torch.manual_seed(0)
    model, batches = Scaled(), [torch.randn(rows, 3, 4) for rows in (2, 5)]
    kinds = Counter(node.op_type for node in gradients(model, loss, (batches[0],)).model.graph.node)
    assert kinds["Expand"] == 0
    compared(model, loss, batches, {0: Dim("N")})
