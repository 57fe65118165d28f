"""Float64 constants that onnxruntime takes for 0 or 1 keep their effect: in graphs, subgraphs and functions."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from onnx_ops.bodies.body import Body
from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.graph.neutral import is_neutral_in_float32, protect_constants
from onnx_ops.ops import ALL_VERSIONS

HEAD = '<ir_version: 10, opset_import: ["": 18, "me": 1]>'
GRAPHS = {
    "initializer": "graph (double[n] x) => (double[n] y) <double c = {VALUE}> { a = Neg(x) b = OP y = Neg(b) }",
    "Constant": """graph (double[n] x) => (double[n] y) {
        c = Constant<value = double[1] {VALUE}>() a = Neg(x) b = OP y = Neg(b)
    }""",
    "subgraph": """graph (double[n] x) => (double[n] y) <double c = {VALUE}, int64 one = {1}, bool yes = {1}> {
        z = Neg(x)
        b = Loop(one, yes, z) <body = body (int64 i, bool go, double[n] s) => (bool on, double[n] t) {
            on = Identity(go) u = Neg(s) a = Neg(u) b = OP w = Neg(b) t = Neg(w)
        }>
        y = Neg(b)
    }""",
    "function": """graph (double[n] x) => (double[n] y) { a = Neg(x) b = me.f(a) y = Neg(b) }
    <domain: "me", opset_import: ["": 18]> f (a) => (d) {
        c = Constant<value = double {VALUE}>() b = OP d = Identity(b)
    }
    """,
}
CALLS = {
    "Mul(a, c)": 1 + 1e-9,
    "Mul(c, a)": 1 - 1e-9,
    "Div(a, c)": 1 + 1e-9,
    "Add(a, c)": 1e-46,
    "Add(c, a)": -1e-46,
    "Sub(a, c)": 1e-46,
}


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return y


@pytest.mark.parametrize("graph", GRAPHS)
def test_constants_have_their_effect(graph: str) -> None:
    x = np.array([1.0, 3.0, 1e-46])
    for call, value in CALLS.items():
        model = onnx.parser.parse_model(HEAD + GRAPHS[graph].replace("VALUE", repr(value)).replace("OP", call))
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
        assert not np.array_equal(wanted, x), call
        protect_constants(model)
        onnx.checker.check_model(model, full_check=True)
        np.testing.assert_array_equal(run(model, x), wanted, err_msg=call)
        np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, {"x": x})[0], wanted, err_msg=call)


@pytest.mark.parametrize("values", [(1 + 1e-9, 2.0), (2.0, 1 + 1e-9)])
def test_branches_may_share_the_name_of_a_constant(values: tuple[float, float]) -> None:
    branch = """graph () => (double[n] NAME) { c = Constant<value = double {VALUE}>() a = Neg(x) NAME = Mul(a, c) }"""
    one, other = (
        branch.replace("graph ()", f"{name} ()").replace("NAME", name).replace("VALUE", repr(value))
        for name, value in zip(("p", "q"), values, strict=True)
    )
    text = f"""{HEAD} graph (double[n] x, bool first) => (double[n] y) {{
        b = If(first) <then_branch = {one}, else_branch = {other}> y = Neg(b)
    }}"""
    x = np.array([1.0, 3.0])
    for first in (True, False):
        model = onnx.parser.parse_model(text)
        protect_constants(model)
        (y,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": x, "first": np.array(first)}
        )
        np.testing.assert_array_equal(y, x * values[not first])


def test_other_constants_stay() -> None:
    nodes = "a = Neg(x) b = Mul(a, c) d = Add(b, c) e = Mul(d, i) f = Add(e, o) y = Mul(f, v)"
    constants = "double c = {1.5}, double i = {1}, double o = {0}, double[2] v = {1.000000001, 1}"
    model = onnx.parser.parse_model(f"{HEAD} graph (double[n] x) => (double[n] y) <{constants}> {{ {nodes} }}")
    before = model.SerializeToString(deterministic=True)
    protect_constants(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("op", ALL_VERSIONS, ids=lambda op: op.kernel_name)
def test_function_bodies_have_no_such_constants(op: Op) -> None:
    """Numbers that are attributes are float32, and so are none."""
    body = Body(op, [op.call([TensorType()] * len(op.input_names), op.required_attributes)], op.output_names)
    function = body.function("me", op.name, [onnx.helper.make_opsetid("", 18)], list(op.schema.attributes))
    model = onnx.ModelProto(functions=[function])
    before = model.SerializeToString(deterministic=True)
    protect_constants(model)
    assert model.SerializeToString(deterministic=True) == before


def test_what_is_neutral_in_float32_only() -> None:
    for op_type, value, expected in [
        ("Mul", 1 + 2**-24, True),  # the tie is rounded to even
        ("Mul", 1 + 2**-23, False),
        ("Div", 1 - 2**-26, True),
        ("Mul", 1.0, False),
        ("Mul", 1e-46, False),
        ("Add", 7e-46, True),
        ("Add", 8e-46, False),
        ("Sub", 0.0, False),
        ("Pow", 1 + 1e-9, False),
        ("Mul", np.nan, False),
        ("Mul", 1e300, False),
    ]:
        assert is_neutral_in_float32(op_type, np.array([value])) is expected, (op_type, value)
    assert not is_neutral_in_float32("Mul", np.array(1, np.float32))
