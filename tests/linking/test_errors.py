"""What refusals say, and that they get from one process to another."""

from __future__ import annotations

import ast
import copy
import multiprocessing
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

import onnx_ops
from onnx_ops.core.errors import at_node, node_label

WAYS: dict[str, Callable[[Exception], Exception]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
each_way = pytest.mark.parametrize("way", WAYS)


def _refusal() -> onnx_ops.OpError:
    """One that got to know its node on its way."""
    with pytest.raises(onnx_ops.OpError) as refusal, at_node("node 'h' in function me.f"):
        raise onnx_ops.OpError("AnyOp", "input 'x' is missing", onnx_ops.Status.ACLNN_ERR_PARAM_NULLPTR)
    return refusal.value


@each_way
def test_refusal_survives(way: str) -> None:
    refusal = _refusal()
    other = WAYS[way](refusal)
    assert type(other) is onnx_ops.OpError
    assert str(other) == str(refusal)
    assert other.op_type == "AnyOp"
    assert other.problem == "input 'x' is missing"
    assert other.status is onnx_ops.Status.ACLNN_ERR_PARAM_NULLPTR
    assert other.node == "node 'h' in function me.f"


@each_way
@pytest.mark.parametrize(
    "error",
    [onnx_ops.LinkError("no"), onnx_ops.KernelsUnavailableError("none here"), onnx_ops.ModelFileError("no model")],
    ids=lambda error: type(error).__name__,
)
def test_other_exceptions_survive(error: Exception, way: str) -> None:
    other = WAYS[way](error)
    assert type(other) is type(error)
    assert other.args == error.args


def defined_exceptions() -> Iterator[tuple[str, list[str]]]:
    """The classes of exceptions that the package defines, each with its base classes."""
    for path in Path(onnx_ops.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.ClassDef) and any(base.endswith(("Error", "Exception")) for base in bases):
                yield node.name, bases


def test_exceptions_have_the_packages_base_class_and_one_of_python() -> None:
    found = dict(defined_exceptions())
    assert found.pop("Error") == ["Exception"]
    assert found.pop("ExampleRequired") == ["BaseException"]  # no error: a trace starts again
    assert found.pop("StateLostError") == ["StepError"]
    assert found.pop("UnknownMethodError") == ["TranslationError"]
    assert found.pop("DifferenceError") == ["CaptureError"]
    assert found.pop("UnexplainedError") == ["CaptureError"]
    assert found.pop("ReshapedError") == ["CaptureError"]
    assert {"OpError", "LinkError", "ModelFileError", "StepError", "WorkerError", "CaptureError"} < found.keys()
    for name, bases in found.items():
        assert name.endswith("Error")
        assert bases in (["Error", "ValueError"], ["Error", "RuntimeError"], ["Error", "OSError"]), name


def test_refusal_comes_back_from_another_process() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        call = pool.apply_async(onnx_ops.make_node, ("HardshrinkBackward", ["g"], ["o"]))
        with pytest.raises(onnx_ops.OpError, match="required input 'self' is missing") as refusal:
            call.get(60)
    assert refusal.value.status is onnx_ops.Status.ACLNN_ERR_PARAM_NULLPTR
    assert refusal.value.node == "node with output 'o'"


def test_text() -> None:
    assert str(_refusal()) == (
        "AnyOp: input 'x' is missing; node 'h' in function me.f (ACLNN_ERR_PARAM_NULLPTR, 161001)"
    )
    assert str(onnx_ops.OpError("AnyOp", "too much")) == "AnyOp: too much (ACLNN_ERR_PARAM_INVALID, 161002)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("h", "o"), "node 'h'"),
        (("", "o"), "node with output 'o'"),
        (("h", "o", "function me.f"), "node 'h' in function me.f"),
        (("", ""), None),
    ],
)
def test_words_for_a_node(arguments: tuple[str, ...], words: str | None) -> None:
    assert node_label(*arguments) == words


def test_innermost_node_is_named() -> None:
    with pytest.raises(onnx_ops.OpError) as refusal, at_node("outer"), at_node("inner"):
        raise onnx_ops.OpError("AnyOp", "too much")
    assert refusal.value.node == "inner"


@pytest.mark.parametrize("name", ["h", ""])
def test_reference_evaluator_names_the_node(name: str) -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
        graph (float[A, B] g, float[A, C] x) => (float[A, B] o) { o = aclnn.HardshrinkBackward (g, x) }"""
    )
    model.graph.node[0].name = name
    evaluator = ReferenceEvaluator(model, new_ops=onnx_ops.reference_ops())
    expected = "node 'h'" if name else "node with output 'o'"
    with pytest.raises(onnx_ops.OpError, match=rf"input 'self' has shape.*; {re.escape(expected)} \(") as refusal:
        evaluator.run(None, {"g": np.ones((2, 3), np.float32), "x": np.ones((2, 4), np.float32)})
    assert refusal.value.node == expected


@pytest.mark.parametrize(("name", "words"), [("h", "node 'h'"), (None, "node with output 'o'")])
@pytest.mark.parametrize(
    "call",
    [
        ("HardshrinkForward", ["g", "x"], ["o"], {}),
        ("HardshrinkBackward", {"grad": "g"}, ["o"], {}),
        ("HardshrinkBackward", ["g"], ["o"], {}),
        ("HardshrinkBackward", ["g", "x", "y"], ["o"], {}),
        ("HardshrinkBackward", ["g", "x"], ["o", "p"], {}),
        ("HardshrinkBackward", ["g", "x"], ["o"], {"lambda_": 1}),
        ("HardshrinkBackward", ["g", "x"], ["o"], {"lambd": "x"}),
        ("KlDivBackward", ["g", "x", "y"], ["o"], {"log_target": 2}),
    ],
    ids=str,
)
def test_make_node_names_the_node(
    call: tuple[str, list[str], list[str], dict[str, object]], name: str | None, words: str
) -> None:
    op_type, inputs, outputs, attributes = call
    with pytest.raises(onnx_ops.OpError) as refusal:
        onnx_ops.make_node(op_type, inputs, outputs, name, **attributes)
    assert refusal.value.node == words


def test_text_is_no_sequence_of_names() -> None:
    """A str is a sequence of one-letter names, which nobody means."""
    with pytest.raises(onnx_ops.OpError, match="inputs are 'gx', expected a sequence of names"):
        onnx_ops.make_node("HardshrinkBackward", "gx", ["o"])
    with pytest.raises(onnx_ops.OpError, match=r"outputs are 'o', expected a sequence of names, \['o'\]"):
        onnx_ops.make_node("HardshrinkBackward", ["g", "x"], "o")
    node = onnx_ops.make_node("HardshrinkBackward", ("g", "x"), ("o",))
    assert node == helper.make_node("HardshrinkBackward", ["g", "x"], ["o"], domain="aclnn")
