"""Training steps whose state is updated in place: updates by one node of an op with several outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import pytest
from onnx import TensorProto, helper

from onnx_ops.core.domain import DOMAIN
from onnx_ops.training.in_place import in_place

NUMBERS = ("lr", "power1", "power2", "decay", "beta1", "beta2", "epsilon")
UPDATES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "FusedSgd": (("w", "g", "lr", "b", "decay", "beta1"), ("w", "b")),
    "ApplyAdamW": (
        ("w", "m", "v", "power1", "power2", "lr", "decay", "beta1", "beta2", "epsilon", "g", "largest"),
        ("w", "m", "v", "largest"),
    ),
}
"""By op: inputs of the node, of which `lr` alone is no constant, and the state that it updates."""


def step(op: str) -> onnx.ModelProto:
    """A step whose loss reads all of the state."""
    inputs, state = UPDATES[op]
    numbers = [helper.make_tensor(name, TensorProto.DOUBLE, [], [0.5]) for name in NUMBERS if name != "lr"]
    nodes = [
        helper.make_node("Sum", [*state, "x"], ["total"]),
        helper.make_node("ReduceSum", ["total"], ["loss"], keepdims=0),
        helper.make_node("Mul", ["total", "x"], ["g"]),
        helper.make_node(op, inputs, [f"next.{name}" for name in state], domain=DOMAIN),
    ]

    def vector(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])

    rate = helper.make_tensor_value_info("lr", TensorProto.DOUBLE, [])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    outputs = [loss, *(vector(f"next.{name}") for name in state)]
    graph = helper.make_graph(nodes, "step", [vector("x"), rate, *map(vector, state)], outputs, numbers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("op", UPDATES)
def test_no_output_of_an_update_is_copied(op: str) -> None:
    rewritten = in_place(step(op), "loss", check_finite=True)
    assert rewritten is not None
    onnx.checker.check_model(rewritten.model, full_check=True)
    (update,) = (node for node in rewritten.model.graph.node if node.op_type == op)
    assert list(update.output) == [f"next.{name}" for name in UPDATES[op][1]]
