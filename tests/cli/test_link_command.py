"""The command `link`: what it writes and says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from command_line import (
    BAD,
    CYCLE,
    DEEP,
    EXPECTED,
    FAILED,
    FOREIGN,
    G,
    X,
    answer,
    error,
    names,
    run,
    save_external,
    saved,
)
from onnx import parser

import onnx_ops


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


@pytest.mark.parametrize("text", [BAD, CYCLE], ids=["bad", "cycle"])
def test_link_refuses_what_the_library_refuses(text: str, tmp_path: Path) -> None:
    assert error("link", saved(tmp_path / "m.onnx", text), tmp_path / "out.onnx")
    assert names(tmp_path) == {"m.onnx"}
