"""What the documents show is run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx_ops

ROOT = Path(__file__).parents[1]


def _blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def test_readme_example_runs() -> None:
    """The README has one example, which ends in an assert."""
    (example,) = _blocks("README.md")
    assert example.strip().splitlines()[-1].startswith("assert ")
    exec(compile(example, "README.md", "exec"), {})


def test_readme_names_all_ops() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in onnx_ops.OPS)


def test_adding_an_op_as_contributing_says(tmp_path: Path) -> None:
    """The file that CONTRIBUTING.md writes out makes an op, by itself, in kernel and portable body."""
    (source,) = _blocks("CONTRIBUTING.md")
    shutil.copytree(ROOT / "onnx_ops", tmp_path / "onnx_ops", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "onnx_ops" / "ops" / "softsign_backward.py").write_text(source)
    program = """
import numpy as np, onnx, onnxruntime, onnx_ops
value = lambda name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N"])
node = onnx_ops.make_node("SoftsignBackward", ["g", "x"], ["y"])
graph = onnx.helper.make_graph([node], "g", [value("g"), value("x")], [value("y")])
opsets = [onnx.helper.make_opsetid("", 21), onnx_ops.opset_import()]
model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
feeds = {"g": np.array([1, 2, -8], np.float32), "x": np.array([0, 1, -3], np.float32)}
plain = onnxruntime.InferenceSession(onnx_ops.link(model).SerializeToString())
for session in (onnx_ops.InferenceSession(model), plain):
    assert session.run(None, feeds)[0].tolist() == [1.0, 0.5, -0.5]
print("done", onnx_ops.__file__)
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "ONNX_OPS_CACHE_DIR": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["done", str(tmp_path / "onnx_ops" / "__init__.py")]
