"""Models that are wrong, large or made to do harm: refused in words that name the node, and in linear time."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backends
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import AttributeProto, TensorProto, checker, helper, parser, shape_inference

import onnx_ops
from onnx_ops.cli.inspection import inspect
from onnx_ops.graph import reading
from onnx_ops.linking import sites

LOSS = "BinaryCrossEntropyWithLogitsBackward"
REFUSING: dict[str, Callable[[Any], Any]] = {
    "link": onnx_ops.link,
    "inline": onnx_ops.inline,
    "session": onnx_ops.InferenceSession,
}
each_way = pytest.mark.parametrize("way", REFUSING)


def model_of(text: str, imports: str = '"" : 21, "aclnn" : 1, "own" : 1') -> onnx.ModelProto:
    return parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]>\n{text}")


def problems_of(model: onnx.ModelProto) -> list[str]:
    seen = inspect(model)
    assert not seen.ok
    return [*seen.problems, *(problem for node in seen.nodes for problem in node.problems)]


# --- the node that is refused ----------------------------------------------------------------------------------------

SHAPES = r"^HardshrinkBackward: input 'self' has shape \(2, 4\), expected .*"
STATUS = r" \(ACLNN_ERR_PARAM_INVALID, 161002\)$"
PLACES = {
    "graph": (
        "graph (float[2,3] g, float[2,4] x) => (float[2,3] o) { [it] o = aclnn.HardshrinkBackward (g, x) }",
        "node 'it'",
    ),
    "graph-without-name": (
        "graph (float[2,3] g, float[2,4] x) => (float[2,3] o) { o = aclnn.HardshrinkBackward (g, x) }",
        "node with output 'o'",
    ),
    "function": (
        """graph (float[2,3] g, float[2,4] x) => (float[2,3] o) { [call] o = own.F (g, x) }
        <domain: "own", opset_import: ["aclnn" : 1]> F (g, x) => (o) { [it] o = aclnn.HardshrinkBackward (g, x) }""",
        "node 'it' in function own.F",
    ),
    "function-without-name": (
        """graph (float[2,3] g, float[2,4] x) => (float[2,3] o) { [call] o = own.F (g, x) }
        <domain: "own", opset_import: ["aclnn" : 1]> F (g, x) => (r) { r = aclnn.HardshrinkBackward (g, x) }""",
        "node with output 'r' in function own.F",
    ),
    "function-in-function": (
        """graph (float[2,3] g, float[2,4] x) => (float[2,3] o) { o = own.Outer (g, x) }
        <domain: "own", opset_import: ["aclnn" : 1]> Inner (g, x) => (o) { [it] o = aclnn.HardshrinkBackward (g, x) }
        <domain: "own", opset_import: ["own" : 1]> Outer (g, x) => (o) { o = own.Inner (g, x) }""",
        "node 'it' in function own.Inner",
    ),
    "subgraph": (
        """graph (bool q, float[2,3] g, float[2,4] x) => (float[2,3] o) { [choose] o = If (q) <
            then_branch = yes () => (float[2,3] r) { [it] r = aclnn.HardshrinkBackward (g, x) },
            else_branch = no () => (float[2,3] s) { s = Identity (g) }> }""",
        "node 'it' in graph / If choose / yes",
    ),
    "subgraph-in-function": (
        """graph (bool q, float[2,3] g, float[2,4] x) => (float[2,3] o) { o = own.F (q, g, x) }
        <domain: "own", opset_import: ["" : 21, "aclnn" : 1]> F (q, g, x) => (o) { o = If (q) <
            then_branch = yes () => (r) { [it] r = aclnn.HardshrinkBackward (g, x) },
            else_branch = no () => (s) { s = Identity (g) }> }""",
        "node 'it' in function own.F / If o / yes",
    ),
}


@each_way
@pytest.mark.parametrize("place", PLACES)
def test_refusal_names_the_node(place: str, way: str) -> None:
    text, words = PLACES[place]
    model = model_of(text)
    with pytest.raises(onnx_ops.OpError, match=f"{SHAPES}; {words}{STATUS}") as refusal:
        REFUSING[way](model)
    assert refusal.value.node == words
    assert problems_of(model) == [str(refusal.value)]


CALLS: dict[str, tuple[str, str]] = {
    "no-such-op": ("HardshrinkForward (g, x)", "no such op"),
    "attribute": ("HardshrinkBackward <foo = 1> (g, x)", "unknown attribute 'foo'"),
    "attribute-type": ("HardshrinkBackward <lambd: int = 1> (g, x)", "has type INT, expected FLOAT"),
    "attribute-value": ("KlDivBackward <reduction: int = 7> (g, x, x)", "'reduction' is 7"),
    "inputs": ("HardshrinkBackward (g, x, x)", "got 3 inputs, expected at most 2"),
    "missing-input": ("HardshrinkBackward (g)", "required input 'self' is missing"),
}


@each_way
@pytest.mark.parametrize("call", CALLS)
def test_every_kind_of_refusal_names_the_node(call: str, way: str) -> None:
    text, problem = CALLS[call]
    model = model_of(
        f"""graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {{ o = own.F (g, x) }}
        <domain: "own", opset_import: ["aclnn" : 1]> F (g, x) => (r) {{ [it] r = aclnn.{text} }}"""
    )
    with pytest.raises(onnx_ops.OpError, match=rf"{problem}.*; node 'it' in function own\.F \("):
        REFUSING[way](model)
    (found,) = problems_of(model)
    assert found.split(": ", 1)[1].startswith(problem) or problem in found


def test_outputs_of_a_node_that_is_refused() -> None:
    two = model_of("graph (float[2] g) => (float[2] o) { [it] o, p = aclnn.HardshrinkBackward (g, g) }")
    unnamed = model_of("graph (float[2] g) => (float[2] o) { [it] o = aclnn.HardshrinkBackward (g, g) }")
    unnamed.graph.node[0].output[0] = ""
    for model, problem in (
        (two, "got 2 outputs, expected 1: grad_input"),
        (unnamed, "required output 'grad_input' has no name"),
    ):
        with pytest.raises(onnx_ops.OpError, match=f"{problem}; node 'it'"):
            onnx_ops.link(model)


@pytest.mark.parametrize("strict", [True, False])
def test_shape_inference_names_the_node(strict: bool) -> None:
    """As far as onnx tells it, which is the name."""
    model = model_of(PLACES["graph"][0])
    with pytest.raises(onnx_ops.OpError, match=f"{SHAPES}; node 'it'{STATUS}"):
        shape_inference.infer_shapes(model, strict_mode=strict)
    with pytest.raises(onnx_ops.OpError, match=f"{SHAPES}; node 'it'{STATUS}"):
        checker.check_model(model, full_check=True)
    model.graph.node[0].name = ""
    with pytest.raises(onnx_ops.OpError, match=f"{SHAPES}{STATUS}"):
        shape_inference.infer_shapes(model, strict_mode=strict)


def test_combinations_of_dtypes_name_the_node() -> None:
    model = model_of(
        """graph (float16[2] a, bfloat16[2] b) => (float[2] o, float16[2] p) {
            o = own.F (a, b)
            p = own.F (a, a)
        }
        <domain: "own", opset_import: ["aclnn" : 1]>
        F (g, x) => (o) { [it] o = aclnn.HardshrinkBackward <lambd: float = 0.1> (g, x) }"""
    )
    with pytest.raises(onnx_ops.LinkError, match=r"several combinations.*: node 'it' in function own\.F$"):
        onnx_ops.link(model)


# --- attributes and inputs that are not what they say ----------------------------------------------------------------

PASSED_ON = """graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {{ o = own.F <l = {}> (g, x) }}
    <domain: "own", opset_import: ["aclnn" : 1]>
    F <l> (g, x) => (o) {{ [it] o = aclnn.HardshrinkBackward <lambd: float = @l> (g, x) }}"""


@each_way
@pytest.mark.parametrize(("value", "kind"), [('"wide"', "STRING"), ("7", "INT"), ("[0.5, 1.0]", "FLOATS")])
def test_attribute_of_a_wrong_type_that_a_function_passes_on(value: str, kind: str, way: str) -> None:
    model = model_of(PASSED_ON.format(value))
    message = rf"attribute 'lambd' has type {kind}, expected FLOAT; node 'it' in function own\.F"
    with pytest.raises(onnx_ops.OpError, match=message):
        REFUSING[way](model)
    assert len(problems_of(model)) == 1


def _node(model: onnx.ModelProto) -> onnx.NodeProto:
    return model.graph.node[0]


def _twice(model: onnx.ModelProto) -> None:
    _node(model).attribute.extend([helper.make_attribute("lambd", 0.5), helper.make_attribute("lambd", 0.25)])


def _no_value(model: onnx.ModelProto) -> None:
    _node(model).attribute.add(name="lambd", type=AttributeProto.FLOAT, i=3)


def _unknown_type(model: onnx.ModelProto) -> None:
    _node(model).attribute.add(name="lambd", type=AttributeProto.UNDEFINED, f=0.5)


def _reference(model: onnx.ModelProto) -> None:
    _node(model).attribute.add(name="lambd", type=AttributeProto.FLOAT, ref_attr_name="nowhere")


@each_way
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_twice, "attribute 'lambd' is given twice"),
        (_no_value, "attribute 'lambd' has no value of its type, FLOAT"),
        (_unknown_type, "attribute 'lambd' has type UNDEFINED, expected FLOAT"),
        (_reference, "attribute 'lambd' is '@nowhere', expected a value in a graph"),
    ],
)
def test_damaged_attribute(change: Callable[[onnx.ModelProto], None], problem: str, way: str) -> None:
    model = model_of("graph (float[2,3] g) => (float[2,3] o) { [it] o = aclnn.HardshrinkBackward (g, g) }")
    change(model)
    with pytest.raises(onnx_ops.OpError, match=f"{problem}; node 'it'"):
        REFUSING[way](model)
    assert len(problems_of(model)) == 1


@each_way
@pytest.mark.parametrize(("maker", "kind"), [("SequenceConstruct (x)", "sequence"), ("Optional (x)", "optional")])
def test_input_that_is_no_tensor(maker: str, kind: str, way: str) -> None:
    model = model_of(
        f"""graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {{
            s = {maker}
            [it] o = aclnn.HardshrinkBackward (g, s)
        }}"""
    )
    with pytest.raises(onnx_ops.OpError, match=f"input 'self' is of {kind} type, expected a tensor; node 'it'"):
        REFUSING[way](model)
    assert len(problems_of(model)) == 1


# --- names that are no text, and what is no model ---------------------------------------------------------------------

NAMED = """graph (float[QQQQ,3] g, float[QQQQ,3] xxxx) => (float[QQQQ,3] o) { [nnnn] o = oooo.FFFF (g, xxxx) }
    <domain: "oooo", opset_import: ["aclnn" : 1]> FFFF (g, x) => (o) { o = aclnn.HardshrinkBackward (g, x) }"""


@each_way
@pytest.mark.parametrize("name", ["QQQQ", "xxxx", "nnnn", "oooo", "FFFF"])
def test_name_that_is_no_text(name: str, way: str) -> None:
    content = model_of(NAMED, '"" : 21, "aclnn" : 1, "oooo" : 1').SerializeToString()
    damaged = content.replace(name.encode(), name[:1].encode() + b"\xff\xfe" + name[3:].encode())
    message = r"there is a name in it that is no text, b'.\\xff\\xfe.'"
    with pytest.raises(onnx_ops.LinkError, match=message):
        REFUSING[way](damaged)
    model = onnx.load_model_from_string(damaged)
    with pytest.raises(onnx_ops.LinkError, match=message):
        REFUSING[way](model)
    (problem,) = problems_of(model)
    assert "that is no text" in problem


@each_way
@pytest.mark.parametrize("name", ["wwww", "llll"])
def test_name_in_a_tensor_that_is_no_text(name: str, way: str) -> None:
    model = model_of("graph (float[2] g) => (float[2] o) { o = aclnn.HardshrinkBackward (g, x) }")
    tensor = model.graph.initializer.add(name="wwww", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="llll")
    damaged = model.SerializeToString().replace(name.encode(), name[:2].encode() + b"\xff\xfe")
    with pytest.raises(onnx_ops.LinkError, match="there is a name in it that is no text"):
        REFUSING[way](damaged)


@each_way
@pytest.mark.parametrize("content", [b"", b"\0", b"\xff" * 50, b"\x0a", onnx.ModelProto(ir_version=8)])
def test_what_is_no_model(content: Any, way: str) -> None:
    with pytest.raises(onnx_ops.LinkError, match="this is no ONNX model"):
        REFUSING[way](content)


# --- functions --------------------------------------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ("[1073741824, 1073741824] g, float[1, 1]", "input 'grad_output' has shape (1073741824, 1073741824), expected"),
        ("[1073741824, 1] g, float[1, 1073741824]", "output 'grad_input' has shape (1073741824, 1073741824), expected"),
    ],
    ids=["input", "output"],
)
def test_sizes_that_no_memory_holds(shapes: str, words: str, way: str) -> None:
    model = model_of(f"graph (float{shapes} x) => (float[N, M] o) {{ o = aclnn.HardshrinkBackward (g, x) }}")
    with pytest.raises(onnx_ops.OpError, match=re.escape(words)):
        REFUSING[way](model)


def test_sizes_of_a_run_that_no_memory_holds() -> None:
    text = "graph (float[N, D] g, int64[N] i) => (float[V, D] o) { %s }"
    node = "o = aclnn.EmbeddingDenseBackward <num_weights = 2147483647> (g, i)"
    session = backends.kernel_session(model_of(text % node))
    for width, words in (
        (2**40, "output 'out' has shape (2147483647, 1099511627776)"),
        (2**49, "input 'grad' has shape"),
    ):
        feeds = {"g": np.empty((0, width), np.float32), "i": np.empty(0, np.int64)}
        with pytest.raises(Exception, match=rf"EmbeddingDenseBackward: {re.escape(words)}.*expected at most"):
            session.run(None, feeds)


EMPTY_NODE = b"\x0a\x00"


@each_way
def test_nodes_without_operator(way: str) -> None:
    """They take two bytes each, but a walk over the model as long as any."""
    graph = model_of("graph (float[2] x) => (float[2] y) { y = aclnn.Hardshrink (x) }").graph
    many = onnx.GraphProto.FromString(graph.SerializeToString() + 300_000 * EMPTY_NODE)
    start = time.process_time()
    with pytest.raises(onnx_ops.LinkError, match="a node in it that names no operator"):
        REFUSING[way](onnx.ModelProto(ir_version=10, graph=many))
    assert time.process_time() - start < 1


@each_way
def test_too_many_nodes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_NODES", 2)
    nodes = """{ y = own.F (x) [if] z = If (k) <then_branch = a () => (float[2] s) { s = Abs (x) },
        else_branch = b () => (float[2] t) { t = aclnn.Hardshrink (x) }> }"""
    model = model_of(f"graph (float[2] x, bool k) => (float[2] z) {nodes}")
    with pytest.raises(onnx_ops.LinkError, match=r"^this has more than 2 nodes"):
        REFUSING[way](model)


@pytest.mark.parametrize("text", ["a" * 3_000_000, '\\"' * 300_000], ids=["letters", "quotes"])
def test_string_without_end(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnxtxt"
    path.write_text(f'<ir_version: 10, doc_string: "{text}', encoding="utf-8")
    start = time.process_time()
    with pytest.raises(onnx_ops.LinkError, match=r"is no ONNX model: .*Incomplete string literal") as refusal:
        onnx_ops.link(path)
    assert len(str(refusal.value)) < 2000
    assert time.process_time() - start < 2


@each_way
@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_function_called_with_too_much(kind: str, way: str) -> None:
    call = "o = own.F (g, x, x)" if kind == "inputs" else "o, p = own.F (g, x)"
    expected = "3 inputs, expected at most 2: g, x" if kind == "inputs" else "2 outputs, expected at most 1: r"
    model = model_of(
        f"""graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {{ [call] {call} }}
        <domain: "own", opset_import: ["aclnn" : 1]> F (g, x) => (r) {{ r = aclnn.HardshrinkBackward (g, x) }}"""
    )
    with pytest.raises(onnx_ops.LinkError, match=f"^node 'call' calls function own.F with {expected}$"):
        REFUSING[way](model)
    assert len(problems_of(model)) == 1


CIRCLES = {
    "itself": ("own.F calls own.F", "o = own.F (h, x)", ""),
    "each-other": (
        "own.F calls own.G calls own.F",
        "o = own.G (h, x)",
        '<domain: "own", opset_import: ["own" : 1]> G (g, x) => (o) { o = own.F (g, x) }',
    ),
    "in-a-subgraph": (
        "own.F calls own.F",
        "o = If (q) <then_branch = yes () => (r) { r = own.F (h, x) }, else_branch = no () => (s) { s = Neg (h) }>",
        "",
    ),
}


@each_way
@pytest.mark.parametrize("circle", CIRCLES)
def test_functions_in_a_circle(circle: str, way: str) -> None:
    names, last, more = CIRCLES[circle]
    model = model_of(
        f"""graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {{ o = own.F (g, x) }}
        <domain: "own", opset_import: ["" : 21, "aclnn" : 1, "own" : 1]> F (g, x) => (o) {{
            q = Constant <value_int = 1> ()
            h = aclnn.HardshrinkBackward (g, x)
            {last}
        }}
        {more}"""
    )
    with pytest.raises(onnx_ops.LinkError, match=f"are recursive: {names}$"):
        REFUSING[way](model)
    assert len(problems_of(model)) == 1


def test_functions_of_the_same_name() -> None:
    model = model_of(NAMED, '"" : 21, "aclnn" : 1, "oooo" : 1')
    model.functions.append(model.functions[0])
    with pytest.raises(onnx_ops.LinkError, match=r"the model has several functions oooo\.FFFF"):
        onnx_ops.link(model)


def nested(levels: int, fan: int, op: str = "aclnn.HardshrinkBackward") -> onnx.ModelProto:
    """A node, and fan ** (levels - 1) of the op: each function but the first calls the one before it fan times."""
    imports = '"" : 21, "aclnn" : 1, "own" : 1'
    texts = [
        "graph (float[2] g, float[2] x) => (float[2] o) {\n"
        f"h = aclnn.HardshrinkBackward (g, x)\no = own.F{levels - 1} (h, x)\n}}",
        f'<domain: "own", opset_import: [{imports}]> F0 (g, x) => (o) {{ o = {op} (g, x) }}',
    ]
    values = ["g", *(f"t{i}" for i in range(fan - 1)), "o"]
    for level in range(1, levels):
        calls = "\n".join(f"{out} = own.F{level - 1} ({given}, x)" for given, out in itertools.pairwise(values))
        texts.append(f'<domain: "own", opset_import: [{imports}]> F{level} (g, x) => (o) {{ {calls} }}')
    return model_of("\n".join(texts))


@each_way
@pytest.mark.parametrize(
    ("levels", "op", "message"),
    [
        (6, "aclnn.HardshrinkBackward", "100001 nodes of domain aclnn once .*, expected at most 50000"),
        (16, "aclnn.HardshrinkBackward", "1000000000000001 nodes once .*, expected at most 1000000"),
        (16, "Add", "1000000000000001 nodes once .*, expected at most 1000000"),
    ],
)
def test_functions_that_make_too_much_of_a_model(levels: int, op: str, message: str, way: str) -> None:
    """Up to 10^15 nodes of 5 KB: counted, not made."""
    model = nested(levels, 10, op)
    assert model.ByteSize() < 5000
    with pytest.raises(onnx_ops.LinkError, match=f"the model has {message}$"):
        REFUSING[way](model)
    assert len(problems_of(model)) == 1


def test_limit_counts_what_inlining_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nested(4, 3)
    monkeypatch.setattr(sites, "MOST_NODES_OF_DOMAIN", 28)
    (node, other) = inspect(model).nodes
    assert (len(node.uses), len(other.uses)) == (1, 27)
    onnx_ops.link(model)
    monkeypatch.setattr(sites, "MOST_NODES_OF_DOMAIN", 27)
    with pytest.raises(onnx_ops.LinkError, match="has 28 nodes of domain aclnn"):
        onnx_ops.link(model)


def test_ones_in_a_subgraph_of_a_function() -> None:
    scan = "o = Scan <num_scan_inputs = 1, body = step (a) => (r) {{ r = aclnn.{} (a, a, a) }}> (x)"
    model = model_of(
        f"""graph (float[2,3] x, float[2,3] w) => (float[2,3] o, float[2,3] p) {{
            o = own.F (x)
            p = aclnn.{LOSS} <reduction = 0> (x, x, x, w)
        }}
        <domain: "own", opset_import: ["" : 21, "aclnn" : 1]>
        F (x) => (o) {{ {scan.format(f"{LOSS} <reduction: int = 0>")} }}"""
    )
    x = np.array([[1, -2, 3], [0.5, 0, -1]], np.float32)
    wide = x.astype(np.float64)
    expected = wide * (1 / (1 + np.exp(-wide)) - wide)
    session = ort.InferenceSession(onnx_ops.link(model).SerializeToString())
    for actual in session.run(None, {"x": x, "w": np.ones_like(x)}):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)  # a few roundings in float32


# --- time -------------------------------------------------------------------------------------------------------------


def _value(name: str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [2, 3])


def chain(kind: str, count: int) -> onnx.ModelProto:
    """As many nodes one after another; they differ as the kind says."""
    imports = [helper.make_opsetid("", 21), onnx_ops.opset_import(), helper.make_opsetid("own", 1)]
    nodes, functions = [], []
    before = "g"
    for i in range(count):
        out = f"h{i}"
        if kind == "functions":
            inner = helper.make_node("HardshrinkBackward", ["a", "b"], ["c"], domain="aclnn")
            functions.append(helper.make_function("own", f"F{i}", ["a", "b"], ["c"], [inner], imports))
            nodes.append(helper.make_node(f"F{i}", [before, "x"], [out], domain="own"))
        elif kind == "optional-inputs":
            weight = ["x"] if i % 2 else []
            nodes.append(helper.make_node(LOSS, [before, "x", "x", *weight], [out], domain="aclnn", reduction=0))
        elif kind == "dtypes":
            wide = ["x", "d", "f"][i % 3]
            nodes.append(helper.make_node("HardshrinkBackward", ["g", wide], [out], domain="aclnn"))
        else:
            attributes = {"lambd": i / count} if kind == "attributes" else {}
            nodes.append(helper.make_node("HardshrinkBackward", [before, "x"], [out], domain="aclnn", **attributes))
        before = out
    inputs = [_value("g"), _value("x"), _value("d", TensorProto.DOUBLE), _value("f", TensorProto.FLOAT16)]
    graph = helper.make_graph(nodes, "chain", inputs, [onnx.ValueInfoProto(name=before)])
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=functions)


def _seconds(work: Callable[[onnx.ModelProto], Any], model: onnx.ModelProto) -> float:
    """The least of two times that the processor was busy with it, whoever else is."""
    times = []
    for _ in range(2):
        start = time.process_time()
        work(model)
        times.append(time.process_time() - start)
    return min(times)


KINDS = ["alike", "attributes", "optional-inputs", "dtypes", "functions"]
WORKS = [*((onnx_ops.link, kind) for kind in KINDS), (onnx_ops.inline, "optional-inputs"), (inspect, "optional-inputs")]
SOON = [(onnx_ops.link, "optional-inputs"), (onnx_ops.link, "functions")]


@pytest.mark.parametrize(
    ("work", "kind"),
    [pytest.param(*work, marks=() if work in SOON else pytest.mark.full) for work in WORKS],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_time_grows_as_the_model(work: Callable[[onnx.ModelProto], Any], kind: str) -> None:
    """Four times the nodes take four times as long; in quadratic time it would be sixteen."""
    small, large = (_seconds(work, chain(kind, count)) for count in (500, 2000))
    assert large < 7 * small


RESHAPED = "all = Constant <value = int64[1] {-1}> () x = Reshape (y, all)"
SUM = f"{{ {RESHAPED} squares = Mul (x, x) sum = ReduceSum (squares) }}"  # a vector that the branch alone has


@pytest.mark.parametrize(
    ("inputs", "nodes"),
    [
        (f"float[{2**40}] x", "sum = Mul (x, x)"),
        (f"float[2, {2**39}] y", f"{RESHAPED} sum = Mul (x, x)"),
        (
            f"float[2, {2**39}] y, bool c",
            f"sum = If (c) <then_branch = a () => (float[M] sum) {SUM}, else_branch = b () => (float[M] sum) {SUM}>",
        ),
    ],
    ids=["input", "value", "branch"],
)
def test_long_vectors_are_linked_without_propagating_their_elements(inputs: str, nodes: str) -> None:
    """In a process with little memory: onnx's data propagation would take some for each element."""
    code = f"""
import resource, onnx, onnx_ops
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
    long ({inputs}) => (float[N] out) {{
        {nodes}
        out = aclnn.Hardshrink (sum)
    }}''')
onnx_ops.link(model)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
