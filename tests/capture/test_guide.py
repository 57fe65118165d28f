"""The code of the guide runs, and that which needs no PyTorch runs without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "from-pytorch.md"

WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnxscript", "onnx_ir"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of the exporter, about itself
def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with PyTorch in them in this process, those between them in processes in which it cannot be imported."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    elsewhere = ""
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        if "torch" in block.replace("without torch", ""):
            if elsewhere:
                subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_TORCH + elsewhere], check=True)
                elsewhere = ""
            exec(compile(block, str(GUIDE), "exec"), names)
        else:
            elsewhere += block
    assert not elsewhere
    assert (tmp_path / "classifier.onnx").exists()
