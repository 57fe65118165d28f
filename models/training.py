"""Trainings: a step captured from PyTorch, stored as text, with data set and initial state.

`models/capturing.py` writes the files; nothing here requires PyTorch. The files of a step `step`:

    step.onnxtxt            the step in ONNX's text format, without initial parameters
    step.inference.onnxtxt  the inference graph; missing where the loss does not call the network
    step.losses.json        the first losses in PyTorch, with the initial state and the batches of seed 0
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_ops import Trainer
from onnx_ops.core.step_format import InputRole
from onnx_ops.fitting.run import Run
from onnx_ops.fitting.samples import Samples
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.step import Step

Arrays = dict[str, np.ndarray]

COMPARED_STEPS = 100
"""Number of losses in step.losses.json."""


@dataclass(frozen=True)
class StepFiles:
    """Paths of the files of a captured step."""

    folder: Path
    name: str

    @property
    def step(self) -> Path:
        return self.folder / f"{self.name}.onnxtxt"

    @property
    def inference(self) -> Path:
        return self.folder / f"{self.name}.inference.onnxtxt"

    @property
    def losses(self) -> Path:
        return self.folder / f"{self.name}.losses.json"


@dataclass(frozen=True)
class StartedStep:
    """A step with its initial state, for `onnx_ops.Trainer`; attributes as of `step_files.Captured`."""

    model: onnx.ModelProto
    state: Arrays
    inference: onnx.ModelProto | None
    evaluation: onnx.ModelProto | None = None


def unchanged(state: Arrays, rng: np.random.Generator) -> Arrays:
    """The state as `initial_state` returns it."""
    return state


@dataclass(frozen=True)
class Training:
    """A training of one step.

    Attributes:
        title: for tables and progress bars.
        files: paths of the step's files.
        samples: maps a seed to the data set, arrays by name of the step's batch inputs.
        batch_size: samples per step.
        unbatched: names of the arrays that every step gets whole; axis 0 of all others is the batch axis.
        initialize: maps the result of `initial_state` and a random generator to the initial state.
    """

    title: str
    files: StepFiles
    samples: Callable[[int], Mapping[str, np.ndarray]]
    batch_size: int
    unbatched: tuple[str, ...] = ()
    initialize: Callable[[Arrays, np.random.Generator], Arrays] = unchanged

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The step; the only initializers of its state are those of its settings."""
        return onnx.parser.parse_model(self.files.step.read_text())

    def started(self, seed: int) -> StartedStep:
        """The step with the initial state of a seed."""
        inference = self.files.inference
        return StartedStep(
            self.model,
            self.state(self.model, seed),
            onnx.parser.parse_model(inference.read_text()) if inference.exists() else None,
        )

    def state(self, model: onnx.ModelProto, seed: int) -> Arrays:
        """The initial state of a seed; `model` is a captured step of this training, of any floating-point dtype."""
        rng = np.random.default_rng(seed)
        return self.initialize(initial_state(model, rng), rng)

    def in_batches(self, samples: Mapping[str, np.ndarray]) -> Samples:
        """The data set, split into batches."""
        axes = {name: 0 for name in samples if name not in self.unbatched}
        count = len(samples[next(iter(axes))])
        return Samples(samples, axes, count, self.batch_size, fixed=False)

    def run(self, trainer: Trainer, samples: Mapping[str, np.ndarray], seed: int) -> Run[Samples]:
        """A run on these samples, shuffled with the seed."""
        arrays = {name: np.asarray(samples[name], numpy_dtype(t)) for name, t in trainer.batch_inputs.items()}
        return Run(trainer, self.in_batches(arrays), seed)

    def difference(self) -> float:
        """The maximal relative difference between the first losses and those of PyTorch in step.losses.json."""
        expected = np.array(json.loads(self.files.losses.read_text()))
        return difference(first_losses(self, Trainer(self.started(0)), len(expected)), expected)


def first_losses(training: Training, trainer: Trainer, steps: int = COMPARED_STEPS) -> np.ndarray:
    """The first losses of a trainer, (steps,), on the batches of seed 0."""
    run = training.run(trainer, training.samples(0), seed=0)
    return np.array([run.advance() for _ in range(steps)])


def difference(losses: np.ndarray, expected: np.ndarray) -> float:
    """The maximal relative difference: max(abs(losses - expected) / abs(expected))."""
    return float(np.max(np.abs(losses - expected) / np.abs(expected)))


def initial_state(model: onnx.ModelProto, rng: np.random.Generator) -> Arrays:
    """Initial values of a step's state, chosen by the names and shapes of its inputs.

    Parameters of two or more dimensions are normal with variance 2 / fan_in (He et al., 2015, equation 10);
    one-dimensional weights and running variances are 1; settings have the model's defaults; all others are 0.
    """
    step = Step.of(model)
    settings = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    state = {}
    for name, tensor in step.state(model).items():
        shape, dtype = tuple(int(size or 0) for size in tensor.shape or ()), numpy_dtype(tensor)
        role, kind = step.roles[name], name.rpartition(".")[2]
        if role is InputRole.SETTING:
            state[name] = settings[name]
        elif role is InputRole.PARAMETER and len(shape) > 1:
            state[name] = rng.normal(0.0, math.sqrt(2 / math.prod(shape[1:])), shape).astype(dtype)
        elif (role is InputRole.PARAMETER and kind == "weight") or kind == "running_var":
            state[name] = np.ones(shape, dtype)
        else:
            state[name] = np.zeros(shape, dtype)
    return state
