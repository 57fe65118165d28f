"""Training steps in onnxruntime-web: the files that the trainer takes, and what is captured from PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import engines
import numpy as np
import onnx
import pytest
import steps
from onnxruntime_web import Node, Trainer

import onnx_ops
from onnx_ops.training.step import step_model

Array = np.ndarray[Any, Any]
SelfContained = Callable[[onnx.ModelProto], onnx.ModelProto]
NEAR = 2e-5
"""Of the largest entry of a tensor: float32, added up in another order, over a few steps."""

made_self_contained = pytest.mark.parametrize(
    "self_contained", [onnx_ops.link, onnx_ops.inline], ids=["linked", "inlined"]
)


def check_steps(node: Node, model: onnx.ModelProto, batches: list[Mapping[str, Array]]) -> None:
    """The same numbers as the trainer's in Python, step by step, from what the file says it starts from."""
    trainer, there = onnx_ops.Trainer(model, engines.options()), Trainer(node, model)
    assert_same(there.state(), trainer.state_dict(), near=0)
    for batch in batches:
        assert_same(there.step(**batch), trainer.step(**batch))
    assert_same(there.state(), trainer.state_dict())
    there.release()


def assert_same(actual: Mapping[str, Array], expected: Mapping[str, Array], near: float = NEAR) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        largest = float(np.abs(value).max(initial=0))
        engines.assert_close(actual[name], value, atol=near * largest, what=name)


@made_self_contained
def test_a_step(node: Node, self_contained: SelfContained) -> None:
    model = self_contained(steps.whole_step())
    check_steps(node, model, [steps.batch(8, seed=seed) for seed in range(3)])


@made_self_contained
def test_captured_steps(node: Node, self_contained: SelfContained) -> None:
    """Those that are measured too: convolutions, batch norm, pooling, attention, CTC, an LSTM."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from models.networks import TASKS
    from onnx_ops.torch import training_step

    for name, task in TASKS.items():
        torch.manual_seed(0)
        network, example = task.network(), task.batch()
        capture = training_step(network, task.loss, example, task.optimizer(network))
        names = [value.name for value in capture.model.graph.input if value.name not in capture.state]
        batches = [dict(zip(names, (t.numpy() for t in task.batch()), strict=True)) for _ in range(2)]
        print(name)  # shown where it fails
        check_steps(node, self_contained(step_model(capture.model, capture.state)), batches)
