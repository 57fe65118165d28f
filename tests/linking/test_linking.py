"""`link`: what it attaches, what it leaves alone, and that the linked model runs everywhere with the right numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import backends
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from linking_cases import CASES, G8, X8, Case, G, X, assert_same, by_id, each_case, hardshrink, model_of
from onnx import TensorProto, checker, helper, inliner, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

import onnx_ops
from onnx_ops.ops import OPS

Array = np.ndarray[Any, Any]
KERNEL_DOMAIN = "ai.onnx.contrib"


def _run_session(model: onnx.ModelProto, feeds: Mapping[str, Array], kernels: bool, optimized: bool) -> list[Array]:
    options = (backends.kernel_options if kernels else backends.options)(optimise=optimized)
    return list(ort.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds)))


def _run_inlined(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    inlined = inliner.inline_local_functions(model)
    assert not inlined.functions
    return _run_session(inlined, feeds, kernels=False, optimized=True)


def _run_plain(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    plain = onnx_ops.inline(model)
    assert not plain.functions
    return _run_session(plain, feeds, kernels=False, optimized=True)


def _run_plain_reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    return _run_reference(onnx_ops.inline(model), feeds)


def _run_reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))


BACKENDS: dict[str, Callable[[onnx.ModelProto, Mapping[str, Array]], list[Array]]] = {
    "kernels": partial(_run_session, kernels=True, optimized=True),
    "kernels-unoptimized": partial(_run_session, kernels=True, optimized=False),
    "portable": partial(_run_session, kernels=False, optimized=True),
    "portable-unoptimized": partial(_run_session, kernels=False, optimized=False),
    "inlined": _run_inlined,
    "plain": _run_plain,
    "plain-reference": _run_plain_reference,
    "reference": _run_reference,
}


def _runs() -> list[Any]:
    return [
        pytest.param(
            c,
            backend,
            id=f"{c.id}-{backend}",
            marks=[pytest.mark.xfail(reason=c.known_failures[backend], strict=True)]
            if backend in c.known_failures
            else [],
        )
        for c, backend in itertools.product(CASES, BACKENDS)
    ]


@pytest.mark.parametrize(("case", "backend"), _runs())
def test_runs_everywhere(case: Case, backend: str) -> None:
    results = BACKENDS[backend](onnx_ops.link(case.model), case.feeds)
    assert len(results) == len(case.expected)
    for actual, expected in zip(results, case.expected, strict=True):
        assert_same(actual, expected, case.tolerance)


@each_case
def test_linked_model_passes_the_checker(case: Case) -> None:
    linked = onnx_ops.link(case.model)
    checker.check_model(linked, full_check=case.inferable)


@each_case
def test_linked_model_passes_strict_inference(case: Case) -> None:
    inferred = shape_inference.infer_shapes(onnx_ops.link(case.model), check_type=True, strict_mode=case.inferable)
    assert len(inferred.graph.output) == len(case.expected)


@each_case
def test_argument_is_not_modified(case: Case) -> None:
    before = case.model.SerializeToString(deterministic=True)
    onnx_ops.link(case.model)
    assert case.model.SerializeToString(deterministic=True) == before


@each_case
def test_linking_twice_changes_no_byte(case: Case) -> None:
    once = onnx_ops.link(case.model).SerializeToString(deterministic=True)
    assert onnx_ops.link(once).SerializeToString(deterministic=True) == once


@each_case
def test_linked_after_serialization_is_the_same(case: Case) -> None:
    expected = onnx_ops.link(case.model).SerializeToString(deterministic=True)
    for argument in (case.model.SerializeToString(), bytearray(case.model.SerializeToString())):
        assert onnx_ops.link(argument).SerializeToString(deterministic=True) == expected


# --- what is attached ------------------------------------------------------------------------------------------------


def _own_functions(model: onnx.ModelProto) -> list[tuple[str, str]]:
    return sorted((f.domain, f.name) for f in model.functions if f.domain in ("aclnn", KERNEL_DOMAIN))


def test_attaches_two_functions_for_each_op_that_is_used() -> None:
    linked = onnx_ops.link(by_id("several-reductions").model)
    names = ("BinaryCrossEntropyWithLogitsBackward", "KlDivBackward")
    assert _own_functions(linked) == sorted(
        [("aclnn", name) for name in names] + [(KERNEL_DOMAIN, f"aclnn_{name}_v1") for name in names]
    )
    assert {(i.domain, i.version) for i in linked.opset_import} == {("", 21), ("aclnn", 1), (KERNEL_DOMAIN, 1)}


def test_public_function_is_its_kernel_alone() -> None:
    linked = onnx_ops.link(by_id("several-lambd").model)
    (public,) = [f for f in linked.functions if f.domain == "aclnn"]
    (node,) = public.node
    assert (node.domain, node.op_type) == (KERNEL_DOMAIN, "aclnn_HardshrinkBackward_v1")
    assert list(node.input) == list(public.input) == ["grad_output", "self"]
    assert list(node.output) == list(public.output) == ["grad_input"]


def test_portable_body_is_standard_operators_only() -> None:
    for name in ("every-op-float32", "every-op-bfloat16", "several-reductions"):
        bodies = [f for f in onnx_ops.link(by_id(name).model).functions if f.domain == KERNEL_DOMAIN]
        assert bodies
        for body in bodies:
            assert {node.domain for node in body.node} == {""}
            assert [(i.domain, i.version) for i in body.opset_import] == [("", 21)]


def _made_and_used(container: Any) -> tuple[set[str], set[str]]:
    made: set[str] = set()
    used: set[str] = set()
    for node in container.node:
        made.update(node.output)
        used.update(node.input)
        for graph in (a.g for a in node.attribute if a.HasField("g")):
            inner_made, inner_used = _made_and_used(graph)
            made |= inner_made
            used |= inner_used | {value.name for value in graph.output}
    return made, used


@each_case
def test_body_makes_nothing_that_it_does_not_use(case: Case) -> None:
    for body in onnx_ops.link(case.model).functions:
        if body.domain == KERNEL_DOMAIN:
            made, used = _made_and_used(body)
            # A Concat whose result is of no use refuses dtypes that differ; a Scan gives its state out.
            assert made - used - set(body.output) <= {"agreed", "beta_at_0"}


def test_ir_version_is_raised_to_that_of_functions() -> None:
    assert onnx_ops.link(by_id("opset-18-ir-4").model).ir_version >= 8
    assert onnx_ops.link(by_id("opset-22-ir-10").model).ir_version == 10


def test_attached_functions_of_another_shape_are_replaced() -> None:
    """A linked model that was edited afterwards is linked anew."""
    linked = onnx_ops.link(by_id("several-lambd").model)
    for value in (*linked.graph.input, *linked.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    again = onnx_ops.link(linked)
    expected = (hardshrink(G8, X8, 0.123456789), hardshrink(G8, X8, 0.75), hardshrink(G8, X8, -1.0))
    for backend in ("kernels", "portable"):
        for actual, wanted in zip(BACKENDS[backend](again, {"g": G8, "x": X8}), expected, strict=True):
            assert_same(actual, wanted)


@each_case
def test_inlined_model_is_standard(case: Case) -> None:
    plain = onnx_ops.inline(case.model)
    checker.check_model(plain, full_check=case.inferable)
    assert not plain.functions
    assert {entry.domain for entry in plain.opset_import} <= {"", "com.microsoft"}
    assert onnx_ops.inline(plain).SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)


def test_inlining_leaves_all_but_nodes_as_it_was() -> None:
    model = _rich_model()
    plain = onnx_ops.inline(model)
    for name in ("node", "value_info"):
        model.graph.ClearField(name)
        plain.graph.ClearField(name)
    assert plain.graph == model.graph
    version = onnx.StringStringEntryProto(key="onnx_ops.version", value=onnx_ops.__version__)
    assert list(plain.metadata_props) == [*model.metadata_props, version]
    assert (plain.producer_name, plain.doc_string) == (model.producer_name, model.doc_string)


# --- what is left alone ----------------------------------------------------------------------------------------------


def _rich_model() -> onnx.ModelProto:
    """A model with something in every place where a model can hold something."""
    model = model_of(
        """graph (float[2,3] g, float[2,3] x) => (float[2,3] o, float[2,3] p) <float[2,3] h>{
            u = far.away.Mystery <depth: int = 3> (x)
            h = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x)
            b = own.Twice (h)
            o = Add (b, bias)
            p = aclnn.KlDivBackward (g, u, x)
        }
        <domain: "own", opset_import: ["" : 21]>
        Twice (x) => (o) { o = Add (x, x) }
        <domain: "own", opset_import: ["" : 21]>
        Unused (x) => (o) { o = Neg (x) }""",
        imports='"" : 21, "far.away" : 7, "aclnn" : 1, "own" : 3, "other" : 2',
    )
    model.producer_name, model.producer_version, model.domain = "someone", "1.2", "org.example"
    model.model_version, model.doc_string = 5, "What this is."
    model.metadata_props.add(key="author", value="someone")
    model.graph.doc_string, model.graph.name = "The graph.", "main"
    model.graph.metadata_props.add(key="of", value="graph")
    model.graph.initializer.append(numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "bias"))
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([1.5], np.float32), "thin"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([2], np.int64), "thin_indices"))
    model.graph.quantization_annotation.add(tensor_name="bias").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="bias"
    )
    for i, node in enumerate(model.graph.node):
        node.name, node.doc_string = f"node {i}", f"Node {i}."
        node.metadata_props.add(key="index", value=str(i))
    model.graph.input[0].doc_string = "A gradient."
    training = model.training_info.add()
    training.algorithm.name = "step"
    training.algorithm.node.append(helper.make_node("Neg", ["bias"], ["bias_next"]))
    training.update_binding.add(key="bias", value="bias_next")
    model.functions[0].doc_string = "Two times."
    return model


def _without_what_link_adds(model: onnx.ModelProto, imports: set[str]) -> bytes:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    functions = [f for f in copy.functions if f.domain not in ("aclnn", KERNEL_DOMAIN)]
    opsets = [i for i in copy.opset_import if i.domain in imports]
    metadata = [m for m in copy.metadata_props if m.key not in ("onnx_ops.version", "onnx_ops.digest")]
    for repeated, kept in (
        (copy.functions, functions),
        (copy.opset_import, opsets),
        (copy.metadata_props, metadata),
    ):
        del repeated[:]
        repeated.extend(kept)
    copy.ClearField("ir_version")
    return copy.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    "model",
    [
        _rich_model(),
        *(
            by_id(n).model
            for n in (
                "nested-functions-with-two-dtypes-and-shapes",
                "if-in-function-in-if",
                "loop-body",
                "scan-body",
                "several-reductions",
                "opset-18-ir-4",
            )
        ),
    ],
    ids=lambda m: m.graph.node[0].op_type,
)
def test_everything_else_stays_as_it_was(model: onnx.ModelProto) -> None:
    imports = {i.domain for i in model.opset_import}
    linked = onnx_ops.link(model)
    assert _own_functions(linked)
    assert _without_what_link_adds(linked, imports) == _without_what_link_adds(model, imports)


def test_import_that_is_missing_is_added() -> None:
    """As in a model that was made with onnx.helper and no word of the domain."""
    model = by_id("opset-22-ir-10").model
    without = onnx.ModelProto()
    without.CopyFrom(model)
    del without.opset_import[:]
    without.opset_import.extend(i for i in model.opset_import if i.domain != "aclnn")
    linked = onnx_ops.link(without)
    assert {(i.domain, i.version) for i in linked.opset_import} == {("", 22), ("aclnn", 1), (KERNEL_DOMAIN, 1)}
    checker.check_model(linked, full_check=True)


def test_no_import_is_listed_twice() -> None:
    for c in CASES:
        domains = [i.domain or "ai.onnx" for i in onnx_ops.link(c.model).opset_import]
        assert len(domains) == len(set(domains)), c.id


def test_model_without_our_ops_comes_back_equal() -> None:
    model = model_of("graph (float[2] x) => (float[2] o) { o = Neg (x) }", imports='"" : 13', ir_version=6)
    assert onnx_ops.link(model) == model


def test_external_initializers_stay_external(tmp_path: Path) -> None:
    model = model_of("graph (float[2,3] g) => (float[2,3] o) { o = aclnn.HardshrinkBackward (g, x) }")
    model.graph.initializer.append(numpy_helper.from_array(X, "x"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((100, 100), np.float32), "large"))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    for argument in (path, str(path)):
        linked = onnx_ops.link(argument)
        assert [t.data_location for t in linked.graph.initializer] == [TensorProto.EXTERNAL] * 2
        assert not any(t.raw_data for t in linked.graph.initializer)
    onnx.save_model(linked, tmp_path / "linked.onnx")
    session = ort.InferenceSession(tmp_path / "linked.onnx", onnx_ops.session_options())
    assert_same(session.run(None, {"g": G})[0], hardshrink(G, X))


# --- what is refused -------------------------------------------------------------------------------------------------

PLAIN = "graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {{ o = aclnn.{} }}"
LOSS = "BinaryCrossEntropyWithLogitsBackward"

REFUSED = {
    "opset-14": (
        PLAIN.format("KlDivBackward (g, x, x)"),
        '"" : 14, "aclnn" : 1',
        onnx_ops.LinkError,
        r"opset 14 .*KlDivBackward needs 15",
    ),
    "aclnn-2": (
        PLAIN.format("KlDivBackward (g, x, x)"),
        '"" : 21, "aclnn" : 2',
        onnx_ops.LinkError,
        r"version 2 of domain aclnn, expected at most 1: update onnx_ops",
    ),
    "unknown-op": (
        PLAIN.format("HardshrinkForward (g, x)"),
        None,
        onnx_ops.OpError,
        r"HardshrinkForward: no such op in domain aclnn, expected one of .*HardshrinkBackward",
    ),
    "unknown-attribute": (
        PLAIN.format("HardshrinkBackward <lambda: float = 0.5> (g, x)"),
        None,
        onnx_ops.OpError,
        r"HardshrinkBackward: unknown attribute 'lambda', expected lambd\b.*161002",
    ),
    "attribute-of-other-type": (
        PLAIN.format("HardshrinkBackward <lambd: int = 1> (g, x)"),
        None,
        onnx_ops.OpError,
        r"HardshrinkBackward: attribute 'lambd' .*FLOAT.*161002",
    ),
    "attribute-out-of-range": (
        PLAIN.format(f"{LOSS} <reduction: int = 3> (g, x, x)"),
        None,
        onnx_ops.OpError,
        rf"{LOSS}: attribute 'reduction' is 3, expected one of .*mean.*161002",
    ),
    "missing-input": (
        PLAIN.format("KlDivBackward (g, x)"),
        None,
        onnx_ops.OpError,
        r"KlDivBackward: required input 'target' is missing.*161001",
    ),
    "missing-input-in-the-middle": (
        PLAIN.format("KlDivBackward (g, , x)"),
        None,
        onnx_ops.OpError,
        r"KlDivBackward: required input 'self' is missing.*161001",
    ),
    "too-many-inputs": (
        PLAIN.format("HardshrinkBackward (g, x, x)"),
        None,
        onnx_ops.OpError,
        r"HardshrinkBackward: got 3 inputs, expected at most 2.*161002",
    ),
    "wrong-shape": (
        "graph (float[2,3] g, float[2,4] x) => (float[2,3] o) { o = aclnn.HardshrinkBackward (g, x) }",
        None,
        onnx_ops.OpError,
        r"HardshrinkBackward: input 'self' has shape \(2, 4\), expected .*\(2, 3\).*161002",
    ),
    "wrong-shape-that-is-computed": (
        """graph (float[2,3] g, float[2,4] x, float[4,2] y) => (float[2,3] o) { s = Shape (x)
            z = Reshape (y, s)
            o = aclnn.HardshrinkBackward (g, z) }""",
        None,
        onnx_ops.OpError,
        r"HardshrinkBackward: input 'self' has shape \(2, 4\), expected .*\(2, 3\).*161002",
    ),
    "wrong-dtype": (
        "graph (float[2,3] g, int64[2,3] x) => (float[2,3] o) { o = aclnn.HardshrinkBackward (g, x) }",
        None,
        onnx_ops.OpError,
        r"HardshrinkBackward: input 'self' has dtype int64, expected one of .*float16.*161002",
    ),
    "in-subgraph": (
        """graph (bool q, float[2,3] g, float[2,4] x) => (float[2,3] o) { o = If (q) <
                    then_branch = a () => (float[2,3] r) {
                        r = aclnn.HardshrinkBackward (g, x)
                    },
                    else_branch = b () => (float[2,3] s) { s = Identity (g) }> }""",
        None,
        onnx_ops.OpError,
        r"HardshrinkBackward: input 'self' has shape \(2, 4\)",
    ),
    "in-function": (
        """graph (float[2,3] g, float[2,4] x) => (float[2,3] o) { o = own.F (g, x) }
                    <domain: "own", opset_import: ["aclnn" : 1]>
                    F (g, x) => (o) { o = aclnn.HardshrinkBackward (g, x) }""",
        '"" : 21, "aclnn" : 1, "own" : 1',
        onnx_ops.OpError,
        r"HardshrinkBackward: input 'self' has shape \(2, 4\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    text, imports, error, message = REFUSED[name]
    model = model_of(text, imports or '"" : 21, "aclnn" : 1')
    with pytest.raises(error, match=message):
        onnx_ops.link(model)


def test_two_outputs_are_refused() -> None:
    model = model_of("graph (float[2] g) => (float[2] o) { o, p = aclnn.HardshrinkBackward (g, g) }")
    with pytest.raises(onnx_ops.OpError, match="got 2 outputs, expected 1"):
        onnx_ops.link(model)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])  # which fails by REFERENCE_DEFAULTS
def test_ctc_twice_with_different_numbers_of_states(backend: str) -> None:
    """log_alpha of dimensions that the model leaves open: names in one body are not those of another."""
    example = OPS["CtcLossBackward"].example
    feeds, shared = example.arrays(), [name for name in example.inputs if name != "log_alpha"]
    alpha = feeds.pop("log_alpha")
    longer = np.concatenate([alpha, np.full((1, 2, 2), -np.inf, np.float32)], axis=2)
    model = model_of(
        f"""graph (float[1] grad_out, float[2,1,2] log_probs, int32[1,1] targets, int32[1] input_lengths,
                  int32[1] target_lengths, float[1] neg_log_likelihood, float[P,Q,R] a, float[S,T,U] b)
                => (float[2,1,2] o, float[2,1,2] p) {{
            o = aclnn.CtcLossBackward ({", ".join(shared)}, a)
            p = aclnn.CtcLossBackward ({", ".join(shared)}, b)
        }}"""
    )
    for actual in BACKENDS[backend](onnx_ops.link(model), feeds | {"a": alpha, "b": longer}):
        np.testing.assert_allclose(actual, example.expected()["out"], atol=1e-7)


def test_function_that_cannot_be_inlined_is_refused() -> None:
    model = model_of(
        """graph (float[2,3] g, float[2,3] x) => (float[2,3] o) { o = own.F (g, x) }
        <domain: "own", opset_import: ["" : 21, "aclnn" : 1, "ai.onnx.ml" : 3]>
        F (g, x) => (o) { o = aclnn.HardshrinkBackward <lambd: float = 0.1> (g, x) }""",
        imports='"" : 21, "aclnn" : 1, "own" : 1, "ai.onnx.ml" : 4',
    )
    with pytest.raises(onnx_ops.LinkError, match=r"function own.F cannot be inlined: it imports .*'ai.onnx.ml' 3"):
        onnx_ops.inline(model)
    (actual,) = BACKENDS["portable"](onnx_ops.link(model), {"g": G, "x": X})
    assert_same(actual, hardshrink(G, X, 0.1))


def test_inlined_model_imports_what_its_functions_did() -> None:
    model = model_of(
        """graph (float[2,3] g, float[2,3] x) => (float[2,3] o) { o = own.F (g, x) }
        <domain: "own", opset_import: ["" : 21, "aclnn" : 1, "com.microsoft" : 1]>
        F (g, x) => (o) {
            u = com.microsoft.Gelu (x)
            v = Sub (u, u)
            w = Add (x, v)
            o = aclnn.HardshrinkBackward <lambd: float = 0.1> (g, w)
        }""",
        imports='"" : 21, "own" : 1',
    )
    plain = onnx_ops.inline(model)
    assert {(i.domain, i.version) for i in plain.opset_import} == {("", 21), ("com.microsoft", 1)}
    (actual,) = _run_session(plain, {"g": G, "x": X}, kernels=False, optimized=True)
    assert_same(actual, hardshrink(G, X, 0.1))


def test_function_called_with_several_combinations_is_refused() -> None:
    model = model_of(
        """graph (float16[2] a, bfloat16[2] b) => (float[2] o, float16[2] p) {
            o = own.F (a, b)
            p = own.F (a, a)
        }
        <domain: "own", opset_import: ["aclnn" : 1]>
        F (g, x) => (o) { o = aclnn.HardshrinkBackward <lambd: float = 0.1> (g, x) }""",
        imports='"" : 21, "aclnn" : 1, "own" : 1',
    )
    with pytest.raises(onnx_ops.LinkError, match=r"several combinations.*float16, bfloat16; float16, float16"):
        onnx_ops.link(model)


def test_attention_in_float_and_in_double_with_statistics() -> None:
    """The dtype of the statistics is that of the query, in one function for both."""
    model = model_of(
        """graph (float[1,2,3,4] q, double[1,2,3,4] p)
                => (float[1,2,3] m, float[1,2,3,4] a, double[1,2,3] n, double[1,2,3,4] b) {
            m, s, a = aclnn.FlashAttentionScore (q, q, q)
            n, t, b = aclnn.FlashAttentionScore (p, p, p)
        }"""
    )
    p = np.random.default_rng(0).normal(size=(1, 2, 3, 4))
    for kernels in (False, True):
        given = {"q": p.astype(np.float32), "p": p}
        results = _run_session(onnx_ops.link(model), given, kernels=kernels, optimized=True)
        most = (p @ p.swapaxes(2, 3)).max(3)
        weights = np.exp(p @ p.swapaxes(2, 3) - most[..., None])
        out = weights @ p / weights.sum(3, keepdims=True)
        for got, expected in zip(results, (most, out, most, out), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5 if got.dtype == np.float32 else 1e-12)
        assert [got.dtype for got in results] == [np.float32, np.float32, np.float64, np.float64]


def test_ctc_alone_in_a_graph_is_linked() -> None:
    model = model_of(
        """graph (float[2] g, float[5,2,4] lp, int64[2,3] t, int64[2] il, int64[2] tl, float[2] nll, float[2,5,7] la)
                => (float[5,2,4] o) { o = aclnn.CtcLossBackward (g, lp, t, il, tl, nll, la) }"""
    )
    linked = onnx_ops.link(model)
    checker.check_model(linked, full_check=True)
    assert ("aclnn", "CtcLossBackward") in _own_functions(linked)
    assert onnx_ops.link(linked) == linked
    ort.InferenceSession(linked.SerializeToString(), onnx_ops.session_options())


@pytest.mark.parametrize("hidden", ["g", "x", "gx"])
@pytest.mark.parametrize(("grad", "x"), [("float16", "float"), ("double", "float"), ("float", "double")])
def test_mixture_behind_a_foreign_op_is_right_or_refused(grad: str, x: str, hidden: str) -> None:
    """No operator promotes; a body of another output dtype than the kernel's would be wrong without a word."""
    ops = ["com.microsoft.Inverse" if name in hidden else "Identity" for name in "gx"]
    model = model_of(
        f"""graph ({grad}[2,2] g, {x}[2,2] x) => ({grad if grad == "double" else x}[2,2] o) {{
            u = {ops[0]} (g)
            v = {ops[1]} (x)
            o = aclnn.HardshrinkBackward <lambd: float = 0.25> (u, v)
        }}""",
        imports='"" : 21, "aclnn" : 1, "com.microsoft" : 1',
    )
    model.graph.output[0].ClearField("type")
    dtypes = {"float16": np.float16, "float": np.float32, "double": np.float64}
    feeds = {"g": np.diag([3, 2]).astype(dtypes[grad]), "x": np.diag([2, 0.5]).astype(dtypes[x])}
    g, v = (np.diag(1 / np.diag(a)) if name in hidden else a for name, a in feeds.items())
    linked = onnx_ops.link(model)
    expected = hardshrink(g.astype(dtypes[grad]), v.astype(dtypes[x]), 0.25)
    for backend in ("kernels", "portable"):
        try:
            result = BACKENDS[backend](linked, feeds)[0]
        except Fail as refusal:
            message = str(refusal)
        else:
            message = ""
            assert_same(result, expected, 1e-3 if grad == "float16" else None)
        assert not message or ("HardshrinkBackward" in message and "inconsistent type" in message)
