"""The steps that are kept of the trainings: what they learn is what PyTorch learns."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import names_with

pytest.importorskip("sklearn")

from models import training as kept
from models.training import Training
from onnx_ops import Trainer

MODELS = Path(__file__).parents[2] / "models"
TRAININGS = {
    f"{path.parent.name}-{training.files.name}": training
    for path in sorted(MODELS.glob("*/training.py"))
    for training in vars(importlib.import_module(f"models.{path.parent.name}.training")).values()
    if isinstance(training, Training)
}
STEPS = 20
"""So many are compared here; with `--full` all that are kept."""
SOON = {"batch_norm_workers-step"}
# Losses of float32 have seven digits, and rounding grows from step to step; those of float64 have sixteen.
FLOAT32, FLOAT64 = 1e-4, 1e-9


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    return kept.COMPARED_STEPS if request.config.getoption("--full") else STEPS


@pytest.mark.parametrize("name", TRAININGS)
def test_first_losses_are_those_kept_of_torch(count: int, name: str) -> None:
    """The commands compare all."""
    training = TRAININGS[name]
    expected = np.array(json.loads(training.files.losses.read_text()))[:count]
    losses = kept.first_losses(training, Trainer(training.started(0)), len(expected))
    assert kept.difference(losses, expected) <= FLOAT32


@pytest.mark.parametrize("name", TRAININGS)
def test_seeds_are_starts_of_their_own(name: str) -> None:
    training = TRAININGS[name]
    one, again, other = (training.started(seed).state for seed in (0, 0, 1))
    assert all(np.array_equal(one[x], again[x]) for x in one)
    assert any(not np.array_equal(one[x], other[x]) for x in one)


@pytest.fixture(scope="module")
def steps() -> dict[str, object]:
    """The steps in PyTorch, by the names of their files."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from models.capturing import STEPS

    return {f"{step.training.files.folder.name}-{step.training.files.name}": step for step in STEPS}


def test_every_training_has_a_step(steps: dict[str, object]) -> None:
    assert sorted(steps) == sorted(TRAININGS)


KEPT_WITH = "2.13"
"""The version of PyTorch that `make models` was run with; others give values other names."""


def comparable(text: str) -> str | list[str]:
    """A model's text; with another version of PyTorch its operators and their attributes, without names of values."""
    import torch

    return text if torch.__version__.startswith(KEPT_WITH) else re.findall(r"= ([\w.]+(?: <.*?>)?) \(", text)


@pytest.mark.parametrize("name", names_with(full=TRAININGS.keys() - SOON, names=TRAININGS))
def test_captured_anew(steps: dict[str, object], count: int, name: str) -> None:
    """What is captured is what is kept, and PyTorch's losses are those that are kept."""
    from models import capturing, torch_step

    step = steps[name]
    assert isinstance(step, torch_step.TorchStep)
    files, capture = step.training.files, step.capture()
    assert comparable(capturing.text(capturing.without_state(capture))) == comparable(files.step.read_text())
    inference = capturing.inference(capture)
    assert files.inference.exists() == (inference is not None)
    if inference is not None:
        assert comparable(capturing.text(inference)) == comparable(files.inference.read_text())
    expected = np.array(json.loads(files.losses.read_text()))[:count]
    assert kept.difference(torch_step.first_losses(step, step.training.model, count), expected) <= FLOAT32


@pytest.mark.full
@pytest.mark.parametrize("name", TRAININGS)
def test_float64(steps: dict[str, object], count: int, name: str) -> None:
    """Where onnxruntime has the operators."""
    import torch

    from models import capturing, torch_step

    step = steps[name]
    assert isinstance(step, torch_step.TorchStep)
    model = capturing.without_state(step.capture(torch.float64))
    state = step.training.state(model, 0)
    trainer = Trainer(kept.StartedStep(model, state, None))
    expected = torch_step.first_losses(step, model, count, torch.float64)
    assert kept.difference(kept.first_losses(step.training, trainer, count), expected) <= FLOAT64


def test_the_text_tells_every_digit() -> None:
    """What it did not tell would be refused."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from models import capturing

    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) <float c = {0.5}> { y = Add (x, c) }'
    )
    for value in (np.float32(1 / 3), np.float64(1 / 3), np.float32(1e-38), np.float32(np.inf)):
        model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array(value), "c"))
        read = onnx.parser.parse_model(capturing.text(model)).graph.initializer[0]
        assert capturing.same(read, model.graph.initializer[0])
    other = onnx.numpy_helper.from_array(np.array(0.25, np.float32), "c")
    assert not capturing.same(read, other)
