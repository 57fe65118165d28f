"""Step runners: what makes the steps of a trainer, in one session or distributed over workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from onnx_ops.core.errors import is_of_onnxruntime
from onnx_ops.core.step_format import CONDITION_NUMBERS, CONDITIONS, NEXT
from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.graph.stored import Source
from onnx_ops.graph.types import declared_types
from onnx_ops.integrations.sessions import kernels_complete
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.binding import Arrays, BoundSession, Tensor, Tensors
from onnx_ops.training.condition_parts import ConditionParts
from onnx_ops.training.conditions import Condition, check_conditions
from onnx_ops.training.errors import StepError, UpdateFailedError, refusals_as_step_errors
from onnx_ops.training.in_place import InPlaceStep, in_place
from onnx_ops.training.state import StatePart, Version
from onnx_ops.training.step import Step

MakeSession = Callable[[onnx.ModelProto], ort.InferenceSession]


class StepRunner(Protocol):
    """Runs a training step, which reads one set of tensors of the state and writes the other, or the same one."""

    def run(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        """Make a step.

        Args:
            version: the current version of the state; its set is read, the other one is written.
            batch: checks the batch and returns its arrays, by name.

        Returns:
            The reported outputs, by name.

        Raises:
            StepError: a batch or loss that is refused; the state is as it was.
            UpdateFailedError: the state has been updated in part.
        """

    @property
    def accumulated(self) -> int:
        """Number of batches whose gradients the next step applies besides those of its own batch."""

    def accumulate(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        """Add the gradients of a batch to those that the next step applies.

        Args:
            version, batch: as for `run`.

        Returns:
            The reported outputs that do not depend on the gradients, by name.

        Raises:
            StepError: a batch or loss that is refused, a step that cannot be cut at its gradients.
        """

    def discard_accumulated(self) -> None:
        """Forget the accumulated gradients."""

    def checksum_after_load(self, before: int, state: Mapping[str, Source]) -> int:
        """`Version.loaded` after loading a state; `before` is the value before it."""


@dataclass(frozen=True)
class Checks:
    """What is checked of a step's outputs before the state changes.

    Attributes:
        loss: the output that is refused if it is one number, NaN or infinite; None if none is.
        conditions: the conditions of the step.
    """

    loss: str | None
    conditions: tuple[Condition, ...]

    @classmethod
    def of(cls, model: onnx.ModelProto, check_finite: bool) -> Checks:
        """The checks of a step; `check_finite` says whether those of the loss are among them."""
        return cls(loss_output(model) if check_finite else None, Step.of(model).conditions)

    def of_part(self, model: onnx.ModelProto) -> Checks:
        """The checks of the outputs of a part of the step."""
        outputs = {value.name for value in model.graph.output}
        return Checks(self.loss if self.loss in outputs else None, self.conditions if CONDITIONS in outputs else ())

    def tensors(self) -> dict[str, Tensor]:
        """Tensors for the outputs with the conditions, in which all hold."""
        if not self.conditions:
            return {}
        count = len({number.place for condition in self.conditions for number in condition.numbers})
        return {
            CONDITIONS: Tensor.holding(np.ones(len(self.conditions), np.bool_), TensorProto.BOOL),
            CONDITION_NUMBERS: Tensor.holding(np.zeros(count), TensorProto.DOUBLE),
        }

    def check(self, found: MutableMapping[str, np.ndarray]) -> None:
        """Raise StepError for outputs that are refused; those with the conditions are removed."""
        check_conditions(self.conditions, found)
        if self.loss is not None and self.loss in found:
            check_loss(self.loss, found[self.loss])


def checked_in_place(model: onnx.ModelProto, checks: Checks, check_finite: str = "") -> InPlaceStep | None:
    """As `in_place`, for the checks of a step; None also if the loss may have several numbers."""
    if checks.loss is not None and _one_number(model, checks.loss) is None:
        return None
    return in_place(model, checks.loss, check_finite)


class UpdateSession:
    """A session that computes the next values of the state, in place unless the state keeps the previous ones.

    Args:
        model: the step, or the part of it with the updates.
        state: the state; made to keep previous values if the model cannot be run in place.
        session: makes the session.
        inputs: makes, of a set of tensors of the state, those of inputs, by name.
        checks: the checks of its outputs.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        state: StatePart,
        session: MakeSession,
        inputs: Callable[[Tensors], Tensors],
        checks: Checks,
    ) -> None:
        self._checks = checks
        tensors = [inputs(own) for own in state.sets]
        self._conditions = ConditionParts(model, checks.conditions, session, tensors)
        reported = reported_dtypes(model)
        self._order = list(reported)
        self._checked: dict[str, Tensor] = {}
        """What the outputs that are checked are bound to in a step in place."""
        self._passed: Tensor | None = None
        outputs: dict[str, Tensor] = {}
        if not state.keeps_previous:
            number = _one_number(model, checks.loss)
            with refusals_as_step_errors("the step cannot be run"):
                rewritten = checked_in_place(model, checks)
            # Function bodies may read a value again after its memory has the next one.
            if rewritten is None or not kernels_complete(rewritten.model):
                state.keep_previous()
            else:
                model = rewritten.model
                self._passed = Tensor.holding(np.zeros(1, np.float32), TensorProto.FLOAT)
                self._checked = checks.tensors()
                if checks.loss is not None and number is not None and number.dtype is not None:
                    shape = [1] * len(number.shape or ())
                    self._checked[checks.loss] = Tensor.holding(np.zeros(shape, reported[checks.loss]), number.dtype)
                outputs = {rewritten.passed: self._passed, **self._checked}
                reported = {name: dtype for name, dtype in reported.items() if name not in self._checked}
        first, second = state.next_values()
        now, then = state.sets
        self._bound = BoundSession(
            session(model), [inputs(now), inputs(then)], [{**first, **outputs}, {**second, **outputs}], reported
        )

    def run(self, turn: int, batch: Arrays) -> Arrays:
        """Run the session: the reported outputs, by name.

        Raises:
            StepError: outputs that are refused; the state is as it was.
            UpdateFailedError: the state has been updated in part.
            onnxruntime exceptions: the run has failed otherwise; the state is as it was.
        """
        if self._passed is not None:
            self._passed.array[...] = 0
        for name, tensor in self._checked.items():  # what is not computed is not refused
            tensor.array[...] = name == CONDITIONS
        try:
            found = self._bound.run(turn, batch)
        except Exception as error:
            if not is_of_onnxruntime(error):
                raise
            if self._passed is not None and self._passed.array[0]:
                raise UpdateFailedError from error
            self._checks.check({name: tensor.array for name, tensor in self._checked.items()})
            self._conditions.check(turn, batch)
            raise
        found |= {name: tensor.array.copy() for name, tensor in self._checked.items()}
        self._checks.check(found)
        return {name: found[name] for name in self._order if name in found}


def check_loss(name: str, loss: np.ndarray) -> None:
    """Raise StepError for a loss of one number that is NaN or infinite."""
    if loss.size == 1 and not math.isfinite(loss.reshape(())):
        raise StepError(
            f"'{name}' is {loss.reshape(())}, and the state is as before the step: expected a finite number; look for"
            " NaN and infinity in the batch, or lower the learning rate. Steps with such a loss are made with"
            " Trainer(..., check_finite=False)"
        )


def _one_number(model: onnx.ModelProto, loss: str | None) -> TensorType | None:
    """The type of the loss if it is one number whatever the batch."""
    tensor = declared_types(model.graph.output).get(loss or "", TensorType())
    return tensor if tensor.shape is not None and all(size == 1 for size in tensor.shape) else None


def loss_output(model: onnx.ModelProto) -> str | None:
    """The first reported output of a step, if its dtype is a floating one."""
    outputs = declared_types(model.graph.output).items()
    name, tensor = next(((n, t) for n, t in outputs if not n.startswith(NEXT)), (None, None))
    return name if tensor is not None and tensor.dtype in FLOATS else None


def reported_dtypes(model: onnx.ModelProto) -> dict[str, np.dtype]:
    """The reported outputs of a step, which are no next values, and their dtypes."""
    outputs = declared_types(model.graph.output)
    return {name: numpy_dtype(tensor) for name, tensor in outputs.items() if not name.startswith(NEXT)}
