"""Graphs and functions built out of handles: what the backends compute of them, and the names of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import AttributeProto, TensorProto, helper, inliner
from onnx.reference import ReferenceEvaluator

from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Builder, Reference, Value
from onnx_ops.graph.walk import containers

OPSET = 18
FLOATS = TensorType(TensorProto.FLOAT, (None,))
NUMBER = TensorType(TensorProto.FLOAT, ())


def model_of(graph: onnx.GraphProto, *functions: onnx.FunctionProto) -> onnx.ModelProto:
    imports = {"": OPSET, **{function.domain: 1 for function in functions}}
    made = helper.make_model(
        graph, functions=functions, opset_imports=[helper.make_opsetid(d, v) for d, v in imports.items()], ir_version=9
    )
    onnx.checker.check_model(made, full_check=True)
    return made


def answers(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
    """What onnxruntime, with and without optimisation, and the reference give."""
    found = []
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        found.append(ort.InferenceSession(model.SerializeToString(), options).run(None, dict(inputs)))
    found.append(ReferenceEvaluator(model).run(None, dict(inputs)))
    return found


def same(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *expected: Any) -> None:
    for answer in answers(model, inputs):
        assert len(answer) == len(expected)
        for got, wanted in zip(answer, expected, strict=True):
            np.testing.assert_array_equal(got, np.asarray(wanted, got.dtype), strict=True)


def names(model: onnx.ModelProto) -> list[str]:
    """All names of values that are made somewhere, each as often as it is."""
    made = [name for container in containers(model) for node in container.node for name in node.output]
    for container in containers(model):
        made.extend(v if isinstance(v, str) else v.name for v in container.input)
    return made


def test_operators_of_python_write_those_of_onnx() -> None:
    b = Builder()
    x, y = b.input("x", FLOATS), b.input("y", FLOATS)
    b.output("a", (1.0 + x) * y - x / 2.0, FLOATS)
    b.output("b", 3.0 - (-y) + (2.0 * x), FLOATS)
    b.output("c", 6.0 / (x + 1.0), FLOATS)
    b.output("d", x.less(y) | ~(x.greater(1.0) & x.equal(2.0)), TensorType(TensorProto.BOOL, (None,)))
    b.output("e", x.less_or_equal(1.0) & y.greater_or_equal(3.0), TensorType(TensorProto.BOOL, (None,)))
    x_, y_ = np.array([1, 2], np.float32), np.array([3, 1], np.float32)
    expected = [(1 + x_) * y_ - x_ / 2, 3 + y_ + 2 * x_, 6 / (x_ + 1), [True, False], [True, False]]
    same(model_of(b.graph("arithmetic")), {"x": x_, "y": y_}, *expected)


def test_numbers_of_numpy_on_the_left_leave_the_operation_to_the_handle() -> None:
    b = Builder()
    x = b.input("x", FLOATS)
    value = np.array([1, 2], np.float32) - x
    assert isinstance(value, Value)
    b.output("y", value, FLOATS)
    same(model_of(b.graph("left")), {"x": np.array([3, 4], np.float32)}, [-2, -2])


def test_hints_name_values_and_clashes_get_numbers() -> None:
    b = Builder()
    x = b.input("x", FLOATS)
    first = b.op("Neg", x, name="y")  # the name of the output
    second = b.op("Abs", first, name="x")  # the name of the input
    third = b.op("ReduceSum", second, keepdims=0)
    b.output("y", (third + first).named("sum"), FLOATS)
    b.output("z", (third * first).named("product") + third.named("total"), FLOATS)
    model = model_of(b.graph("clashes"))
    assert names(model) == ["y_2", "x_2", "total", "y", "product", "z", "x"]


def test_nodes_that_no_output_depends_on_are_left_out() -> None:
    b = Builder()
    x = b.input("x", FLOATS)
    b.op("Exp", x + 1.0)
    b.choose(b.op("Size", x).equal(3), lambda: x + 5.0, lambda: x)
    b.output("y", b.op("Neg", x), FLOATS)
    b.keep(b.op("Shape", x, name="kept"))
    assert [n.op_type for n in model_of(b.graph("few")).graph.node] == ["Neg", "Shape"]


def test_outputs_are_values_of_nodes_each_given_once() -> None:
    b = Builder()
    x = b.input("x", FLOATS)
    y = -x
    for name, value in (("same", x), ("minus", y), ("again", y), ("number", 2.0)):
        b.output(name, value, NUMBER if name == "number" else FLOATS)
    same(model_of(b.graph("copies")), {"x": np.array([1], np.float32)}, [1], [-1], [-1], 2)


def test_several_outputs() -> None:
    b = Builder()
    x = b.input("x", FLOATS)
    highest, places = b.several("TopK", x, [1], names=("highest", "places"))
    b.output("places", places, TensorType(TensorProto.INT64, (None,)))
    b.output("highest", highest, FLOATS)
    same(model_of(b.graph("top")), {"x": np.array([1, 5, 3], np.float32)}, [1], [5])


def test_inputs_left_out() -> None:
    b = Builder()
    x = b.input("x", FLOATS)
    b.output("y", b.op("Clip", x, None, 2.0), FLOATS)
    b.output("z", b.op("Clip", x, 2.0, None), FLOATS)
    model = model_of(b.graph("clips"))
    assert [list(n.input) for n in model.graph.node if n.op_type == "Clip"] == [["x", "", "two"], ["x", "two"]]
    same(model, {"x": np.array([1, 5, 3], np.float32)}, [1, 2, 2], [2, 5, 3])


SUBNORMAL = {np.float16: 2.0**-24, ml_dtypes.bfloat16: 2.0**-133, np.float32: 2.0**-149, np.float64: 2.0**-1074}


@pytest.mark.parametrize("dtype", SUBNORMAL, ids=lambda dtype: np.dtype(dtype).name)
def test_constants_hold_all_values(dtype: npt.DTypeLike) -> None:
    values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, SUBNORMAL[dtype], 1 / 3], dtype)
    b = Builder()
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    b.output("array", values, TensorType(kind, (None,)))
    for index, value in enumerate(values):
        b.output(f"scalar_{index}", value, TensorType(kind, ()))
    tensors = [onnx.numpy_helper.to_array(n.attribute[0].t) for n in model_of(b.graph("values")).graph.node]
    assert tensors[0].tobytes() == values.tobytes()
    assert [t.tobytes() for t in tensors[1:]] == [v.tobytes() for v in values]


def test_constants_run() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 2.0**-149, 0, -0.0], np.float32)
    b = Builder()
    b.output("y", values, FLOATS)
    b.output("wide", b.constant(2.0**-1074, TensorProto.DOUBLE), TensorType(TensorProto.DOUBLE, ()))
    for array, wide in answers(model_of(b.graph("constants")), {}):
        assert array.tobytes() == values.tobytes()
        assert wide == 2.0**-1074


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.0, np.float64), (1, np.int64), (True, np.bool_), ([1.0, 2], np.float64), ([1, 2], np.int64), ([], np.int64)],
)
def test_numbers_of_python_are_of_the_dtypes_of_the_builder(value: Any, expected: Any) -> None:
    assert Builder(TensorProto.DOUBLE).array(value).dtype == expected
    assert Builder().array(value, TensorProto.FLOAT16).dtype == np.float16


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'text' is no number"):
        Builder().constant("text")  # type: ignore[arg-type]


def test_equal_constants_share_a_node() -> None:
    b = Builder()
    x = b.input("x", FLOATS)
    b.output("y", (x + 1.0) * (1.0 - x) / -0.0 + 0.0, FLOATS)
    constants = [n.output[0] for n in model_of(b.graph("shared")).graph.node if n.op_type == "Constant"]
    assert constants == ["one", "zero", "zero_2"]


def test_if_has_branches_that_see_the_values_around_them() -> None:
    b = Builder()
    x = b.input("x", FLOATS)
    doubled = x * 2.0

    def first() -> Value:
        return doubled + 2.0

    b.output("y", b.choose(b.op("Size", x).less(3), first, lambda: x), FLOATS)
    model = model_of(b.graph("branches"))
    branches = [a.g for n in model.graph.node for a in n.attribute if a.type == AttributeProto.GRAPH]
    assert [g.name for g in branches] == ["first", "lambda"]
    assert [n.op_type for n in branches[0].node] == ["Add"]  # the 2 of the graph around it serves
    same(model, {"x": np.array([1, 2], np.float32)}, [4, 6])
    same(model, {"x": np.array([1, 2, 3], np.float32)}, [1, 2, 3])


def test_scan_over_named_inputs() -> None:
    b, rows = Builder(), TensorType(TensorProto.FLOAT, (None, 1))
    x = b.input("x", rows)

    def step(total: Value, now: Value) -> tuple[Value, Value]:
        added = (total + now).named("added")
        return added, added

    body = b.subgraph(step, {"total": FLOATS, "now": FLOATS}, (FLOATS, FLOATS))
    last, sums = b.several("Scan", [0.0], x, names=("last", "sums"), num_scan_inputs=1, body=body)
    b.output("last", last, FLOATS)
    b.output("sums", sums, rows)
    model = model_of(b.graph("sums"))
    (inner,) = (a.g for n in model.graph.node for a in n.attribute if a.name == "body")
    assert [i.name for i in inner.input] == ["total", "now"]
    assert [o.name for o in inner.output] == ["added", "added_2"]
    same(model, {"x": np.array([[1], [2], [3]], np.float32)}, [6], [[1], [3], [6]])


def test_loop() -> None:
    b = Builder()
    x = b.input("x", NUMBER)

    def body(count: Value, going: Value, power: Value) -> tuple[Value, Value]:
        return b.op("Identity", going), power * x

    inputs = {"count": TensorType(TensorProto.INT64, ()), "going": TensorType(TensorProto.BOOL, ()), "power": NUMBER}
    b.output("y", b.op("Loop", 3, True, 1.0, name="power", body=b.subgraph(body, inputs)), NUMBER)
    same(model_of(b.graph("loop")), {"x": np.array(2, np.float32)}, 8)


def test_names_are_unique_in_all_subgraphs() -> None:
    b = Builder()
    x = b.input("x", FLOATS)

    def inner() -> Value:
        return (x + 1.0).named("value") * 2.0

    def outer() -> Value:
        return b.choose(b.op("Size", x).less(2), inner, inner)

    b.output("y", b.choose(b.op("Size", x).less(3), outer, inner), FLOATS)
    made = names(model_of(b.graph("nested")))
    assert len(made) == len(set(made))
    assert {"value", "value_2", "value_3"} <= set(made)


def test_attributes_of_a_function_that_hold_numbers() -> None:
    b = Builder()
    x = b.input("x")
    total = x * b.attribute_value("factor", AttributeProto.FLOAT)
    for name, kind in (("shift", AttributeProto.INT), ("shifts", AttributeProto.INTS)):
        total = total + b.attribute_value(name, kind).cast(TensorProto.FLOAT)
    total = total + b.attribute_value("weights", AttributeProto.FLOATS)
    b.output("y", b.op("Cast", total, to=Reference("kind", AttributeProto.INT)))
    function = b.function(
        "me",
        "F",
        [helper.make_opsetid("", OPSET)],
        [
            "kind",
            helper.make_attribute("factor", 2.0),
            helper.make_attribute("shift", 1),
            helper.make_attribute("shifts", [1, 2]),
            helper.make_attribute("weights", [0.5, 0.25]),
        ],
        "What it is.",
    )
    assert list(function.attribute) == ["kind"]
    assert function.doc_string == "What it is."
    g = Builder()
    # All attributes are given: ReferenceEvaluator does not look up the defaults of functions.
    given: dict[str, Any] = {
        "kind": TensorProto.FLOAT,
        "factor": 2.0,
        "shift": -20,
        "shifts": [1, 2],
        "weights": [0.5, 0.25],
    }
    g.output("y", g.op("F", g.input("x", FLOATS), domain="me", **given), FLOATS)
    model = model_of(g.graph("call"), function)
    for version in (model, inliner.inline_local_functions(model)):
        same(version, {"x": np.array([3, 20], np.float32)}, [-12.5, 22.25])


def test_attributes_of_a_function_that_hold_text() -> None:
    b = Builder()
    b.output("mode", b.attribute_value("mode", AttributeProto.STRING))
    function = b.function("me", "F", [helper.make_opsetid("", OPSET)], [helper.make_attribute("mode", "plain")])
    g = Builder()
    for name, given in (("own", "x"), ("default", None)):
        g.output(name, g.op("F", domain="me", mode=given), TensorType(TensorProto.STRING, ()))
    # Only onnxruntime: the Constant of ReferenceEvaluator takes no text from an attribute of a function.
    assert ort.InferenceSession(model_of(g.graph("call"), function).SerializeToString()).run(None, {}) == ["x", "plain"]


def test_functions_refuse_what_they_cannot_hold() -> None:
    b = Builder()
    b.output("y", b.attribute_value("factor", AttributeProto.FLOAT))
    with pytest.raises(ValueError, match=r"refers to 'factor', which is no attribute of the function"):
        b.function("me", "F", [])
    b = Builder()
    b.output("y", b.initializer("weight", np.zeros(3, np.float32)))
    with pytest.raises(ValueError, match=r"has initializers"):
        b.function("me", "F", [])


def test_initializers_are_weights_of_a_graph() -> None:
    b = Builder()
    b.output("y", b.input("x", FLOATS) * b.initializer("weight", np.array([2, 3], np.float32)), FLOATS)
    model = model_of(b.graph("weights"))
    assert [t.name for t in model.graph.initializer] == ["weight"]
    same(model, {"x": np.array([1, 2], np.float32)}, [2, 6])


def test_values_are_seen_only_in_their_graph_and_inside_of_it() -> None:
    b, other = Builder(), Builder()
    x = b.input("x", FLOATS)
    inner: list[Value] = []

    def branch() -> Value:
        inner.append(b.op("Neg", x, name="hidden"))
        return inner[0]

    b.choose(b.op("Size", x).less(3), branch, lambda: x)
    with pytest.raises(ValueError, match=r"'hidden', which Exp uses, is made in subgraph 'branch'"):
        b.op("Exp", inner[0])
    with pytest.raises(ValueError, match=r"'x', which Exp uses, is made by another builder"):
        other.op("Exp", x)


def test_a_handle_is_no_condition_of_python() -> None:
    x = Builder().input("x")
    with pytest.raises(TypeError, match=r"'x' is known only when the graph runs"):
        bool(x)


def test_inputs_and_outputs_have_names_of_their_own() -> None:
    b = Builder()
    b.output("x", -b.input("x", FLOATS), FLOATS)
    with pytest.raises(ValueError, match=r"several inputs or outputs are named 'x'"):
        b.graph("twice")


def test_outputs_are_given_outside_of_subgraphs() -> None:
    b = Builder()
    x = b.input("x", FLOATS)

    def branch() -> Value:
        b.output("y", x, FLOATS)
        return x

    with pytest.raises(ValueError, match=r"output 'y' is given inside a subgraph"):
        b.choose(b.op("Size", x).less(3), branch, branch)
    b.output("y", x, FLOATS)  # the failed subgraph is left
    assert len(b.graph("after").output) == 1
