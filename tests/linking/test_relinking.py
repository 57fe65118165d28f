"""Models that are linked already, and what other tools have made of them since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import compose, helper, inliner, numpy_helper, parser

import onnx_ops
import onnx_ops.integrations.sessions
import onnx_ops.linking.link
from onnx_ops.cli.inspection import Linked, inspect
from onnx_ops.integrations import prebuilt
from onnx_ops.integrations.examples import example_model
from onnx_ops.linking.link import link_in_place
from onnx_ops.ops import OPS

Array = np.ndarray[Any, Any]
PUBLIC = ("aclnn", "HardshrinkBackward")
BODY = ("ai.onnx.contrib", "aclnn_HardshrinkBackward_v1")

G = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
X = np.array([[-1, 0.25, 0.75], [0.375, 0.25, -0.5]], np.float32)
EXPECTED = np.array([[1, 0, 3], [-4, 0, -6]], np.float32)  # the gradient where |x| > 0.3


def model(then: str = "o = Identity (h)") -> onnx.ModelProto:
    return parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
        graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {{
            h = aclnn.HardshrinkBackward <lambd: float = 0.3> (g, x)
            {then}
        }}"""
    )


WEIGHTED = parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
    graph (float[2,1000] x) => (float[a,b] o) <int64[2] s = {2000, 1}, float[2,1000] w> {
        h = aclnn.HardshrinkBackward <lambd: float = 0.25> (x, w)
        o = Reshape (h, s)
    }"""
)
WEIGHTED.graph.initializer.append(numpy_helper.from_array(np.ones((2, 1000), np.float32), "w"))


def copied(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def run_everywhere(proto: onnx.ModelProto) -> None:
    """Kernel, function body and inlined, each with the right numbers; inputs in the order of the graph."""
    feeds = dict(zip([i.name for i in proto.graph.input], (G, X), strict=True))
    linked = onnx_ops.link(proto)
    sessions = [
        onnx_ops.InferenceSession(proto),
        ort.InferenceSession(linked.SerializeToString(), onnx_ops.session_options()),
        ort.InferenceSession(linked.SerializeToString()),
        ort.InferenceSession(onnx_ops.inline(proto).SerializeToString()),
    ]
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, feeds)[0], EXPECTED)
    assert onnx_ops.link(linked).SerializeToString() == linked.SerializeToString()
    assert inspect(linked).linked is Linked.CURRENT


# --- what other tools make of a linked model --------------------------------------------------------------------------


def inlined_by_another_tool(linked: onnx.ModelProto) -> onnx.ModelProto:
    """The public function is put in place of its node; the body stays a function, and is called by the graph."""
    result = inliner.inline_selected_functions(linked, [PUBLIC], exclude=False)
    assert BODY in [(n.domain, n.op_type) for n in result.graph.node]
    assert [(f.domain, f.name) for f in result.functions] == [BODY]
    return result


def body_inlined_by_another_tool(linked: onnx.ModelProto) -> onnx.ModelProto:
    """The other way round: the body is put into the public function, which no kernel's name tells any more."""
    result = inliner.inline_selected_functions(linked, [BODY], exclude=False)
    assert [(f.domain, f.name) for f in result.functions] == [PUBLIC]
    return result


def with_prefix(linked: onnx.ModelProto) -> onnx.ModelProto:
    result = compose.add_prefix(linked, "my_")
    assert ("aclnn", "my_HardshrinkBackward") in [(n.domain, n.op_type) for n in result.graph.node]
    return result


def prefix_then_inlined(linked: onnx.ModelProto) -> onnx.ModelProto:
    result = compose.add_prefix(linked, "my_")
    return inliner.inline_selected_functions(result, [("aclnn", "my_HardshrinkBackward")], exclude=False)


def kernel_node_alone(linked: onnx.ModelProto) -> onnx.ModelProto:
    result = inlined_by_another_tool(linked)
    del result.functions[:]
    return result


def without(name: tuple[str, str]) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    def change(linked: onnx.ModelProto) -> onnx.ModelProto:
        kept = [f for f in linked.functions if (f.domain, f.name) != name]
        result = copied(linked)
        del result.functions[:]
        result.functions.extend(kept)
        return result

    return change


def reversed_functions(linked: onnx.ModelProto) -> onnx.ModelProto:
    functions = [*reversed(copied(linked).functions)]
    result = copied(linked)
    del result.functions[:]
    result.functions.extend(functions)
    return result


def doubled_functions(linked: onnx.ModelProto) -> onnx.ModelProto:
    result = copied(linked)
    result.functions.extend(linked.functions)
    return result


def other_body(linked: onnx.ModelProto) -> onnx.ModelProto:
    result = copied(linked)
    next(f for f in result.functions if f.name == BODY[1]).node[0].op_type = "Neg"
    return result


def more_attributes(linked: onnx.ModelProto) -> onnx.ModelProto:
    result = copied(linked)
    next(f for f in result.functions if f.name == PUBLIC[1]).attribute.append("another")
    return result


def without_documentation(linked: onnx.ModelProto) -> onnx.ModelProto:
    """As a tool that strips what no session reads."""
    result = copied(linked)
    for function in result.functions:
        function.ClearField("doc_string")
    del result.metadata_props[:]
    return result


def unversioned(linked: onnx.ModelProto) -> onnx.ModelProto:
    """As linked by a version of onnx_ops whose kernels had names without a version."""
    result = copied(linked)
    for function in result.functions:
        function.name = function.name.removesuffix("_v1")
        for node in function.node:
            node.op_type = node.op_type.removesuffix("_v1")
    assert "aclnn_HardshrinkBackward" in [f.name for f in result.functions]
    return result


CHANGES = {
    change.__name__: change
    for change in (
        inlined_by_another_tool,
        body_inlined_by_another_tool,
        with_prefix,
        prefix_then_inlined,
        kernel_node_alone,
        reversed_functions,
        doubled_functions,
        other_body,
        more_attributes,
        without_documentation,
        unversioned,
    )
} | {"without_public": without(PUBLIC), "without_body": without(BODY)}
BROKEN = {"kernel_node_alone", "without_body"}
"""Changes after which no session without the kernels can load the model."""


@pytest.mark.parametrize("change", CHANGES)
def test_changed_model_is_linked_anew(change: str) -> None:
    changed = CHANGES[change](onnx_ops.link(model()))
    before = changed.SerializeToString()
    seen = inspect(changed)
    assert seen.ok
    assert seen.linked is (Linked.BROKEN if change in BROKEN else Linked.STALE)
    assert [(node.op, len(node.uses)) for node in seen.nodes] == [("HardshrinkBackward", 1)]
    run_everywhere(changed)
    linked = onnx_ops.link(changed)
    assert sorted((f.domain, f.name) for f in linked.functions) == [PUBLIC, BODY]
    assert changed.SerializeToString() == before


def test_two_linked_models_merged() -> None:
    """With prefixes both keep functions of their own, which are the same."""
    one, other = onnx_ops.link(model()), onnx_ops.link(model())
    merged = compose.merge_models(
        compose.add_prefix(one, "a_"), compose.add_prefix(other, "b_"), io_map=[("a_o", "b_g")]
    )
    assert [i.name for i in merged.graph.input] == ["a_g", "a_x", "b_x"]
    feeds = {"a_g": G, "a_x": X, "b_x": X}
    for proto in (onnx_ops.link(merged), onnx_ops.inline(merged)):
        session = ort.InferenceSession(proto.SerializeToString())
        np.testing.assert_array_equal(session.run(None, feeds)[0], EXPECTED)


@pytest.mark.parametrize("op_type", OPS)
def test_model_that_a_session_has_optimized(op_type: str, tmp_path: Path) -> None:
    op = OPS[op_type]
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnx_ops.InferenceSession(example_model(op), options)
    optimized = onnx.load_model(tmp_path / "optimized.onnx")
    assert ("ai.onnx.contrib", f"aclnn_{op_type}_v1") in [(n.domain, n.op_type) for n in optimized.graph.node]
    seen = inspect(optimized)
    assert seen.ok
    assert seen.linked is Linked.BROKEN
    assert [(node.op, node.bare_kernel) for node in seen.nodes] == [(op_type, f"ai.onnx.contrib.aclnn_{op_type}_v1")]
    with pytest.raises(Exception, match=f"aclnn_{op_type}_v1"):
        ort.InferenceSession(optimized.SerializeToString())
    for session in (
        onnx_ops.InferenceSession(optimized),
        ort.InferenceSession(onnx_ops.link(optimized).SerializeToString()),
        ort.InferenceSession(onnx_ops.inline(optimized).SerializeToString()),
    ):
        # Examples are worked out by hand; float32 gives them but for a rounding.
        for result, expected in zip(
            session.run(None, op.example.arrays()), op.example.expected().values(), strict=True
        ):
            np.testing.assert_allclose(result, expected, atol=1e-7)


def test_kernel_of_an_op_that_there_is_not() -> None:
    """As an optimised model of another version may have; nothing could run it."""
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "ai.onnx.contrib" : 1]>
        graph (float[2,3] g) => (float[2,3] o) { [it] o = ai.onnx.contrib.aclnn_SoftsignBackward (g, g) }"""
    )
    for refusing in (onnx_ops.link, onnx_ops.inline, onnx_ops.InferenceSession):
        with pytest.raises(onnx_ops.OpError, match=r"SoftsignBackward: no such op in domain aclnn.*; node 'it' \("):
            refusing(proto)
    assert "no such op" in inspect(proto).nodes[0].problems[0]


def test_kernels_without_a_version() -> None:
    """No kernel serves them: there is no knowing of which version they are where they run."""
    old = unversioned(onnx_ops.link(model()))
    body = next(f for f in old.functions if f.name == "aclnn_HardshrinkBackward")
    del body.node[:]
    body.node.append(helper.make_node("Sub", body.input, body.output))
    for options in (None, onnx_ops.session_options()):
        session = ort.InferenceSession(old.SerializeToString(), options)
        np.testing.assert_array_equal(session.run(None, {"g": G, "x": X})[0], G - X)
    run_everywhere(old)
    assert [(f.domain, f.name) for f in onnx_ops.link(old).functions] == [BODY, PUBLIC]


# --- overloads and functions of one's own -----------------------------------------------------------------------------


def test_overload_of_an_op_is_the_op() -> None:
    proto = model()
    proto.graph.node[0].overload = "special"
    run_everywhere(proto)


def test_functions_of_ones_own_in_our_domains() -> None:
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "ai.onnx.contrib" : 1]>
        graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {
            m = aclnn.Mine (g)
            p = ai.onnx.contrib.aclnn_Mine (m)
            o = aclnn.HardshrinkBackward <lambd: float = 0.3> (p, x)
        }
        <domain: "aclnn", opset_import: ["" : 21]> Mine (x) => (o) { o = Neg (x) }
        <domain: "ai.onnx.contrib", opset_import: ["" : 21]> aclnn_Mine (x) => (o) { o = Neg (x) }"""
    )
    run_everywhere(proto)
    names = [(f.domain, f.name) for f in onnx_ops.link(proto).functions]
    assert names == [BODY, PUBLIC, ("aclnn", "Mine"), ("ai.onnx.contrib", "aclnn_Mine")]


def test_function_of_ones_own_with_the_name_of_an_op_is_refused() -> None:
    """It would give way to the op without a word."""
    proto = model()
    proto.functions.append(
        parser.parse_function(
            '<domain: "aclnn", opset_import: ["" : 21]> HardshrinkBackward (g, x) => (o) { o = Neg (x) }'
        )
    )
    message = r"brings a function aclnn\.HardshrinkBackward of its own, which is the name of an op"
    for refusing in (onnx_ops.link, onnx_ops.inline, onnx_ops.InferenceSession):
        with pytest.raises(onnx_ops.LinkError, match=message):
            refusing(proto)
    (problem,) = inspect(proto).problems
    assert "of its own" in problem


@pytest.mark.parametrize("version", [1, 2])
def test_any_version_of_the_kernels_domain_will_do(version: int) -> None:
    """Others put ops of their own there, under whatever version they like."""
    proto = model()
    proto.opset_import.append(helper.make_opsetid("ai.onnx.contrib", version))
    run_everywhere(proto)


def test_function_that_does_not_import_the_domain() -> None:
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "own" : 1]>
        graph (float[2,3] g, float[2,3] x) => (float[2,3] o) { o = own.F (g, x) }
        <domain: "own", opset_import: ["" : 21]>
        F (g, x) => (o) { o = aclnn.HardshrinkBackward <lambd: float = 0.3> (g, x) }"""
    )
    run_everywhere(proto)


def test_function_that_imports_another_version_of_the_domain_is_refused() -> None:
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "own" : 1]>
        graph (float[2,3] g, float[2,3] x) => (float[2,3] o) { o = own.F (g, x) }
        <domain: "own", opset_import: ["" : 21, "aclnn" : 2]>
        F (g, x) => (o) { o = aclnn.HardshrinkBackward <lambd: float = 0.3> (g, x) }"""
    )
    with pytest.raises(
        onnx_ops.LinkError, match=r"function own\.F imports version 2 of domain aclnn, expected at most 1: update"
    ):
        onnx_ops.link(proto)


# --- what a linked model says of itself -------------------------------------------------------------------------------


def test_attached_functions_say_what_they_are() -> None:
    portable, public = onnx_ops.link(model()).functions
    for function in (portable, public):
        assert function.doc_string.startswith("aclnn.HardshrinkBackward: Gradient of Hardshrink")
        assert function.doc_string.endswith(f"Attached by onnx_ops {onnx_ops.__version__}.")
    assert "standard operators" in portable.doc_string
    assert "calls the kernel" in public.doc_string


def _metadata(proto: onnx.ModelProto) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in proto.metadata_props]


def test_linked_model_tells_the_version() -> None:
    proto = model()
    proto.metadata_props.add(key="author", value="someone")
    linked = onnx_ops.link(proto)
    own = dict(_metadata(linked))
    assert list(own) == ["author", "onnx_ops.version", "onnx_ops.digest"]
    assert (own["author"], own["onnx_ops.version"]) == ("someone", onnx_ops.__version__)
    assert inspect(linked).linked_by == onnx_ops.__version__
    assert inspect(proto).linked_by is None
    assert _metadata(onnx_ops.inline(proto)) == _metadata(linked)[:2]
    linked.metadata_props.add(key="reviewed", value="yes")
    assert onnx_ops.link(linked).SerializeToString() == linked.SerializeToString()
    assert inspect(linked).linked is Linked.CURRENT


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The models that are linked, or linked again."""
    found: list[onnx.ModelProto] = []

    def noted(proto: onnx.ModelProto) -> Any:
        found.append(proto)
        return link_in_place(proto)

    for module in (onnx_ops.linking.link, onnx_ops.integrations.sessions):
        monkeypatch.setattr(module, "link_in_place", noted)
    return found


def test_linked_model_is_not_linked_again(links: list[onnx.ModelProto]) -> None:
    linked = onnx_ops.link(WEIGHTED)
    assert len(links) == 1
    next(tensor for tensor in linked.graph.initializer if tensor.name == "w").raw_data = bytes(4 * 2000)
    content = linked.SerializeToString()
    assert onnx_ops.link(content).SerializeToString() == content
    for _ in range(2):  # the first session in a process links, for the calls, whose kernels are compiled ahead
        (result,) = onnx_ops.InferenceSession(content).run(None, {"x": np.ones((2, 1000), np.float32)})
    np.testing.assert_array_equal(result, np.zeros((2000, 1)))
    assert len(links) == (1 if prebuilt.library() else 2)


def changed_attribute(proto: onnx.ModelProto) -> None:
    next(node for node in proto.graph.node if node.domain == "aclnn").attribute[0].f = 0.5


def changed_body(proto: onnx.ModelProto) -> None:
    del proto.functions[0].node[-1]


def added_node(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("HardshrinkBackward", ["o", "o"], ["p"], domain="aclnn"))


@pytest.mark.parametrize("change", [changed_attribute, changed_body, added_node])
def test_linked_model_that_is_changed_is_linked_again(
    change: Callable[[onnx.ModelProto], None], links: list[onnx.ModelProto]
) -> None:
    linked = onnx_ops.link(WEIGHTED)
    change(linked)
    anew = onnx_ops.link(linked)
    assert len(links) == 2
    del linked.functions[:]
    assert onnx_ops.link(linked).SerializeToString() == anew.SerializeToString()


def test_model_that_another_version_has_linked_is_linked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr("onnx_ops.linking.functions.__version__", "0.0.9")
        other.setattr("onnx_ops.linking.attached.__version__", "0.0.9")
        old = onnx_ops.link(model())
    seen = inspect(old)
    assert (seen.linked, seen.linked_by) == (Linked.STALE, "0.0.9")
    assert onnx_ops.link(old).SerializeToString() == onnx_ops.link(model()).SerializeToString()


def test_model_without_nodes_tells_nothing() -> None:
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> graph (float[2] x) => (float[2] o) { o = Neg (x) }'
    )
    assert not onnx_ops.link(proto).metadata_props
    assert inspect(proto).linked is Linked.UNNEEDED


# --- functions that are kept from one model to the next ---------------------------------------------------------------


def test_functions_are_copied_to_each_model() -> None:
    first = onnx_ops.link(model())
    expected = first.SerializeToString()
    for function in first.functions:
        function.node[0].op_type = "Spoilt"
    assert onnx_ops.link(model()).SerializeToString() == expected


def test_attributes_that_differ_in_sign_of_zero_have_their_own_body() -> None:
    for value in (0.0, -0.0):
        linked = onnx_ops.link(
            parser.parse_model(
                f"""<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
                graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {{
                    o = aclnn.ThresholdBackward <threshold: float = {value}> (g, x)
                }}"""
            )
        )
        (body,) = (f for f in linked.functions if f.domain == "ai.onnx.contrib")
        constants = [a.t for n in body.node if n.op_type == "Constant" for a in n.attribute]
        assert np.float32(value).tobytes() in [onnx.numpy_helper.to_array(constant).tobytes() for constant in constants]
