"""Files of models: formats, failed writes that leave nothing behind, and files that are no models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import DEEP, FAILED, GOOD, OK, answer, error, names, run, save_external, saved
from onnx import parser
from typer.testing import CliRunner

import onnx_ops
from onnx_ops.cli.app import app
from onnx_ops.graph.files import ModelFileError, read_model, write_model


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


def test_names_that_are_no_text(good: Path, tmp_path: Path) -> None:
    good.write_bytes(good.read_bytes().replace(b"gate", b"g\xffte"))
    assert error("check", good) == f"{good} is no proper ONNX model: there is a name in it that is no text, b'g\\xffte'"
    assert error("link", good, tmp_path / "out.onnx") == error("check", good)
