"""The command line: what it prints and writes, as text and as JSON, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import built_library
import cases
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import steps
import typer
from linking_cases import CASES, Case, model_of
from onnx import TensorProto, numpy_helper, parser
from test_linking import REFUSED
from typer.testing import CliRunner, Result

import onnx_ops
from onnx_ops.cli import diagnosis
from onnx_ops.cli.app import app
from onnx_ops.cli.console import LineConsole
from onnx_ops.cli.inspection import Linked, inspect
from onnx_ops.core.op import Op
from onnx_ops.graph.files import ModelFileError, external_files, read_model, write_model
from onnx_ops.integrations import prebuilt, sessions
from onnx_ops.integrations.examples import example_model
from onnx_ops.library.objects import NATIVE
from onnx_ops.ops import OPS
from onnx_ops.runtime.process import STATE
from onnx_ops.training.step_files import open_step

OK, FAILED, USAGE = 0, 1, 2
G = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
X = np.array([[-1, 0.125, 0.75], [0.5, 0.25, -0.5]], np.float32)
EXPECTED = np.where(np.abs(X) > 0.25, G, 0).astype(np.float32)

GOOD = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
    graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {
        [gate] o = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x)
    }"""
# Every place that a node can be in, a function that is called with two dtypes, an input left out, unknown shapes.
DEEP = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "own" : 1]>
    graph (float[2] a, float[N] b, float16[2] c, bool k) => (float o) {
        p = own.Both (a, b)
        q = own.Both (a, c)
        r = aclnn.BinaryCrossEntropyWithLogitsBackward (a, b, a)
        [choice] o = If (k) <
            then_branch = yes () => (float[2] s) { s = aclnn.HardshrinkBackward (a, a) },
            else_branch = no () => (float[2] t) { t = Identity (a) }
        >
    }
    <domain: "own", opset_import: ["" : 21, "aclnn" : 1]>
    Both (x, y) => (z) { z = aclnn.HardshrinkBackward (x, y) }"""
# One problem of each kind: op, attribute, inputs, shapes in one of two uses of a function, opset.
BAD = """<ir_version: 10, opset_import: ["" : 14, "aclnn" : 1, "own" : 1]>
    graph (float[2] a, float[3] b) => (float[2] o) {
        o = own.Both (a, a)
        p = own.Both (a, b)
        q = aclnn.Softshrink (a)
        r = aclnn.KlDivBackward <reduction = "mean"> (a, a, a)
        s = aclnn.HardshrinkBackward (a, a, a)
    }
    <domain: "own", opset_import: ["" : 14, "aclnn" : 1]>
    Both (x, y) => (z) { z = aclnn.HardshrinkBackward (x, y) }"""
CYCLE = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "own" : 1]>
    graph (float[2] a) => (float[2] o) { o = own.Round (a) }
    <domain: "own", opset_import: ["" : 21, "aclnn" : 1, "own" : 1]>
    Round (x) => (z) { y = aclnn.HardshrinkBackward (x, x) z = own.Round (y) }"""
FOREIGN = '<ir_version: 10, opset_import: ["" : 21]> graph (float[2] a) => (float[2] o) { o = Abs (a) }'


def run(*arguments: str | Path, code: int = OK) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def answer(*arguments: str | Path, code: int = OK) -> dict[str, Any]:
    """What a command says in JSON, with nothing beside it but the progress of a compilation."""
    result = run(*arguments, "--json", code=code)
    assert all(line.startswith("onnx_ops compiles kernels, ") for line in result.stderr.splitlines())

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    parsed: dict[str, Any] = json.loads(result.stdout, parse_constant=refuse)
    return parsed


def error(*arguments: str | Path) -> str:
    """The one line of an error, which must be the same in JSON."""
    result = run(*arguments, code=FAILED)
    assert not result.stdout
    (line,) = result.stderr.splitlines()
    text = line.removeprefix("onnx-ops: ")
    assert text != line
    assert answer(*arguments, code=FAILED) == {"error": text}
    return text


def saved(path: Path, text: str) -> Path:
    onnx.save_model(parser.parse_model(text), path)
    return path


def save_external(path: Path, location: str = "weights.bin") -> Path:
    model = parser.parse_model(GOOD)
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(X, "x"))
    onnx.save_model(model, path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def names(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return saved(tmp_path / "good.onnx", GOOD)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> str:
    """A process in which the kernels cannot be registered; the reason."""
    reason = "no such library here"
    monkeypatch.setitem(STATE.shared, "library", (None, reason))
    monkeypatch.setattr(sessions, "_warned", set())
    return reason


@pytest.fixture
def one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` runs one op, for tests of what else it says."""
    monkeypatch.setattr(diagnosis, "OPS", {"HardshrinkBackward": OPS["HardshrinkBackward"]})


# --- list and show ---------------------------------------------------------------------------------------------------


def test_list_says_what_the_schemas_say() -> None:
    listed = answer("list")
    assert (listed["domain"], listed["version"]) == (onnx_ops.DOMAIN, onnx_ops.OPSET_VERSION)
    assert [op["name"] for op in listed["ops"]] == list(OPS)
    text = run("list").stdout
    for op in listed["ops"]:
        record = OPS[op["name"]]
        assert op["minimum_opset"] == record.body_opset
        assert [p["name"] for p in op["inputs"]] == list(record.input_names)
        assert [p["name"] for p in op["outputs"]] == list(record.output_names)
        for described, parameter in zip(op["inputs"], record.schema.inputs, strict=True):
            types = cases.allowed_types(record.schema, parameter)
            assert {f"tensor({dtype})" for dtype in described["dtypes"]} == types
            assert described["optional"] == (parameter.option != parameter.option.Single)
            assert described["description"] == parameter.description
        defaults = {a["name"]: a["default"] for a in op["attributes"]}
        assert defaults == {
            n: None if a.required else onnx.helper.get_attribute_value(a.default_value)
            for n, a in record.schema.attributes.items()
        }
        assert op["name"] in text
        assert all(name if default is None else f"{name}={default}" in text for name, default in defaults.items())


def test_list_marks_optional_inputs() -> None:
    assert "  inputs      grad_output, self, target, [weight], [pos_weight]\n" in run("list").stdout


def test_show() -> None:
    text = run("show", "HardshrinkBackward").stdout
    schema = OPS["HardshrinkBackward"].schema
    assert schema.doc.strip() in text
    assert "float = 0.5. Half-width" in text
    assert "-> [1.0, 0.0, 3.0, 0.0]" in text
    assert "Function body" not in text


@pytest.mark.parametrize("op_type", OPS)
def test_show_every_op(op_type: str) -> None:
    shown, op = answer("show", op_type, "--body"), OPS[op_type]
    assert shown["doc"] == op.schema.doc.strip()
    for name, array in op.example.expected().items():
        assert np.array_equal(np.array(shown["example"]["outputs"][name], np.float32), array)
    assert shown["example"]["inputs"].keys() == op.example.inputs.keys()
    body = parser.parse_function(shown["body"])
    assert [n.op_type for n in body.node] == [n.op_type for n in onnx_ops.link(example_model(op)).functions[0].node]
    assert {key: shown[key] for key in shown if key not in ("doc", "example", "body")} in answer("list")["ops"]
    assert shown["body"].splitlines()[-2] in run("show", op_type, "--body").stdout


def test_numbers_that_json_does_not_have_are_strings() -> None:
    assert "-Infinity" in str(answer("show", "CtcLossBackward")["example"]["inputs"]["log_alpha"])


def test_case_of_a_name_does_not_matter() -> None:
    assert answer("show", "kldivBACKWARD")["name"] == "KlDivBackward"


def test_unknown_op() -> None:
    assert error("show", "hardshrinkbackw") == (
        "no op 'hardshrinkbackw' in domain aclnn; did you mean HardshrinkBackward or Hardshrink or HardswishBackwardV2?"
    )
    far = error("show", "zzz")
    assert all(name in far for name in OPS)


# --- link ------------------------------------------------------------------------------------------------------------


def test_link_writes_what_link_gives(good: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    before = good.read_bytes()
    text = run("link", good, out).stdout
    assert "Linked 1 node of 1 op: HardshrinkBackward (1).\n" in text
    assert "opset 21; its ops need 15 or newer" in text
    assert onnx.load_model(out) == onnx_ops.link(good)
    assert good.read_bytes() == before
    assert names(tmp_path) == {"good.onnx", "out.onnx"}
    np.testing.assert_array_equal(ort.InferenceSession(out).run(None, {"g": G, "x": X})[0], EXPECTED)


def test_inline(good: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert run("link", "--inline", good, out).stdout.startswith("Inlined 1 node")
    assert onnx.load_model(out) == onnx_ops.inline(good)


def test_link_in_json(tmp_path: Path) -> None:
    source, out = saved(tmp_path / "deep.onnx", DEEP), tmp_path / "out.onnx"
    assert answer("link", source, out) == {
        "input": str(source),
        "output": str(out),
        "inlined": False,
        "nodes": {"BinaryCrossEntropyWithLogitsBackward": 1, "HardshrinkBackward": 2},
        "opset": 21,
        "minimum_opset": 15,
        "copied": [],
    }


@pytest.mark.parametrize("inline", [[], ["--inline"]])
def test_link_converts_to_an_opset(good: Path, tmp_path: Path, inline: list[str]) -> None:
    """As old ones as ATC reads; a linked model is converted too, and gives the same results."""
    run("link", good, tmp_path / "linked.onnx")
    for source in (good, tmp_path / "linked.onnx"):
        said = answer("link", source, tmp_path / "old.onnx", "--opset", "18", *inline)
        assert said["opset"] == 18
        model = onnx.load(tmp_path / "old.onnx")
        assert {entry.version for entry in model.opset_import if entry.domain == ""} == {18}
        assert all(entry.version == 18 for f in model.functions for entry in f.opset_import if entry.domain == "")
        (result,) = ort.InferenceSession(tmp_path / "old.onnx").run(None, {"g": G, "x": X})
        assert np.array_equal(result, EXPECTED)


def test_link_refuses_what_cannot_be_converted(tmp_path: Path) -> None:
    functions, new = (
        saved(tmp_path / "f.onnx", DEEP),
        saved(tmp_path / "n.onnx", FOREIGN.replace("Abs (a)", "Gelu (a)")),
    )
    external = save_external(tmp_path / "external.onnx")
    for path, problem in (
        (functions, "it has functions, expected none"),
        (new, "from opset 21 to 18"),
        (external, "it has external data"),
    ):
        error = answer("link", path, tmp_path / "out.onnx", "--opset", "18", code=FAILED)["error"]
        assert problem in error
        assert not (tmp_path / "out.onnx").exists()


def test_link_of_a_model_without_the_ops(tmp_path: Path) -> None:
    source, out = saved(tmp_path / "foreign.onnx", FOREIGN), tmp_path / "out.onnx"
    assert "nothing to link" in run("link", source, out).stdout
    assert onnx.load_model(out) == onnx.load_model(source)
    linked = answer("link", source, out)
    assert (linked["nodes"], linked["minimum_opset"]) == ({}, None)


def test_link_in_place_keeps_the_mode_of_the_file(good: Path) -> None:
    expected = onnx_ops.link(good)
    good.chmod(0o640)
    run("link", good, good)
    assert onnx.load_model(good) == expected
    assert good.stat().st_mode & 0o777 == 0o640
    run("link", good, good)
    assert onnx.load_model(good) == expected
    assert names(good.parent) == {"good.onnx"}


@pytest.mark.parametrize("ending", ["json", "textproto"])
def test_formats_that_onnx_knows(ending: str, tmp_path: Path) -> None:
    source, out = saved(tmp_path / f"in.{ending}", DEEP), tmp_path / f"out.{ending}"
    run("link", source, out)
    assert onnx.load_model(out) == onnx_ops.link(parser.parse_model(DEEP))
    assert answer("check", out)["linked"] == "current"


def test_format_that_loses_something_is_refused(good: Path, tmp_path: Path) -> None:
    """ONNX's own text syntax has no place for all fields; a warning of onnx's must not get through either."""
    model = onnx.load_model(good)
    model.producer_name, model.graph.doc_string = "someone", "about"
    onnx.save_model(model, good)
    assert "cannot hold all of the model" in error("link", good, tmp_path / "out.onnxtxt")
    assert names(tmp_path) == {"good.onnx"}


# --- external data ---------------------------------------------------------------------------------------------------


def test_external_data_is_copied_beside_a_model_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "in" / "data").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    source, out = save_external(tmp_path / "in" / "m.onnx", "data/weights.bin"), tmp_path / "out" / "m.onnx"
    assert "Copied external data: data/weights.bin." in run("link", source, out).stdout
    assert names(tmp_path / "out") == {"m.onnx", "data/weights.bin"}
    np.testing.assert_array_equal(ort.InferenceSession(out).run(None, {"g": G})[0], EXPECTED)
    assert answer("link", source, out)["copied"] == []  # it is there


def test_external_data_of_a_model_in_the_same_folder_stays(tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    for out in (tmp_path / "out.onnx", source):
        assert answer("link", source, out)["copied"] == []
        np.testing.assert_array_equal(ort.InferenceSession(out).run(None, {"g": G})[0], EXPECTED)
    assert names(tmp_path) == {"m.onnx", "out.onnx", "weights.bin"}


def test_other_weights_of_that_name_are_not_overwritten(tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights.bin").write_text("of another model")
    assert "exists already, with different contents" in error("link", source, tmp_path / "out" / "m.onnx")
    assert names(tmp_path / "out") == {"weights.bin"}


def test_model_is_not_written_over_its_own_weights(tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    assert "keeps external data in a file of that name" in error("link", source, tmp_path / "weights.bin")
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load_model(source).graph.initializer[0]), X)


def _entry(key: str, value: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        model = onnx.load_model(path, load_external_data=False)
        (entry,) = (e for e in model.graph.initializer[0].external_data if e.key == key)
        entry.value = value
        path.write_bytes(model.SerializeToString())

    return change


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: (path.parent / "weights.bin").unlink(), "weights.bin, which does not exist"),
    "too-short": (lambda path: os.truncate(path.parent / "weights.bin", 23), "up to byte 24, which ends at 23"),
    "offset": (_entry("offset", "8"), "up to byte 32"),
    "no-number": (_entry("length", "many"), "an invalid extent of external data"),
    "before-the-file": (_entry("offset", "-8"), "an invalid extent of external data: offset -8"),
    "no-length": (_entry("length", "-1"), "an invalid extent of external data: offset 0, length -1"),
    "outside": (_entry("location", "../weights.bin"), "expected a file below the model's folder"),
    "absolute": (_entry("location", str(Path("/weights.bin"))), "expected a file below the model's folder"),
    "long": (_entry("location", "x" * 300), "which does not exist"),
    "nowhere": (_entry("location", ""), "expected a file below the model's folder"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_weights_that_are_not_found(name: str, tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    spoil, message = SPOILT[name]
    spoil(source)
    there = names(tmp_path)
    assert message in error("link", source, tmp_path / "out.onnx")
    assert names(tmp_path) == there
    checked = answer("check", source, code=FAILED)
    assert [message in problem for problem in checked["problems"]] == [True]


def test_external_data_of_attributes_subgraphs_and_sparse_tensors_is_found(tmp_path: Path) -> None:
    model = parser.parse_model(DEEP)

    def external(name: str) -> TensorProto:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=name)
        return tensor

    model.graph.sparse_initializer.add(values=external("values"), indices=external("indices"))
    branch = model.graph.node[-1].attribute[0].g
    branch.initializer.append(external("branch"))
    branch.node.append(onnx.helper.make_node("Constant", [], ["k"], value=external("attribute")))
    model.functions[0].node.append(onnx.helper.make_node("Constant", [], ["k"], value=external("function")))
    expected = {"values", "indices", "branch", "attribute", "function"}
    for name in expected:
        (tmp_path / name).touch()
    assert set(external_files(model, tmp_path / "m.onnx")) == expected


def test_links_out_of_the_models_folder_are_refused(tmp_path: Path) -> None:
    """As by onnxruntime, which would read what the writer of a model has no right to."""
    (tmp_path / "model").mkdir()
    source = save_external(tmp_path / "model" / "m.onnx")
    (tmp_path / "elsewhere").mkdir()
    data = next(file for file in source.parent.iterdir() if file != source)
    data.symlink_to(data.rename(tmp_path / "elsewhere" / data.name))
    refusal = error("link", source, tmp_path / "model" / "out.onnx")
    assert f"a link to {(tmp_path / 'elsewhere' / data.name).resolve()}, expected a file below" in refusal
    assert answer("check", source, code=FAILED)["problems"] == [refusal]


def test_link_to_itself(tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    data = next(file for file in tmp_path.iterdir() if file != source)
    data.unlink()
    data.symlink_to(data.name)
    (problem,) = answer("check", source, code=FAILED)["problems"]
    assert problem.endswith("which does not exist")


def test_links_within_the_models_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    source = save_external(tmp_path / "model" / "m.onnx")
    data = next(file for file in source.parent.iterdir() if file != source)
    (source.parent / "data").mkdir()
    data.symlink_to(data.rename(source.parent / "data" / data.name))
    assert answer("check", source)["ok"]


@pytest.mark.parametrize("kind", ["graph", "type"])
def test_brackets_too_deep_for_the_parser(kind: str, tmp_path: Path) -> None:
    """onnx's parser goes down until the stack overflows, which no handler survives."""
    depth = 30_000
    types, body = "float", "y = Identity (x)"
    if kind == "graph":
        body = "y = If (c) <then_branch = g () => (float y) { " * depth + body + " }>" * depth
    else:
        types = "seq(" * depth + types + ")" * depth
    path = tmp_path / "deep.onnxtxt"
    path.write_text(f'<ir_version: 10, opset_import: ["": 21]> graph (bool c, {types} x) => (float y) {{ {body} }}')
    assert error("check", path) == f"{path} is no ONNX model: brackets in it are nested more than 100 deep"
    with pytest.raises(onnx_ops.LinkError, match="nested more than 100 deep"):
        onnx_ops.link(path)


def test_brackets_in_text_and_comments_are_none(tmp_path: Path) -> None:
    path = tmp_path / "m.onnxtxt"
    brackets = "({[" * 100
    path.write_text(
        f'<ir_version: 10, opset_import: ["": 21], doc_string: "\\" {brackets}">\n'
        f"graph (float x) => (float y) {{ # {brackets}\n y = Identity (x) }}"
    )
    assert answer("check", path)["ok"]


@pytest.mark.parametrize("ending", ["onnx", "onnxtxt", "textproto", "json"])
def test_filters_of_warnings_are_left_alone(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has one list of them: a thread that changes it for a while takes the others' changes back."""
    path, model = tmp_path / f"m.{ending}", parser.parse_model(GOOD)
    onnx.save_model(model, path)
    monkeypatch.setattr("warnings.catch_warnings", None)
    assert read_model(path) == model
    write_model(model, tmp_path / f"out.{ending}", path)


def test_call_of_a_function_with_too_many_inputs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "own" : 1]>
        graph (float[2] g, float[2] x) => (float[2] o) { [call] o = own.F (g, x, x) }
        <domain: "own", opset_import: ["aclnn" : 1]>
        F (g, x) => (o) { o = aclnn.HardshrinkBackward (g, x) }"""
    )
    onnx.save_model(model, path)
    message = "node 'call' calls function own.F with 3 inputs, expected at most 2: g, x"
    for arguments in (["link", path, tmp_path / "out.onnx"], ["link", "--inline", path, tmp_path / "out.onnx"]):
        assert error(*arguments) == message
        assert answer(*arguments, code=FAILED) == {"error": message}
    assert answer("check", path, code=FAILED)["problems"] == [message]


# --- all or nothing --------------------------------------------------------------------------------------------------


def _no_space(*arguments: Any, **options: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("place", ["onnx.save_model", "shutil.copy"])
def test_nothing_is_left_of_a_failed_write(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = save_external(tmp_path / "m.onnx"), tmp_path / "out" / "m.onnx"
    out.parent.mkdir()
    out.write_text("what was there")
    monkeypatch.setattr(place, _no_space)
    assert error("link", source, out) == f"cannot write {out}: No space left on device"
    assert names(out.parent) == {"m.onnx"}
    assert out.read_text() == "what was there"


def test_model_that_cannot_be_serialized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*arguments: Any) -> None:
        raise ValueError("too large")

    monkeypatch.setattr("onnx.save_model", too_large)
    with pytest.raises(ModelFileError, match=r"cannot write m\.onnx: too large"):
        write_model(parser.parse_model(GOOD), tmp_path / "m.onnx", tmp_path / "source.onnx")
    assert not names(tmp_path)


def test_targets_that_cannot_be_written(good: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "symlink.onnx").symlink_to(good)
    for name, reason in {
        "folder": "it is not a regular file",
        "symlink.onnx": "it is not a regular file",
        "nowhere/out.onnx": "No such file or directory",
        "good.onnx/out.onnx": "Not a directory",
        "x" * 300: "File name too long",
    }.items():
        assert error("link", good, tmp_path / name) == f"cannot write {tmp_path / name}: {reason}"
    assert names(tmp_path) == {"good.onnx", "symlink.onnx"}
    assert onnx.load_model(good) == parser.parse_model(GOOD)


# --- files that are no models ----------------------------------------------------------------------------------------

NO_MODELS: dict[str, tuple[bytes | None, str]] = {
    "missing.onnx": (None, "cannot read {}: No such file or directory"),
    "empty.onnx": (b"", "{} is no ONNX model: there is no graph in it"),
    "garbage.onnx": (b"\xff\x00" * 100, "{} is no ONNX model: "),
    "page.onnx": (b"<!doctype html><title>404</title>", "{} is no ONNX model: "),
    "garbage.json": (b"{{", "{} is no ONNX model: "),
    "empty.json": (b"{}", "{} is no ONNX model: there is no graph in it"),
    "garbage.textproto": (b"what = is", "{} is no ONNX model: "),
    "binary.textproto": (b"\xff\xfe", "{} is no ONNX model: "),
    "garbage.onnxtxt": (b"what = is", "{} is no ONNX model: "),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_file_that_is_no_model(name: str, tmp_path: Path) -> None:
    contents, message = NO_MODELS[name]
    path = tmp_path / name
    if contents is not None:
        path.write_bytes(contents)
    for command in (["check", path], ["link", path, tmp_path / "out.onnx"]):
        text = error(*command)
        assert text.startswith(message.format(path))
        assert "b'" not in text
    assert not (tmp_path / "out.onnx").exists()


def test_folder_is_no_model(tmp_path: Path) -> None:
    assert error("check", tmp_path) == f"cannot read {tmp_path}: Is a directory"


def test_spoilt_models_leave_no_traceback(tmp_path: Path) -> None:
    """Whatever onnx or protobuf may raise for a file that is almost a model."""
    rng, path = np.random.default_rng(4), tmp_path / "m.onnx"
    whole = onnx_ops.link(parser.parse_model(DEEP)).SerializeToString()
    ends = []
    for _ in range(60):
        spoilt = bytearray(whole)
        for place in rng.integers(len(whole), size=rng.integers(1, 4)):
            spoilt[place] = rng.integers(256)
        path.write_bytes(spoilt)
        for command in ("check", path), ("link", path, tmp_path / "out.onnx"):
            result = CliRunner().invoke(app, [str(c) for c in command])
            assert isinstance(result.exception, SystemExit | None), result.exception
            ends.append(result.exit_code)
    assert set(ends) == {OK, FAILED}


HOSTILE_NAMES = {
    "\x1b[2J": r"\x1b[2J",
    "\x9b31m": r"\x9b31m",
    "\n\nno problems\n": r"\n\nno problems\n",
    "\u202e\u2066\u200f": r"\u202e\u2066\u200f",
    "\u2028\x85": r"\u2028\x85",
    "\u200b\u00ad\ufeff\U000e0041": r"\u200b\xad\ufeff\U000e0041",
    "\u3164\ufe0f\u2800": r"\u3164\ufe0f\u2800",
    "größe_数": "größe_数",
}


@pytest.mark.parametrize("width", [None, 60], ids=["pipe", "terminal"])
@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_names_do_not_act_on_the_terminal(
    name: str, width: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if width:
        monkeypatch.setattr(LineConsole, "width", width)
    model = parser.parse_model(GOOD)
    (node,) = model.graph.node
    node.name = model.graph.name = name
    node.output[0] = model.graph.output[0].name = f"{name}o"
    model.metadata_props.add(key="onnx_ops.version", value=name)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    printed = [run("check", path).output]
    assert f"HardshrinkBackward '{HOSTILE_NAMES[name]}' -> {HOSTILE_NAMES[name]}o\n" in printed[0]
    node.attribute.add(name=name, type=onnx.AttributeProto.INT, i=1)
    onnx.save(model, path)
    printed += [run(*command, code=FAILED).output for command in (("check", path), ("link", path, tmp_path / "out"))]
    printed += [run("show", name, code=FAILED).output, run("check", tmp_path / name.strip(), code=FAILED).output]
    for text in printed:
        assert not [c for c in text if c != "\n" and not c.isprintable()]
        assert sum(line.strip() == "no problems" for line in text.splitlines()) == (text is printed[0])


FAILING_COMMAND = """
import contextlib, numpy, onnx, onnx_ops
from onnx_ops.cli import app

def command(prog_name):
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[N] x, int64[1] s) => (float[M] y) { y = Reshape (x, s) }'
    session = onnx_ops.InferenceSession(onnx.parser.parse_model(text))
    with contextlib.suppress(Exception):
        session.run(None, {"x": numpy.ones(3, numpy.float32), "s": numpy.array([2])})
    print("failed")

app.app = command
app.main()
"""


def test_onnxruntime_logs_no_colours() -> None:
    """It would write them to what is no terminal, too."""
    done = subprocess.run([sys.executable, "-c", FAILING_COMMAND], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("failed\n", "")


def test_names_that_are_no_text(good: Path, tmp_path: Path) -> None:
    good.write_bytes(good.read_bytes().replace(b"gate", b"g\xffte"))
    assert error("check", good) == f"{good} is no proper ONNX model: there is a name in it that is no text, b'g\\xffte'"
    assert error("link", good, tmp_path / "out.onnx") == error("check", good)


@pytest.mark.parametrize("text", [BAD, CYCLE], ids=["bad", "cycle"])
def test_link_refuses_what_the_library_refuses(text: str, tmp_path: Path) -> None:
    assert error("link", saved(tmp_path / "m.onnx", text), tmp_path / "out.onnx")
    assert names(tmp_path) == {"m.onnx"}


# --- check -----------------------------------------------------------------------------------------------------------


def test_check_in_json(good: Path) -> None:
    matrix = {"dtype": "float", "shape": [2, 3]}
    assert answer("check", good) == {
        "model": str(good),
        "ok": True,
        "opset": 21,
        "minimum_opset": 15,
        "linked": "absent",
        "linked_by": None,
        "kernels": {"registered": True, "reason": None, "library": None, "level": None},
        "problems": [],
        "nodes": [
            {
                "op": "HardshrinkBackward",
                "name": "gate",
                "outputs": ["o"],
                "place": "graph",
                "bare_kernel": None,
                "kernel": "aclnn_HardshrinkBackward_v1",
                "problems": [],
                "runs_on": "kernel",
                "uses": [
                    {
                        "inputs": {"grad_output": matrix, "self": matrix},
                        "attributes": {"lambd": 0.25},
                        "outputs": {"grad_input": matrix},
                    }
                ],
            }
        ],
    }


def test_check_as_text(good: Path) -> None:
    lines = run("check", good).stdout.splitlines()
    assert lines[0] == str(good)
    assert "HardshrinkBackward 'gate' -> o" in lines
    assert "  runs on  kernel aclnn_HardshrinkBackward_v1" in lines
    assert "  inputs   grad_output float (2, 3); self float (2, 3)" in lines
    assert lines[-1] == "no problems"


def test_check_finds_nodes_wherever_they_are(tmp_path: Path) -> None:
    path = saved(tmp_path / "deep.onnx", DEEP)
    nodes = {node["place"]: node for node in answer("check", path)["nodes"]}
    assert {place: node["op"] for place, node in nodes.items()} == {
        "graph": "BinaryCrossEntropyWithLogitsBackward",
        "graph / If choice / yes": "HardshrinkBackward",
        "function own.Both": "HardshrinkBackward",
    }
    dtypes = [use["inputs"]["self"] for use in nodes["function own.Both"]["uses"]]
    assert dtypes == [{"dtype": "float", "shape": ["N"]}, {"dtype": "float16", "shape": [2]}]
    (use,) = nodes["graph"]["uses"]
    assert use["inputs"]["weight"] is None
    text = run("check", path).stdout
    assert "weight omitted" in text
    assert "self float (N,)" in text


def test_check_of_linked_and_inlined_models(good: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert "not linked by this version" in answer("check", good, "--linked", code=FAILED)["problems"][0]
    run("link", good, out)
    checked = answer("check", out, "--linked")
    assert checked["linked"] == "current"
    assert [(node["op"], node["place"]) for node in checked["nodes"]] == [("HardshrinkBackward", "graph")]
    run("link", "--inline", good, out)
    checked = answer("check", out, "--linked")
    assert (checked["linked"], checked["nodes"], checked["minimum_opset"]) == ("unneeded", [], None)


def test_check_of_a_model_linked_by_another_version(good: Path, tmp_path: Path) -> None:
    stale = onnx_ops.link(good)
    del stale.functions[0].node[-1]
    onnx.save_model(stale, good)
    assert answer("check", good)["linked"] == "stale"
    assert answer("check", good, "--linked", code=FAILED)["problems"]
    assert answer("check", good)["linked_by"] == onnx_ops.__version__
    assert f"yes, by version {onnx_ops.__version__}, but not as this version links it" in run("check", good).stdout
    run("link", good, good)
    assert answer("check", good)["linked"] == "current"


def test_check_finds_all_problems(tmp_path: Path) -> None:
    path = saved(tmp_path / "bad.onnx", BAD)
    checked = answer("check", path, code=FAILED)
    assert not checked["ok"]
    problems = {node["outputs"][0]: node["problems"] for node in checked["nodes"]}
    assert {output: len(texts) for output, texts in problems.items()} == {"q": 1, "r": 1, "s": 1, "z": 1}
    assert "no such op" in problems["q"][0]
    assert "attribute 'reduction' has type STRING" in problems["r"][0]
    assert "got 3 inputs, expected at most 2" in problems["s"][0]
    assert "input 'self' has shape (3,)" in problems["z"][0]
    assert all(node["runs_on"] is None for node in checked["nodes"])
    assert all("imports opset 14" in problem for problem in checked["problems"])
    lines = run("check", path, code=FAILED).stdout.splitlines()
    assert lines[-1] == f"{len(problems) + len(checked['problems'])} problems"


@pytest.mark.parametrize("name", REFUSED)
def test_what_link_refuses_is_a_problem(name: str) -> None:
    text, imports, *_ = REFUSED[name]
    model = model_of(text, imports or '"" : 21, "aclnn" : 1')
    with pytest.raises((onnx_ops.OpError, onnx_ops.LinkError)) as refusal:
        onnx_ops.link(model)
    inspection = inspect(model)
    assert not inspection.ok
    assert [*inspection.problems, *inspection.nodes[0].problems] == [str(refusal.value)]


def test_nodes_that_no_one_body_can_serve_are_a_problem() -> None:
    """No single node of these is wrong, and only the attempt to link them shows it."""
    model = model_of(
        """graph (float16[2] a, float[2] b, double[2] c) => (float[2] o) {
            o = own.Both (a, b)
            p = own.Both (b, c)
            q = own.Both (c, a)
        }
        <domain: "own", opset_import: ["" : 21, "aclnn" : 1]>
        Both (x, y) => (z) { z = aclnn.HardshrinkBackward (x, y) }""",
        '"" : 21, "aclnn" : 1, "own" : 1',
    )
    with pytest.raises(onnx_ops.LinkError) as refusal:
        onnx_ops.link(model)
    assert inspect(model).problems == (str(refusal.value),)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_what_link_takes_has_no_problem(case: Case) -> None:
    before = case.model.SerializeToString()
    inspection = inspect(case.model)
    assert inspection.ok
    assert inspection.linked in (Linked.ABSENT, Linked.UNNEEDED)
    assert case.model.SerializeToString() == before
    linked = inspect(onnx_ops.link(case.model))
    assert linked.ok
    assert linked.linked in (Linked.CURRENT, Linked.UNNEEDED)


def test_check_of_a_model_that_onnx_refuses(tmp_path: Path) -> None:
    (problem,) = answer("check", saved(tmp_path / "cycle.onnx", CYCLE), code=FAILED)["problems"]
    assert problem == "the functions of the model are recursive: own.Round calls own.Round"


def test_check_of_a_node_without_outputs(tmp_path: Path) -> None:
    model = parser.parse_model(GOOD)
    del next(node for node in model.graph.node if node.domain == onnx_ops.DOMAIN).output[:]
    onnx.save_model(model, tmp_path / "m.onnx")
    checked = answer("check", tmp_path / "m.onnx", code=FAILED)
    assert any(
        "required output 'grad_input' has no name" in text for node in checked["nodes"] for text in node["problems"]
    )


def test_check_of_a_node_in_a_node_without_name_or_outputs(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
        graph (bool q, float[2] g) => (float[2] o) {
            o = Neg (g)
            r = If (q) <
                then_branch = yes () => (float[2] s) { s = aclnn.HardshrinkBackward (g, g) },
                else_branch = no () => (float[2] t) { t = Identity (g) }>
        }"""
    model = parser.parse_model(text)
    branching = model.graph.node[1]
    del branching.output[:]
    for attribute in branching.attribute:
        del attribute.g.output[:]
    onnx.save_model(model, tmp_path / "m.onnx")
    (node,) = answer("check", tmp_path / "m.onnx")["nodes"]
    assert node["place"] == "graph / If / yes"


def test_check_of_another_version_of_the_domain(tmp_path: Path) -> None:
    (problem,) = answer("check", saved(tmp_path / "m.onnx", GOOD.replace('"aclnn" : 1', '"aclnn" : 2')), code=FAILED)[
        "problems"
    ]
    assert "imports version 2 of domain aclnn" in problem


def test_check_of_unknown_types(tmp_path: Path) -> None:
    text = GOOD.replace("o = aclnn", "u = com.example.Unknown (x) o = aclnn").replace("(g, x)\n    }", "(g, u)\n    }")
    text = text.replace('"aclnn" : 1', '"aclnn" : 1, "com.example" : 1').replace("[gate] ", "")
    path = saved(tmp_path / "m.onnx", text)
    assert answer("check", path)["nodes"][0]["uses"][0]["inputs"]["self"] == {"dtype": None, "shape": None}
    assert "self unknown" in run("check", path).stdout


def test_check_without_kernels(good: Path, no_kernels: str) -> None:
    checked = answer("check", good)
    assert checked["ok"]
    assert checked["kernels"] == {"registered": False, "reason": no_kernels, "library": None, "level": None}
    assert checked["nodes"][0]["runs_on"] == "portable body"
    text = run("check", good).stdout
    assert f"not registered: {no_kernels}" in text
    assert "runs on  function body" in text


# --- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor() -> None:
    examined = answer("doctor")
    assert examined["ok"]
    assert set(examined) == {"ok", "platform", "versions", "unsupported", "kernels", "cache", "outcomes"}
    assert examined["unsupported"] == []
    assert examined["versions"]["onnx-ops"] == onnx_ops.__version__
    assert examined["versions"]["onnxruntime"] == ort.__version__
    assert examined["kernels"] == {"registered": True, "reason": None, "library": None, "level": None}
    assert examined["cache"]["writable"]
    assert examined["cache"]["problem"] is None
    assert Path(examined["cache"]["path"]).is_dir()
    ran = {(o["op"], o["way"]): (o["status"], o["detail"]) for o in examined["outcomes"]}
    ways = ("kernel", "portable body", "inlined")
    assert ran == {(op, way): ("passed", None) for op in OPS for way in ways}


@pytest.mark.usefixtures("one_op")
def test_doctor_without_kernels(no_kernels: str) -> None:
    examined = answer("doctor")
    assert examined["ok"]
    assert examined["kernels"] == {"registered": False, "reason": no_kernels, "library": None, "level": None}
    assert {(o["way"], o["status"]) for o in examined["outcomes"]} == {
        ("kernel", "unavailable"),
        ("portable body", "passed"),
        ("inlined", "passed"),
    }
    text = run("doctor").stdout
    assert f"not registered: {no_kernels}" in text
    assert "all ops run here, as function bodies; there are no kernels" in text


@pytest.mark.skipif(not built_library.can_be_built(), reason="a library cannot be built here")
@pytest.mark.usefixtures("one_op")
def test_doctor_with_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which kernels are used, and runs the ops on those that are compiled here too."""
    path = str(built_library.library())
    monkeypatch.setenv(prebuilt.VARIABLE, path)
    examined = answer("doctor")
    assert examined["kernels"] == {"registered": True, "reason": None, "library": path, "level": NATIVE}
    ways = ("kernel", "portable body", "inlined", diagnosis.COMPILED)
    assert {(o["way"], o["status"]) for o in examined["outcomes"]} == {(way, "passed") for way in ways}
    text = run("doctor").stdout
    assert f"for {NATIVE}" in text
    assert "all ops run here, as kernels of the library, as kernels compiled here and as function bodies" in text
    monkeypatch.setattr(diagnosis, "_compiled_here", lambda model: ort.InferenceSession(b"no model"))
    assert [o["way"] for o in answer("doctor", code=FAILED)["outcomes"] if o["detail"]] == [diagnosis.COMPILED]
    assert os.environ[prebuilt.VARIABLE] == path


def test_doctor_without_numba() -> None:
    program = """
import sys
sys.modules["numba"] = None
from onnx_ops.cli import diagnosis
from onnx_ops.cli.app import app
diagnosis.OPS = {"KlDivBackward": diagnosis.OPS["KlDivBackward"]}
app(["doctor", "--json"])"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    examined = json.loads(done.stdout)
    assert examined["ok"]
    assert "Numba cannot be imported" in examined["kernels"]["reason"]
    assert examined["kernels"]["registered"] is False


def test_doctor_finds_what_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPS["KlDivBackward"]
    wrong = dataclasses.replace(op, example=dataclasses.replace(op.example, outputs={"out": [7.0]}))
    monkeypatch.setattr(diagnosis, "OPS", {op.name: wrong})
    monkeypatch.setitem(diagnosis.WAYS, "inlined", lambda model: ort.InferenceSession(b"no model"))
    examined = answer("doctor", code=FAILED)
    assert [o["status"] for o in examined["outcomes"]] == ["failed"] * 3
    assert "expected [7.0]" in examined["outcomes"][0]["detail"]
    assert "InvalidProtobuf" in examined["outcomes"][2]["detail"]
    assert run("doctor", code=FAILED).stdout.endswith("3 failures\n")


def test_doctor_of_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    program = "from onnx_ops.cli.diagnosis import _cache; print(_cache())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"ONNX_OPS_CACHE_DIR": str(blocked)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"Cache(path={str(blocked)!r}, writable=False, problem=")
    assert "File exists" in done.stdout


def test_compile_refuses_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    monkeypatch.setenv("ONNX_OPS_CACHE_DIR", str(blocked))
    assert str(blocked) in answer("compile", code=FAILED)["error"]
    assert "kernels cannot be compiled" in run("compile", code=FAILED).stderr


def test_compile_refuses_where_there_are_no_kernels(no_kernels: str) -> None:
    assert answer("compile", code=FAILED)["error"] == f"kernels cannot be compiled: {no_kernels}"


def test_build_library_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    given = ("build-library", tmp_path / "library.so", "--ops", "Hardshrink")
    assert ": install one of cc, gcc, clang, the package ziglang, or set CC" in error(*given, "--cpu", "native")
    other = "aarch64-linux" if platform.machine() == "x86_64" else "x86_64-linux"
    expected = f"there is no C compiler for {other}: install one of {other}-gnu-gcc, the package ziglang, or set CC"
    assert expected in error(*given, "--target", other)


@pytest.mark.parametrize("option", ["--ops", "--for"])
def test_library_of_some_ops_orders_updates(
    option: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has OptimizationBarrier: without its kernel, Trainer would read parameters that it has updated in place."""
    built: list[str] = []

    def build(path: Path, ops: Sequence[Op], cpus: Sequence[str], target: str) -> None:
        built.extend(op.name for op in ops)
        path.touch()

    monkeypatch.setattr("onnx_ops.library.build.build", build)
    result = run("build-library", tmp_path / "library.so", option, "KlDiv" if option == "--ops" else good)
    assert result.exit_code == 0
    assert "OptimizationBarrier" in built
    assert len(built) > 1


def test_build_library_refuses_options(good: Path, tmp_path: Path) -> None:
    library, plain = tmp_path / "library.so", tmp_path / "plain.onnx"
    text = '<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) { y = Abs (x) }'
    onnx.save(onnx.parser.parse_model(text), plain)
    assert "there is no folder" in error("build-library", library / "nowhere" / "library.so")
    assert "no op 'hardshrunk'" in error("build-library", library, "--ops", "hardshrunk")
    assert "--ops and --for are both given" in error("build-library", library, "--ops", "Hardshrink", "--for", good)
    assert "has no ops of the domain" in error("build-library", library, "--for", plain)
    assert "processors are 'v5', expected some of " in error("build-library", library, "--cpu", "v5")
    assert "the target is 'sparc', expected one of aarch64-linux, " in error(
        "build-library", library, "--target", "sparc"
    )


def test_prepare(good: Path, tmp_path: Path) -> None:
    """The step has further graphs, which are replaced if it is prepared again; a trainer leaves them out."""
    step, prepared = tmp_path / "step.onnx", tmp_path / "prepared.onnx"
    model = steps.whole_step()
    onnx.save(model, step)
    graphs = ["in_place", "accumulation", "update"]
    assert answer("prepare", step, prepared) == {"step": str(step), "prepared": str(prepared), "graphs": graphs}
    content = prepared.read_bytes()
    assert f"with the graphs {', '.join(graphs)}" in run("prepare", prepared, prepared).stdout.replace("\n", " ")
    assert prepared.read_bytes() == content
    named = {function.name for function in onnx.load(prepared).functions}
    assert named - {function.name for function in model.functions} == set(graphs)
    opened, start = open_step(prepared)
    assert {function.name for function in opened.functions} == {function.name for function in model.functions}
    assert start.keys() == steps.start().keys()
    onnx.checker.check_model(prepared, full_check=True)
    assert "no training step" in error("prepare", good, prepared)


@pytest.mark.usefixtures("one_op")
def test_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "PACKAGES", ("onnxruntime", "no-such-package"))
    assert answer("doctor")["versions"]["no-such-package"] is None


@pytest.mark.usefixtures("one_op")
def test_doctor_names_versions_that_are_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    required = [
        "onnxruntime>=1000",
        "numpy<1,>=0.5",
        "onnx>=1",
        "numba>=1000; python_version < '3'",
        "pytest>=1000; extra == 'test'",
        "typer>=1000; extra == 'cli'",
        "no-such-package>=1",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", {"onnx-ops": required}.__getitem__)
    examined = answer("doctor", code=FAILED)
    assert not examined["ok"]
    assert examined["unsupported"] == [
        {"package": "onnxruntime", "version": ort.__version__, "supported": ">=1000"},
        {"package": "numpy", "version": np.__version__, "supported": "<1,>=0.5"},
        {"package": "typer", "version": typer.__version__, "supported": ">=1000"},
    ]
    assert {outcome["status"] for outcome in examined["outcomes"]} == {"passed"}
    text = run("doctor", code=FAILED).stdout
    assert f"onnxruntime {ort.__version__} is not supported, onnxruntime>=1000 is\n" in text


@pytest.mark.usefixtures("one_op")
def test_doctor_of_onnxruntime_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu brings the same module."""
    versions = {"onnxruntime-gpu": ort.__version__, **{name: "1" for name in diagnosis.PACKAGES}}
    del versions["onnxruntime"]

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["onnxruntime>=1000"])
    assert [p["version"] for p in answer("doctor", code=FAILED)["unsupported"]] == [ort.__version__]


@pytest.mark.usefixtures("one_op")
def test_doctor_of_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run from a checkout: there is no metadata that says what it requires."""

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert answer("doctor")["unsupported"] == []


# --- the command line itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["frob"], ["list", "--frob"], ["show"], ["link", "one.onnx"], ["check"]])
def test_usage_errors(arguments: list[str]) -> None:
    run(*arguments, code=USAGE)


def test_version() -> None:
    assert run("--version").stdout == f"onnx-ops {onnx_ops.__version__}\n"


def test_names_of_a_model_are_no_markup(tmp_path: Path) -> None:
    model = parser.parse_model(GOOD)
    model.graph.node[0].name = "[red]:smile:[/nothing]"
    onnx.save_model(model, tmp_path / "m.onnx")
    assert "[red]:smile:[/nothing]" in run("check", tmp_path / "m.onnx").stdout


def process(command: list[str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONWARNINGS": "error", "PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    words = [*command, *map(str, arguments)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_process(tmp_path: Path) -> None:
    """Plain text to a pipe, lines of any length in whole, and nothing from Python's warnings."""
    module = [sys.executable, "-m", "onnx_ops"]
    path = saved(tmp_path / f"{'long name ' * 12}.onnx", GOOD)
    listed = process(module, "list")
    assert (listed.returncode, listed.stderr) == (OK, "")
    assert "\x1b" not in listed.stdout
    assert all(line == line.rstrip() for line in listed.stdout.splitlines())
    assert "  inputs      grad_out, input, mean, invstd, [weight], sum_dy, sum_dy_xmu, counter\n" in listed.stdout
    checked = process(module, "check", path)
    assert (checked.returncode, checked.stderr) == (OK, "")
    assert checked.stdout.splitlines()[0] == str(path)
    missing = process(module, "check", tmp_path / "\N{SNOWMAN}.onnx")
    assert missing.returncode == FAILED
    assert missing.stderr == f"onnx-ops: cannot read {tmp_path}/\\u2603.onnx: No such file or directory\n"
    assert process(module, "frob").returncode == USAGE


def test_process_of_the_script() -> None:
    script = Path(sys.executable).with_name("onnx-ops")
    if not script.exists():
        pytest.skip("the script is not installed")
    done = process([str(script)], "list")
    assert (done.returncode, done.stderr) == (OK, "")
    assert done.stdout == run("list").stdout


def test_a_reader_that_goes_away_leaves_no_traceback() -> None:
    command = f"{sys.executable} -m onnx_ops list | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{next(iter(OPS))}\n"
    assert "Traceback" not in done.stderr


def test_library_does_not_import_the_command_line() -> None:
    program = "import sys, onnx_ops; print(*{'typer', 'rich', 'onnx_ops.cli.app'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def in_terminal(width: int, *arguments: str | Path) -> str:
    """What a command writes to a terminal."""
    pty = pytest.importorskip("pty")
    import fcntl
    import struct
    import termios

    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "onnx_ops", *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment | {"TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(terminal)
    printed = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while chunk := os.read(controller, 65536):
            printed += chunk
    os.close(controller)
    assert process.wait(60) == OK
    return printed.decode()


def assert_lines_fit(text: str, width: int) -> None:
    """Lines are no longer than that, and words are whole."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert max(map(len, lines)) <= width
    words = {word.strip(",[]:") for line in lines for word in line.split()}
    assert {name for op in OPS.values() for name in (op.name, *op.input_names)} <= words


def test_lines_fit_a_terminal() -> None:
    text = in_terminal(60, "list")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)  # no colour
    assert_lines_fit(text, 60)


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineConsole, "width", width)
    text = run("list").stdout
    assert text.count("\n") > len(OPS)
    assert_lines_fit(text, width)


def test_sign_of_life_in_a_terminal_goes_away(good: Path) -> None:
    text = in_terminal(80, "check", good)
    assert "compiling the kernels" in text
    assert "compiling" not in text[text.rindex("\x1b[2K") :]
    assert text.endswith("no problems\r\n")


def test_reading_keeps_external_data_outside(tmp_path: Path) -> None:
    assert not read_model(save_external(tmp_path / "m.onnx")).graph.initializer[0].raw_data


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("onnx-ops do", ["doctor"]), ("onnx-ops show CtcL", ["CtcLoss", "CtcLossBackward"]), ("onnx-ops show Nope", [])],
)
def test_shell_completes_commands_and_ops(typed: str, completed: list[str]) -> None:
    words = typed.split()
    asked = {"_ONNX_OPS_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    command = [sys.executable, "-m", "onnx_ops"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.split(), done.stderr) == (completed, "")
