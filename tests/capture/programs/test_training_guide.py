"""docs/training.md: its programs and commands print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onnx_ops.cli.app import app

GUIDE = Path(__file__).parents[3] / "docs" / "training.md"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


def console(commands: str) -> str:
    """Commands and what they print; those that fail end the test."""
    printed = ""
    for line in re.findall(r"^\$ onnx-ops (.*)\n", commands, re.MULTILINE):
        result = CliRunner().invoke(app, shlex.split(line))
        assert result.exit_code == 0, result.output
        printed += f"$ onnx-ops {line}\n{result.stdout}"
    return printed


def assert_printed(printed: str, shown: str) -> None:
    """The words and whole numbers are the same, other numbers nearly; a line "..." is for any number of lines."""
    number = f"({NUMBER.pattern})"
    words = "".join(
        "(?:.*\n)*?" if line == "..." else number.join(map(re.escape, NUMBER.split(line))) + "\n"
        for line in shown.splitlines()
    ).replace(r"\ MB", r"\ [MG]B")  # of the memory that is needed, to which the process of the tests adds its own
    found = re.fullmatch(words, printed)
    assert found is not None, printed
    for text, wanted in zip(found.groups(), NUMBER.findall(shown), strict=True):
        if wanted.isdigit():
            assert text == wanted, printed
        elif abs(float(wanted)) < 100:  # the memory that is needed depends on the versions of the packages
            assert float(text) == pytest.approx(float(wanted), rel=0.05, abs=0.01), printed


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of the exporter, about itself
def test_the_guide_to_trainings_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for language, block in re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        if language == "python":
            exec(compile(block, str(GUIDE), "exec"), names)
        elif language == "console":
            assert_printed(console(block), block)
        else:
            assert_printed(capsys.readouterr().out, block)
    written = {path.name for path in tmp_path.iterdir()}
    assert {"last.safetensors", "best.safetensors", "log.csv", "losses.png", "classifier.onnx"} <= written
