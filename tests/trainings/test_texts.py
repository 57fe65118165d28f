"""The texts of captured steps that are kept: onnx 1.19 reads them too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "models"
TEXTS = sorted(MODELS.glob("*/*.onnxtxt"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_no_floating_attribute_is_a_whole_number(path: Path) -> None:
    """Such as `beta: float = 1`, which is an integer for onnx 1.19, and no Gemm for onnxruntime then."""
    assert not re.findall(r"\w+: float = -?\d+[,>]", path.read_text())


def test_whole_numbers_get_a_point() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from models.capturing import with_points

    line = (
        "y = me.F <b: float = 1, s: floats = [1, 2.5, -3], e: float = 1e-05, f: float = 1e+10, n: ints = [1, 2]> (x1)"
    )
    assert with_points(line) == line.replace("= 1,", "= 1.0,").replace("[1, 2.5, -3]", "[1.0, 2.5, -3.0]")
