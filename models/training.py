"""What a training of this folder is: a step captured from PyTorch, kept as text, and the samples that it is made with.

`models/capturing.py` writes the files; nothing here needs PyTorch. A step `step` has three of them in its folder:

    step.onnxtxt            the step in ONNX's text format, without the weights that it starts from
    step.inference.onnxtxt  the trained network by itself; missing where the loss does not call the network
    step.losses.json        the losses of PyTorch's first steps, from the start and on the batches of seed 0
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
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.run import Run
from onnx_ops.training.samples import Samples
from onnx_ops.training.step import Step

Arrays = dict[str, np.ndarray]

COMPARED_STEPS = 100
"""So many losses of PyTorch are kept."""


@dataclass(frozen=True)
class StepFiles:
    """The files of a captured step."""

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
    """A step with the state that it starts from, as `onnx_ops.Trainer` takes it; attributes as of its `Captured`."""

    model: onnx.ModelProto
    state: Arrays
    inference: onnx.ModelProto | None


def keep(state: Arrays, rng: np.random.Generator) -> Arrays:
    """Leave the state as it was drawn."""
    return state


@dataclass(frozen=True)
class Training:
    """A training of one step.

    Attributes:
        title: what it is, for tables and progress bars.
        files: of its step.
        samples: from a seed to the arrays of the step's batch inputs, each with all samples.
        batch_size: samples in a step.
        whole: those of the arrays that each step takes as they are; of all others the first axis counts samples.
        start: from the state as `drawn` and a generator of random numbers to the one that training starts from.
    """

    title: str
    files: StepFiles
    samples: Callable[[int], Mapping[str, np.ndarray]]
    batch_size: int
    whole: tuple[str, ...] = ()
    start: Callable[[Arrays, np.random.Generator], Arrays] = keep

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The step; of its state only the settings have defaults."""
        return onnx.parser.parse_model(self.files.step.read_text())

    def started(self, seed: int) -> StartedStep:
        """The step and where it starts with a seed."""
        inference = self.files.inference
        return StartedStep(
            self.model,
            self.state(self.model, seed),
            onnx.parser.parse_model(inference.read_text()) if inference.exists() else None,
        )

    def state(self, model: onnx.ModelProto, seed: int) -> Arrays:
        """What a step of this training starts from; `model` may be one of other dtypes."""
        rng = np.random.default_rng(seed)
        return self.start(drawn(model, rng), rng)

    def in_batches(self, samples: Mapping[str, np.ndarray]) -> Samples:
        """The samples, batch by batch."""
        axes = {name: 0 for name in samples if name not in self.whole}
        count = len(samples[next(iter(axes))])
        return Samples(samples, axes, count, self.batch_size, fixed=False)

    def run(self, trainer: Trainer, samples: Mapping[str, np.ndarray], seed: int) -> Run:
        """A training with these samples, in an order of this seed."""
        arrays = {name: np.asarray(samples[name], numpy_dtype(t)) for name, t in trainer.batch_inputs.items()}
        return Run(trainer, self.in_batches(arrays), seed)

    def difference(self) -> float:
        """The largest difference of the first losses from PyTorch's that are kept, as a share of these."""
        kept = np.array(json.loads(self.files.losses.read_text()))
        return difference(first_losses(self, Trainer(self.started(0)), len(kept)), kept)


def first_losses(training: Training, trainer: Trainer, steps: int = COMPARED_STEPS) -> np.ndarray:
    """The losses of a trainer that starts where this training does with seed 0."""
    run = training.run(trainer, training.samples(0), seed=0)
    return np.array([run.advance() for _ in range(steps)])


def difference(losses: np.ndarray, expected: np.ndarray) -> float:
    """The largest, as a share of what is expected."""
    return float(np.max(np.abs(losses - expected) / np.abs(expected)))


def drawn(model: onnx.ModelProto, rng: np.random.Generator) -> Arrays:
    """A state to start from, by the names and shapes that a step's inputs have.

    Settings are the model's defaults. Weights of several axes are random, of variance 2 / inputs (He et al., 2015,
    equation 10), those of one axis 1 and variances too, all else 0.
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
