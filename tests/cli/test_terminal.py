"""What is written to a terminal: lines that fit it, no control characters of names, no colours without one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from command_line import FAILED, GOOD, in_terminal, run
from onnx import parser

from onnx_ops.cli.console import LineConsole
from onnx_ops.ops import OPS

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


def test_names_of_a_model_are_no_markup(tmp_path: Path) -> None:
    model = parser.parse_model(GOOD)
    model.graph.node[0].name = "[red]:smile:[/nothing]"
    onnx.save_model(model, tmp_path / "m.onnx")
    assert "[red]:smile:[/nothing]" in run("check", tmp_path / "m.onnx").stdout


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
