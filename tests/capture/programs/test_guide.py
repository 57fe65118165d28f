"""The code of the guides runs, and that which needs no PyTorch runs without it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.zoo import torchvision_operators

DOCS = Path(__file__).parents[3] / "docs"

WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnxscript", "onnx_ir", "peft", "torchvision", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(guide: Path) -> None:
    """Blocks with PyTorch in them in this process, those between them in processes in which it cannot be imported."""
    names: dict[str, Any] = {}
    elsewhere = ""
    for block in re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL):
        if "torch" in block.replace("without torch", ""):
            if elsewhere:
                subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_TORCH + elsewhere], check=True)
                elsewhere = ""
            exec(compile(block, str(guide), "exec"), names)
        else:
            elsewhere += block
    assert not elsewhere


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of the exporter, about itself
def test_the_guide_to_captures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(DOCS / "from-pytorch.md")
    assert (tmp_path / "classifier.onnx").exists()


PACKAGES = "peft", "sklearn", "torchvision", "transformers"


@pytest.mark.skipif(not all(map(importlib.util.find_spec, PACKAGES)), reason="needs the packages of make zoo")
@pytest.mark.filterwarnings("ignore")  # of these packages
def test_the_guide_to_fine_tuning_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_operators.declare()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run(DOCS / "fine-tuning.md")


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*torchvision:UserWarning")
def test_the_guide_from_onnxruntime_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(DOCS / "from-onnxruntime-training.md")
    assert (tmp_path / "trained.onnx").exists()
