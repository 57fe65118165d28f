"""The demo: it ends well, and what it prints can be read in a terminal and in a file."""

from __future__ import annotations

import re
import sys

import pytest

pytest.importorskip("sklearn")

from models import digit_training
from scripts import demo

EPOCHS = 30  # enough for the accuracy that the demo asks of the network


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digit_training, "EPOCHS", EPOCHS)
    monkeypatch.setattr(demo, "TIMED_RUNS", 3)


def test_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain lines: no progress bar, no colours, no spaces at their ends, none too long to read."""
    assert demo.main() == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert not re.search(r"[\r\x1b]", output.out)
    lines = output.out.splitlines()
    assert [line for line in lines if line != line.rstrip() or len(line) > 100] == []
    epochs = [re.fullmatch(r"Epoch +(\d+) of 30: loss (0\.\d{4})", line) for line in lines]
    found = [(int(match[1]), float(match[2])) for match in epochs if match]
    assert [epoch for epoch, _ in found] == [1, 10, 20, 30]
    losses = [loss for _, loss in found]
    assert losses == sorted(losses, reverse=True)
    assert lines[-1].startswith("Done in ")


def test_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar in place of the lines."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    demo.train(digit_training.load())
    output = capsys.readouterr()
    assert output.err == ""
    assert f"| {EPOCHS}/{EPOCHS} " in output.out.split("\r")[-1]
    assert "Epoch " not in output.out
