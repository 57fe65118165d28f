"""One step file, one state and the same batches in Python, C++ and JavaScript, all on the function bodies."""

from __future__ import annotations

from pathlib import Path

import backends
import numpy as np
import onnx
import pytest
import steps
from cpp_trainer import CppTrainer
from onnxruntime_web import Node, Trainer, in_both_packages

import onnx_ops
from onnx_ops.integrations import sessions
from onnx_ops.runtime.process import STATE
from scripts.compiling import MissingError

pytestmark = [in_both_packages, pytest.mark.filterwarnings("ignore:onnx_ops runs on function bodies")]

NEAR = 2e-6
"""Of the largest entry of a tensor, in JavaScript, whose onnxruntime is another build: float32, over some steps."""


@pytest.mark.full
def test_three_languages(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ is as Python bit for bit, JavaScript within rounding; all refuse the same batch with the same message."""
    monkeypatch.setitem(STATE.shared, "library", (None, "no such library here"))
    monkeypatch.setattr(sessions, "_warned", set())
    file, checkpoint = tmp_path / "step.onnx", tmp_path / "checkpoint.safetensors"
    model = steps.step_with_evaluation()
    onnx.save(model, file)
    python = onnx_ops.Trainer(file, backends.options())
    python.step(**steps.batch(3))
    python.save(checkpoint, {"epoch": "1"})
    try:
        cpp = CppTrainer(file)
    except MissingError as missing:
        pytest.skip(str(missing))
    javascript = Trainer(node, file.read_bytes())
    cpp.load(checkpoint)
    assert javascript.load(checkpoint.read_bytes()) == {"epoch": "1"}
    cpp.learning_rate = javascript.learning_rate = python.learning_rate = 0.125

    def compare(method: str, *arguments: str, **given: np.ndarray) -> None:
        expected = getattr(python, method)(*arguments, **given)
        others = getattr(cpp, method)(*arguments, **given)
        in_browsers = getattr(javascript, "infer" if method == "predict" else method)(*arguments, **given)
        assert list(others) == list(expected)
        for name, array in expected.items():
            assert others[name].tobytes() == array.tobytes(), name
            np.testing.assert_allclose(in_browsers[name], array, rtol=0, atol=NEAR * max(np.abs(array).max(), 1))

    trainings = ((python.step, python.state_dict), (cpp.step, cpp.state_dict), (javascript.step, javascript.state))
    for size in (4, 9, 1, 4):
        batch = steps.batch(size, seed=size)
        compare("evaluate", "eval", **batch)
        compare("evaluate", "train", **batch)
        compare("step", **batch)
        wrong = batch | {"y": batch["y"][:, :1]}
        for steps_with, state_of in trainings:
            before = state_of()
            with pytest.raises(Exception, match=rf"^'y' is float32 \({size}, 1\), expected float32 \(N, 2\)$"):
                steps_with(**wrong)
            assert {name: array.tobytes() for name, array in state_of().items()} == {
                name: array.tobytes() for name, array in before.items()
            }
    compare("predict", x=batch["x"])
    files = [tmp_path / name for name in ("python", "cpp", "javascript")]
    python.save(files[0])
    cpp.save(files[1])
    files[2].write_bytes(javascript.save())
    assert files[0].read_bytes() == files[1].read_bytes()
    state = python.state_dict()
    python.load(files[2])
    for name, array in python.state_dict().items():
        np.testing.assert_allclose(array, state[name], rtol=0, atol=NEAR * max(np.abs(array).max(), 1))
