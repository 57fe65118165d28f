"""README.md's comparison with other packages: its table is that of the results, and what is installed here is run."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

comparison: Any = pytest.importorskip("scripts.comparison.__main__", reason="captures from PyTorch")
RESULTS = json.loads(comparison.RESULTS.read_text(encoding="utf-8"))
ROWS = {*comparison.NETWORKS, "without_torch", "onnxruntime", "optimizers"}


def test_table_is_that_of_the_results() -> None:
    readme = comparison.README.read_text(encoding="utf-8")
    shown = readme.partition(comparison.BEGIN)[2].partition(comparison.END)[0]
    assert shown.strip() == comparison.markdown(RESULTS)


def test_results_are_complete_and_of_the_versions_that_are_installed() -> None:
    assert list(RESULTS) == list(comparison.SIDES)
    for name, side in comparison.SIDES.items():
        assert RESULTS[name].keys() == ROWS
        if side.packages:
            assert RESULTS[name]["optimizers"]["version"] == side.packages[0].partition("==")[2]


def test_every_no_has_an_error_or_losses() -> None:
    for name, cells in RESULTS.items():
        for row in ROWS - {"optimizers"}:
            cell = cells[row]
            assert cell["works"] or "error" in cell or "losses" in cell, (name, row)
            if row in comparison.NETWORKS:
                assert comparison.verdict(cell, RESULTS[comparison.REFERENCE][row])["works"] == cell["works"]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, 2.0], "yes"),
        ([1.0, 2.00001], "yes"),
        ([1.0, 2.001], "wrong losses"),
        ([1.0, math.nan], "wrong losses"),
        (None, "no"),
    ],
    ids=str,
)
def test_verdict(losses: list[float] | None, expected: str) -> None:
    cell: dict[str, Any] = {"error": "ValueError"} if losses is None else {"losses": losses}
    assert comparison.text("perceptron", comparison.verdict(cell, {"losses": [1.0, 2.0]})) == expected


@pytest.mark.full
@pytest.mark.parametrize("network", comparison.NETWORKS)
@pytest.mark.parametrize("name", ["own", "automatic_differentiation"])
def test_sides_do_what_the_table_says(name: str, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose packages are here."""
    if name == "automatic_differentiation" and importlib.util.find_spec("onnx_ad") is None:
        pytest.skip("needs onnx-ad")
    monkeypatch.setattr(comparison, "FOLDER", tmp_path)
    python = Path(sys.executable)
    expected = comparison.trained(comparison.REFERENCE, python, network)
    found = comparison.verdict(comparison.trained(name, python, network), expected)
    assert found["works"] == RESULTS[name][network]["works"], found
