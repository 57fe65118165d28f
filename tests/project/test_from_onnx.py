"""The guide for those who have an ONNX model alone, where onnx-ad is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_ops

onnx_ad = pytest.importorskip("onnx_ad")

GUIDE = Path(__file__).parents[2] / "docs" / "from-onnx.md"


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), names)


def test_its_step_is_gradient_descent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step beside the chain rule by hand, in float64."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), names)
    trainer = onnx_ops.Trainer("step.onnx")
    before = {name: array.astype(np.float64) for name, array in trainer.state_dict().items()}
    x, y = names["inputs"].astype(np.float64), names["labels"].astype(np.float64)
    hidden = np.tanh(x @ before["w1"] + before["b1"])
    logits = hidden @ before["w2"]
    by_logits = (1 / (1 + np.exp(-logits)) - y) / y.size
    by_shifted = (by_logits @ before["w2"].T) * (1 - hidden**2)
    trainer.step(inputs=names["inputs"], labels=names["labels"])
    after = trainer.state_dict()
    for name, gradient in (("w1", x.T @ by_shifted), ("b1", by_shifted.sum(0)), ("w2", hidden.T @ by_logits)):
        np.testing.assert_allclose(after[name], before[name] - 2 * gradient, rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = aclnn.Hardshrink (x)",
        "y, m, v = BatchNormalization <training_mode = 1> (x, w, w, w, w)",
        """ratio = Constant <value = float {0.5}> ()
           on = Constant <value = bool {1}> ()
           y = Dropout (x, ratio, on)""",
    ],
    ids=["aclnn", "BatchNormalization", "Dropout"],
)
def test_what_is_refused(nodes: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
        network (float[5, 4] x, float[4] w) => (float[5, 4] y) {{ {nodes} }}""")
    with pytest.raises(onnx_ad.UnsupportedOperator):
        onnx_ad.reverse(model, inputs=["x"], outputs=["y"], layout="onnx")
