"""One step of a training: what it computes from a batch and the state, which it may share with others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from onnx_ops.core.step_format import EVALUATION, INFERENCE, LEARNING_RATE, average_name, learning_rate_names
from onnx_ops.core.types import TensorType
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.batches import Batches
from onnx_ops.training.errors import StepError, UpdateFailedError
from onnx_ops.training.forward_session import ForwardSession, reporting_part
from onnx_ops.training.inference import carried_function, carried_model, write_inference_model
from onnx_ops.training.learning_rates import cast_rate, rates_of_groups
from onnx_ops.training.state import StatePart
from onnx_ops.training.step import Step, summary
from onnx_ops.training.step_runner import MakeSession, StepRunner

Mode = Literal["eval", "train"]


class TrainerStep:
    """A step of a Trainer with several steps, as `trainer["generator"]` returns it.

    Attributes:
        batch_inputs: types of the arguments of `step`, by name.
        model: the step.
        runner: internal.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        state: StatePart,
        batches: Batches,
        runner: StepRunner,
        session: MakeSession,
        reload: Callable[[], str],
    ) -> None:
        """Internal: Trainer makes its steps.

        Args:
            model: the step.
            state: the state of the step.
            batches: checks the batches.
            runner: makes the steps.
            session: makes sessions.
            reload: returns how to give the trainer a state, for messages.
        """
        self.model, self._record, self._state = model, Step.of(model), state
        self._types = self._record.state(model)
        self.batch_inputs: dict[str, TensorType] = self._record.batch(model)
        self.runner, self._batches, self._session, self._reload = runner, batches, session, reload
        self._forward: dict[str, ForwardSession] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {summary(self.model)}>"

    def step(self, /, **batch: np.ndarray) -> dict[str, np.ndarray]:
        """As `Trainer.step`."""
        try:
            reported = self.runner.run(self._state.whole.version, lambda: self._checked(batch))
        except UpdateFailedError as failure:
            reason = f"the state is lost, as a step has failed during its update: {failure.__cause__}"
            self._state.whole.lose(f"{reason}; give the trainer a state by {self._reload()}")
            raise self._state.whole.lost from failure.__cause__
        self._state.whole.stepped(self._state.written)
        return reported

    def accumulate(self, /, **batch: np.ndarray) -> dict[str, np.ndarray]:
        """As `Trainer.accumulate`."""
        return self.runner.accumulate(self._state.whole.version, lambda: self._checked(batch))

    def evaluate(self, mode: Mode = "eval", /, **batch: np.ndarray) -> dict[str, np.ndarray]:
        """As `Trainer.evaluate`."""
        if mode not in ("eval", "train"):
            raise StepError(f"the mode is {mode!r}, expected 'eval' or 'train'")
        return self._forward_session(EVALUATION if mode == "eval" else mode).run(batch)

    def predict(self, /, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """As `Trainer.predict`."""
        return self._forward_session(INFERENCE).run(inputs)

    def export(self, path: str | os.PathLike[str], *, averaged: bool = False) -> None:
        """As `Trainer.export`."""
        arrays = {name: tensor.array for name, tensor in self._state.now.items()}
        if averaged:
            averages = {name: arrays[average_name(name)] for name in arrays if average_name(name) in arrays}
            if not averages:
                raise StepError("the step has no averages of weights: capture it with training_step(..., averaged=)")
            arrays |= averages
        write_inference_model(self.model, arrays, Path(path))

    @property
    def has_inference_graph(self) -> bool:
        """As `Trainer.has_inference_graph`."""
        return carried_function(self.model, INFERENCE) is not None

    @property
    def has_evaluation_graph(self) -> bool:
        """As `Trainer.has_evaluation_graph`."""
        return carried_function(self.model, EVALUATION) is not None

    @property
    def learning_rate(self) -> float | Any:  # Any, so that type checkers let a float be computed with
        """As `Trainer.learning_rate`."""
        state = self._state.now
        rates = tuple(float(state[name].array) for name in self._rate_names())
        return rates if len(rates) > 1 else rates[0]

    @learning_rate.setter
    def learning_rate(self, rate: float | Sequence[float]) -> None:
        names = self._rate_names()
        rates = rates_of_groups(rate, len(names))
        dtypes = [numpy_dtype(self._types[name]) for name in names]
        self._state.assign({n: cast_rate(rate, dtype) for n, rate, dtype in zip(names, rates, dtypes, strict=True)})

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the state of this step, by the names of its inputs, as for `onnx_ops.torch.load_into_torch`."""
        return {name: tensor.array.copy() for name, tensor in self._state.now.items()}

    def _rate_names(self) -> list[str]:
        """The settings that are learning rates; StepError if there are none."""
        names = learning_rate_names(self._types)
        if not names:
            raise StepError(f"the step has no setting '{LEARNING_RATE}'")
        return names

    def _checked(self, batch: Mapping[str, object]) -> dict[str, np.ndarray]:
        """The arrays of a batch, checked and contiguous; none if a worker passes none."""
        if not batch and (self._batches.may_be_empty or self.runner.accumulated):
            return {}
        return self._batches.checked(batch)

    def _forward_session(self, graph: str) -> ForwardSession:
        """The session of a graph that does not change the state; made when it is first used."""
        if graph not in self._forward:
            model = reporting_part(self.model) if graph == "train" else carried_model(self.model, graph)
            counted = None if graph == INFERENCE else self._batches.counted
            bounds = self._record.bounds
            if graph != "train":
                bounds = {dimension: own.of_other_statistics() for dimension, own in bounds.items()}
            self._forward[graph] = ForwardSession(model, self._record, bounds, self._state, self._session, counted)
        return self._forward[graph]
