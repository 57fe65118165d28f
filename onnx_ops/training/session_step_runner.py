"""The step runner of a trainer without other workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from onnx_ops.graph.stored import Source
from onnx_ops.training.accumulation import Accumulation
from onnx_ops.training.binding import Arrays
from onnx_ops.training.state import StatePart, Version
from onnx_ops.training.step import Step
from onnx_ops.training.step_runner import Checks, MakeSession, UpdateSession, reported_dtypes


class SessionStepRunner:
    """Runs a step in one session, and one with accumulated gradients in two; a StepRunner.

    Args:
        model: the step.
        state: the state of the step.
        session: makes a session.
        counted: returns the input, and its axis, whose size is the number of samples; None if all batches have as many.
        check_finite: whether a loss that is NaN or infinite is refused.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        state: StatePart,
        session: MakeSession,
        counted: Callable[[], tuple[str, int] | None],
        check_finite: bool,
    ) -> None:
        self._model, self._state, self._session, self._counted = model, state, session, counted
        self._checks = Checks.of(model, check_finite)
        self._has_batch = bool(Step.of(model).batch(model))
        self._updates = UpdateSession(model, state, session, lambda now: now, self._checks)
        self._accumulation: Accumulation | None = None

    @property
    def accumulated(self) -> int:
        return 0 if self._accumulation is None else self._accumulation.batches

    def run(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        arrays = batch()
        if self._accumulation is None or not self._accumulation.batches:
            return self._updates.run(version.turn, arrays)
        found = self._accumulation.update(version, arrays if arrays or not self._has_batch else None)
        return {name: found[name] for name in reported_dtypes(self._model) if name in found}

    def accumulate(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        arrays = batch()
        if self._accumulation is None:
            self._accumulation = Accumulation(self._model, self._state, self._session, self._counted(), self._checks)
        return self._accumulation.add(version, arrays)

    def discard_accumulated(self) -> None:
        if self._accumulation is not None:
            self._accumulation.discard()

    def checksum_after_load(self, before: int, state: Mapping[str, Source]) -> int:
        return before
