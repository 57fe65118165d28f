"""Insertion of nodes into models."""

from __future__ import annotations

import onnx
from onnx import helper

from onnx_ops.graph.edits import Insertions
from onnx_ops.graph.walk import placed_nodes


def test_nodes_are_found_again_after_protobuf_has_made_new_objects() -> None:
    count = 200
    nodes = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(count))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float v0) => (float v{count}) {{ {nodes} }}'
    )
    insertions = Insertions()
    for place, node in placed_nodes(model):
        insertions.before(place, node, [helper.make_node("Abs", [node.input[0]], [f"{node.input[0]}_abs"])])
        node.input[0] += "_abs"
        del place, node  # so that their identities may be used again
    insertions.apply(model)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Abs", "Neg"] * count
