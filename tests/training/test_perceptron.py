"""The perceptron's training step against its formulas in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from backends import assert_close, kernel_options

from models.perceptron import perceptron_step
from onnx_ops import Trainer


@pytest.mark.parametrize("sizes", [(5, 3), (5, 7, 3), (4, 6, 5, 2)], ids=str)
def test_steps_follow_the_formulas(sizes: tuple[int, ...]) -> None:
    trainer = Trainer(perceptron_step(sizes, momentum=0.75, rate=0.5), kernel_options())
    state = {name: array.astype(np.float64) for name, array in trainer.state_dict().items()}
    layers = range(len(sizes) - 1)
    for number in range(5):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(number + 3, sizes[0])).astype(np.float32)
        labels = rng.integers(2, size=(number + 3, sizes[-1])).astype(np.float32)
        entering = [x.astype(np.float64)]
        for i in layers:
            value = entering[-1] @ state[f"weight{i}"] + state[f"bias{i}"]
            entering.append(np.maximum(value, 0) if i < layers[-1] else value)
        logits = entering.pop()
        loss = np.mean(np.logaddexp(0, logits) - labels * logits)
        # Sums of at most seven products, in each of three layers; what is summed is of size 1.
        assert_close(trainer.step(x=x, labels=labels)["loss"], np.asarray(loss, np.float32), rtol=5e-6)
        grad = (1 / (1 + np.exp(-logits)) - labels) / logits.size
        for i in reversed(layers):
            gradients = {f"weight{i}": entering[i].T @ grad, f"bias{i}": grad.sum(0)}
            grad = (grad @ state[f"weight{i}"].T) * (entering[i] > 0)
            for name, gradient in gradients.items():
                moved = state[f"optimizer.momentum.{name}"] = 0.75 * state[f"optimizer.momentum.{name}"] + gradient
                state[name] = state[name] - 0.5 * moved
    for name, array in trainer.state_dict().items():
        assert_close(array, state[name].astype(np.float32), rtol=1e-5, atol=1e-5, what=name)  # five such steps


def test_inference_graph(tmp_path: Path) -> None:
    trainer = Trainer(perceptron_step((5, 7, 3)), kernel_options())
    trainer.export(tmp_path / "classifier.onnx")
    session = ort.InferenceSession(tmp_path / "classifier.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    state = {name: array.astype(np.float64) for name, array in trainer.state_dict().items()}
    hidden = np.maximum(x @ state["weight0"] + state["bias0"], 0)
    expected = hidden @ state["weight1"] + state["bias1"]
    (logits,) = session.run(["logits"], {"x": x})
    assert_close(logits, expected.astype(np.float32), rtol=1e-5, atol=1e-5)  # two layers of sums of size 1
