"""Commands run in this process, what they answer, and the models that tests of several of them read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from typer.testing import CliRunner, Result

from onnx_ops.cli.app import app

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
