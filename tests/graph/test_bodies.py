"""Portable bodies of ops with several outputs, optional ones included, on an op made for the purpose."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator

import onnx_ops
from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.domain import DOMAIN, OMITTED, opset_import
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, OutputType, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.ops import ALL_VERSIONS, OPS
from onnx_ops.ops.schemas import register_schemas

SIGNATURE = Signature(
    "Parts",
    "Sum, difference and product of two tensors.",
    inputs=(Input("x", "One."), Input("y", "The other.")),
    outputs=(
        Output(
            "sum", "x + y.", OutputType("The dtype that stash_type names, else x's.", inputs=("x",), by_attribute=True)
        ),
        Output("difference", "x - y, in y's dtype.", "y", optional=True),
        Output("product", "x * y, in x's dtype.", "x", optional=True),
    ),
    attributes=(
        attribute("stash_type", 0, "The dtype of sum."),
        attribute("shifts", (1, 2), "Added to the sum."),
        OpSchema.Attribute("mode", helper.make_attribute("mode", "plain"), "Has no effect."),
        OpSchema.Attribute("scales", helper.make_attribute("scales", [0.5]), "Factors of the product."),
    ),
)


def infer(call: Call) -> tuple[TensorType, ...]:
    call.check()
    call.check_choice("stash_type", {0: "x's", 1: "float", 11: "double"})
    shape = call.broadcast("x", "y")
    return (
        TensorType(call.attributes["stash_type"] or call.dtype("x"), shape),
        TensorType(call.dtype("y"), shape),
        TensorType(call.dtype("x"), shape),
    )


def body(b: Body) -> None:
    x, y = b.load("x"), b.load("y")
    shift = b.op("ReduceSum", b.value_of("shifts"), name="shift", keepdims=0).cast(b.compute)
    b.store("sum", x + y + shift, "stash_type", "x")
    b.store("difference", x - y, "y")
    b.store("product", x * y * b.op("ReduceProd", b.value_of("scales"), keepdims=0), "x")


def expected(x: np.ndarray, y: np.ndarray, stash_type: int = 0, shifts: Sequence[int] = (1, 2)) -> list[np.ndarray]:
    sums = (x + y + np.sum(shifts)).astype(helper.tensor_dtype_to_np_dtype(stash_type) if stash_type else x.dtype)
    return [sums, (x - y).astype(y.dtype), (x * y * 0.5).astype(x.dtype)]


OP = Op(SIGNATURE, infer, lambda call: None, expected, body, Example({}, {}))


@pytest.fixture(autouse=True)
def _op_of_the_domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a test `Parts` is one of the ops."""
    ops = MappingProxyType({**OPS, OP.name: OP})
    for name, module in list(sys.modules.items()):
        for known, value in (("OPS", ops), ("ALL_VERSIONS", (*ALL_VERSIONS, OP))):
            if name.startswith("onnx_ops.") and hasattr(module, known):
                monkeypatch.setattr(module, known, value)
    register_schemas()
    yield
    onnx.defs.deregister_schema(OP.name, 1, DOMAIN)


def node(number: int, outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    names = [name and f"{name}{number}" for name in outputs]
    return helper.make_node("Parts", [f"x{number}", f"y{number}"], names, domain=DOMAIN, **attributes)


def model(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, np.ndarray], untyped: bool = False) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "parts",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), None if untyped else array.shape
            )
            for name, array in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for n in nodes for name in n.output if name],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), opset_import()], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(made, strict_mode=True)
    del made.graph.output[:]
    made.graph.output.extend(inferred.graph.output)
    return made


def arrays(*dtypes: tuple[Any, Any]) -> dict[str, np.ndarray]:
    return {
        f"{name}{number}": np.array([4.0 * (number + 1), 2.0], dtype) + index
        for number, pair in enumerate(dtypes)
        for index, (name, dtype) in enumerate(zip("xy", pair, strict=True))
    }


def answers(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Iterator[Sequence[Any]]:
    """What onnxruntime makes of a linked and of an inlined model, and the reference of the inlined one."""
    linked, inlined = onnx_ops.link(proto), onnx_ops.inline(proto)
    for version in (linked, inlined, onnx_ops.link(linked)):
        onnx.checker.check_model(version, full_check=True)
        for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
            options = ort.SessionOptions()
            options.graph_optimization_level = level
            yield ort.InferenceSession(version.SerializeToString(), options).run(None, dict(inputs))
    yield [*ReferenceEvaluator(inlined).run(None, dict(inputs))]


def same(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    for answer in answers(proto, inputs):
        for got, array in zip(answer, wanted, strict=True):
            np.testing.assert_array_equal(got, array, strict=True)


WANTED = [
    outputs
    for count in (1, 2, 3)
    for outputs in itertools.product(("sum",), *[("", name) for name in ("difference", "product")[: count - 1]])
]


@pytest.mark.parametrize("outputs", WANTED, ids="-".join)
@pytest.mark.parametrize("dtypes", [(np.float32, np.float32), (np.float16, np.float32), (np.float64, np.float16)])
def test_outputs_left_out_in_all_ways(outputs: tuple[str, ...], dtypes: tuple[Any, Any]) -> None:
    inputs = arrays(dtypes)
    every = dict(zip(OP.output_names, expected(inputs["x0"], inputs["y0"]), strict=True))
    same(model([node(0, outputs)], inputs), inputs, [every[name] for name in outputs if name])


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(WANTED, 2)))
def test_nodes_that_want_different_outputs(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    inputs = arrays((np.float32, np.float32), (np.float16, np.float64))
    wanted: list[np.ndarray] = []
    for number, outputs in enumerate((first, second)):
        every = dict(zip(OP.output_names, expected(inputs[f"x{number}"], inputs[f"y{number}"]), strict=True))
        wanted.extend(every[name] for name in outputs if name)
    same(model([node(0, first), node(1, second)], inputs), inputs, wanted)


def test_what_no_node_wants_is_not_computed() -> None:
    inputs = arrays((np.float32, np.float32))
    linked = onnx_ops.link(model([node(0, ["sum", "", "product"])], inputs))
    portable, public = linked.functions
    assert list(portable.output) == ["sum", "difference", "product"]
    assert list(public.output) == ["sum", f"{OMITTED}difference", f"{OMITTED}product"]
    assert "Sub" not in [n.op_type for n in portable.node]
    assert list(public.node[0].output) == ["sum", "", f"{OMITTED}product"]
    linked = onnx_ops.link(model([node(0, ["sum", ""])], inputs))
    assert [list(f.output) for f in linked.functions] == [["sum"], ["sum"]]
    assert list(linked.graph.node[0].output) == ["sum0"]


@pytest.mark.parametrize("outputs", WANTED, ids="-".join)
def test_linked_models_without_their_documentation_are_linked_anew(outputs: tuple[str, ...]) -> None:
    proto = model([node(0, outputs)], arrays((np.float32, np.float32)))
    linked = onnx_ops.link(proto)
    again = onnx.ModelProto.FromString(linked.SerializeToString())
    for function in again.functions:
        function.ClearField("doc_string")
    assert onnx_ops.link(again) == linked


STASHES = [
    [(np.float32, 0)],
    [(np.float16, 11)],
    [(np.float32, 1), (np.float32, 11)],
    [(np.float32, 0), (np.float32, 11)],
    [(np.float32, 0), (np.float64, 0)],
    [(np.float16, 1), (np.float64, 0), (np.float32, 11)],
    [(np.float32, 0), (np.float16, 1), (np.float64, 11)],
    [(np.float16, 0), (np.float64, 11)],
]


@pytest.mark.parametrize("stashes", STASHES, ids=str)
def test_dtype_of_an_output_that_an_attribute_tells(stashes: Sequence[tuple[Any, int]]) -> None:
    inputs = arrays(*((dtype, dtype) for dtype, _ in stashes))
    nodes = [node(i, ["sum", "", "product"], stash_type=stash) for i, (_, stash) in enumerate(stashes)]
    wanted: list[np.ndarray] = []
    for number, (_, stash) in enumerate(stashes):
        total, _, product = expected(inputs[f"x{number}"], inputs[f"y{number}"], stash)
        wanted.extend([total, product])
    same(model(nodes, inputs), inputs, wanted)


def test_dtypes_that_no_body_can_follow() -> None:
    inputs = arrays((np.float16, np.float16), (np.float16, np.float16))
    nodes = [node(0, ["sum", "", "product"]), node(1, ["sum", "", "product"], stash_type=1)]
    with pytest.raises(
        onnx_ops.LinkError, match=r"several combinations of dtypes of 'stash_type' and 'x': float, float16; "
    ):
        onnx_ops.link(model(nodes, inputs))


def test_attributes_that_are_lists_differ_between_nodes() -> None:
    inputs = arrays((np.float32, np.float32), (np.float32, np.float32))
    shifts = ([5], [1, 3, 4])
    nodes = [node(i, ["sum"], shifts=shift) for i, shift in enumerate(shifts)]
    wanted = [expected(inputs[f"x{i}"], inputs[f"y{i}"], shifts=shift)[0] for i, shift in enumerate(shifts)]
    same(model(nodes, inputs), inputs, wanted)


def test_a_function_that_is_never_called_may_want_more() -> None:
    inputs = arrays((np.float32, np.float32))
    proto = model([node(0, ["sum"])], inputs)
    inner = helper.make_node("Parts", ["x", "y"], ["s", "d"], domain=DOMAIN)
    imports = [helper.make_opsetid("", 18), opset_import()]
    proto.functions.append(helper.make_function("own", "F", ["x", "y"], ["s", "d"], [inner], imports))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    same(proto, inputs, expected(inputs["x0"], inputs["y0"])[:1])
    assert list(onnx_ops.link(proto).graph.node[0].output) == ["sum0", ""]
