"""The trainings beside the same in PyTorch: what is made of errors, and the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import onnx_ops
from onnx_ops.torch import CaptureError
from scripts.trainings import beside_torch


def test_lacking_operator() -> None:
    """As onnxruntime names it: it has no Softplus of float64."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (double[N] x) => (double[N] y) { y = Softplus (x) }'
    )
    with pytest.raises(Exception, match="NOT_IMPLEMENTED") as lacking:
        onnx_ops.InferenceSession(model)
    refused = CaptureError(f"onnxruntime does not run the captured graph: {lacking.value}")
    assert beside_torch.lacking_operator(refused) == "Softplus"
    with pytest.raises(CaptureError, match="outputs differ"):
        beside_torch.lacking_operator(CaptureError("outputs differ"))


def test_table() -> None:
    seconds = [beside_torch.Seconds(1, 0.5, 1.25, 0.4, None), beside_torch.Seconds(2, 0.25, 0.5, 0.5, 0.0)]
    rows = [
        beside_torch.Row("one", beside_torch.Losses(3e-7, 2e-15, ""), seconds),
        beside_torch.Row("other", beside_torch.Losses(3e-4, None, "Softplus"), seconds),
    ]
    assert [row.losses.are_like_torch for row in rows] == [True, False]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in beside_torch.table(rows).splitlines()]
    assert lines[2] == ["one", "3.0e-07", "2.0e-15", "0.5 s", "1.25 s", "0.40", "0.25 s", "0.5 s", "0.50"]
    assert lines[3][:3] == ["other", "3.0e-04", "n/a: Softplus"]


@pytest.mark.full
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--training", "distillation, student", "--threads", "1", "--budget", "0.1"]
    written = tmp_path / "beside.json"
    monkeypatch.setattr(sys, "argv", ["beside_torch", *arguments, "--json", str(written)])
    assert beside_torch.main() == 0
    (row,) = json.loads(written.read_text())["rows"]
    assert row["losses"]["float64"] <= beside_torch.MAX_DIFFERENCE["float64"]
    assert row["seconds"][0]["captured"] > 0
    assert "distillation, student" in written.with_suffix(".md").read_text()
