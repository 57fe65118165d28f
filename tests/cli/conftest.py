"""Models and machines for the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import GOOD, saved

from onnx_ops.cli import diagnosis
from onnx_ops.integrations import sessions
from onnx_ops.ops import OPS
from onnx_ops.runtime.process import STATE


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
