"""The command line itself: usage errors, processes, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import FAILED, GOOD, OK, USAGE, run, saved

import onnx_ops
from onnx_ops.ops import OPS


@pytest.mark.parametrize("arguments", [[], ["frob"], ["list", "--frob"], ["show"], ["link", "one.onnx"], ["check"]])
def test_usage_errors(arguments: list[str]) -> None:
    run(*arguments, code=USAGE)


def test_version() -> None:
    assert run("--version").stdout == f"onnx-ops {onnx_ops.__version__}\n"


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


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        pytest.param("onnx-ops do", ["doctor"], marks=pytest.mark.full),
        ("onnx-ops show CtcL", ["CtcLoss", "CtcLossBackward"]),
        pytest.param("onnx-ops show Nope", [], marks=pytest.mark.full),
    ],
)
def test_shell_completes_commands_and_ops(typed: str, completed: list[str]) -> None:
    words = typed.split()
    asked = {"_ONNX_OPS_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    command = [sys.executable, "-m", "onnx_ops"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.split(), done.stderr) == (completed, "")
