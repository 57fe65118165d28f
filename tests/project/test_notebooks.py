"""The notebooks run, and print what they show."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
NEEDED = {
    "first-steps": ("matplotlib", "onnxscript", "torch"),
    "fine-tuning": ("matplotlib", "onnxscript", "sklearn", "torch"),
    "ops": ("matplotlib",),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("first-steps", marks=pytest.mark.full),
        pytest.param("fine-tuning", marks=pytest.mark.full),
        "ops",
    ],
)
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch.onnx, about itself
@pytest.mark.filterwarnings("ignore:.*non-interactive:UserWarning")  # of `plt.show()`
def test_notebook_prints_what_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not all(map(importlib.util.find_spec, NEEDED[name])):
        pytest.skip(f"needs {', '.join(NEEDED[name])}")
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells(name)):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
            assert capsys.readouterr().out == printed(cell), f"cell {number}"
    matplotlib.pyplot.close("all")


def cells(name: str) -> list[dict[str, Any]]:
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def printed(cell: dict[str, Any]) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def test_notebooks_have_their_outputs_and_no_errors() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NEEDED)
    for name in NEEDED:
        outputs = [output for cell in cells(name) for output in cell.get("outputs", ())]
        assert {output["output_type"] for output in outputs} == {"stream", "display_data"}, name
        assert all(output.get("name", "stdout") == "stdout" for output in outputs), name
