"""Parts of graphs: what they hold, and what is computed from what."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from onnx_ops.graph.slices import following, part

MODEL = parser.parse_model("""
    <ir_version: 10, opset_import: ["": 21, "me": 1]>
    graph (float x, float y, bool choice) => (float total, float other)
    <float two = {2.0}, float three = {3.0}> {
        product = me.times (x, two)
        chosen = If (choice) <
            then_branch = first () => (float a) { b = Mul (product, y) a = Neg (b) },
            else_branch = second () => (float c) { c = Identity (product) }
        >
        total = Add (chosen, three)
        other = me.plus (y, two)
    }
    <domain: "me", opset_import: ["": 21]> times (a, b) => (c) { c = Mul (a, b) }
    <domain: "me", opset_import: ["": 21]> plus (a, b) => (c) { c = Add (a, b) }
""")
FLOAT = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ())
GRAPH = MODEL.graph


def test_what_follows_from_a_value() -> None:
    """By way of what a subgraph reads from around it, too."""
    assert following(GRAPH, {"x"}) == {"x", "product", "chosen", "total"}
    assert following(GRAPH, {"y"}) == {"y", "chosen", "total", "other"}
    assert following(GRAPH, {"x"}, {"product"}) == {"x", "product"}
    assert following(GRAPH, {"b"}) == {"b"}, "which is a name inside a subgraph"


def test_a_part_computes_the_same() -> None:
    product = onnx.helper.make_value_info("product", FLOAT)
    first = part(MODEL, GRAPH.input, [product])
    second = part(MODEL, [*GRAPH.input, product], [GRAPH.output[0]])
    third = part(MODEL, [*GRAPH.input, product], [GRAPH.output[1]])
    assert [[value.name for value in model.graph.input] for model in (first, second, third)] == [
        ["x"],
        ["y", "choice", "product"],
        ["y"],
    ]
    assert [[tensor.name for tensor in model.graph.initializer] for model in (first, second, third)] == [
        ["two"],
        ["three"],
        ["two"],
    ]
    assert [[function.name for function in model.functions] for model in (first, second, third)] == [
        ["times"],
        [],
        ["plus"],
    ]
    feeds = {"x": np.float32(5), "y": np.float32(7)}
    for choice, total in ((True, -67), (False, 13)):
        (made,) = ReferenceEvaluator(first).run(None, {"x": feeds["x"]})
        assert made == 10
        given = {"y": feeds["y"], "choice": np.array(choice), "product": made}
        assert ReferenceEvaluator(second).run(None, given) == [total]
    assert ReferenceEvaluator(third).run(None, {"y": feeds["y"]}) == [9]


@pytest.mark.parametrize("given", [0, 1])
def test_one_of_two_results_of_a_node_can_be_given(given: int) -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        graph (float[4] x) => (float[2] sum) {
            first, second = Split <num_outputs = 2> (x)
            sum = Sub (first, second)
        }""")
    value = onnx.helper.make_tensor_value_info(("first", "second")[given], onnx.TensorProto.FLOAT, (2,))
    cut = part(model, [*model.graph.input, value], model.graph.output)
    onnx.checker.check_model(cut)
    x, other = np.array([1, 2, 3, 4], np.float32), np.array([10, 20], np.float32)
    (result,) = ReferenceEvaluator(cut).run(None, {"x": x, value.name: other})
    np.testing.assert_array_equal(result, [(7, 16), (-9, -18)][given])
