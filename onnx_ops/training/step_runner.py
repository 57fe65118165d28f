"""Step runners: what makes the steps of a trainer, in one session or distributed over workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import onnx
import onnxruntime as ort

from onnx_ops.core.step_format import NEXT
from onnx_ops.core.types import FLOATS
from onnx_ops.graph.types import declared_types
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.binding import Arrays, BoundSession
from onnx_ops.training.state import Sets, Version

MakeSession = Callable[[onnx.ModelProto], ort.InferenceSession]


class StepRunner(Protocol):
    """Runs a training step from one set of state tensors to the other."""

    @property
    def loss(self) -> str | None:
        """The output that is checked as the loss: the first one that is reported, if its dtype is a floating one."""

    def run(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        """Make a step.

        Args:
            version: the current version of the state; its set is read, the other one is written.
            batch: checks the batch and returns its arrays, by name.

        Returns:
            The reported outputs, by name.
        """

    def checksum_after_load(self, before: int, state: Mapping[str, np.ndarray]) -> int:
        """`Version.loaded` after loading a state; `before` is the value before it."""


class SessionStepRunner:
    """Runs a step in one session."""

    def __init__(self, model: onnx.ModelProto, sets: Sets, session: MakeSession) -> None:
        self._bound = BoundSession(session(model), sets, next_values(sets), reported_dtypes(model))
        self.loss = loss_output(model)

    def run(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        return self._bound.run(version.turn, batch())

    def checksum_after_load(self, before: int, state: Mapping[str, np.ndarray]) -> int:
        return before


def loss_output(model: onnx.ModelProto) -> str | None:
    """The first reported output of a step, if its dtype is a floating one."""
    outputs = declared_types(model.graph.output).items()
    name, tensor = next(((n, t) for n, t in outputs if not n.startswith(NEXT)), (None, None))
    return name if tensor is not None and tensor.dtype in FLOATS else None


def reported_dtypes(model: onnx.ModelProto) -> dict[str, np.dtype]:
    """The reported outputs of a step, which are no next values, and their dtypes."""
    outputs = declared_types(model.graph.output)
    return {name: numpy_dtype(tensor) for name, tensor in outputs.items() if not name.startswith(NEXT)}


def next_values(sets: Sets) -> Sets:
    """For each set, the tensors of the other one by the names of the outputs that are written to them."""
    now, then = sets
    changed = [name for name in now if then[name] is not now[name]]
    return {NEXT + name: then[name] for name in changed}, {NEXT + name: now[name] for name in changed}
