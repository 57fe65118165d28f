"""Step runners: what makes the steps of a trainer, in one session or distributed over workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from onnx_ops.core.errors import is_of_onnxruntime
from onnx_ops.core.step_format import NEXT
from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.graph.stored import Source
from onnx_ops.graph.types import declared_types
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.binding import Arrays, BoundSession, Tensor, Tensors
from onnx_ops.training.errors import StepError, UpdateFailedError, refusals_as_step_errors
from onnx_ops.training.in_place import in_place
from onnx_ops.training.state import StatePart, Version

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


class UpdateSession:
    """A session that computes the next values of the state, in place unless the state keeps the previous ones.

    Args:
        model: the step, or the part of it with the updates.
        state: the state; made to keep previous values if the model cannot be run in place.
        session: makes the session.
        inputs: makes, of a set of tensors of the state, those of inputs, by name.
        loss: the output that is the loss; None if there is none.
        check_finite: whether a loss of one number that is NaN or infinite is refused.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        state: StatePart,
        session: MakeSession,
        inputs: Callable[[Tensors], Tensors],
        loss: str | None,
        check_finite: bool,
    ) -> None:
        self._loss, self._check_finite = loss, check_finite
        reported = reported_dtypes(model)
        self._order = list(reported)
        self._bound_loss: dict[str, Tensor] = {}
        self._passed: Tensor | None = None
        outputs: dict[str, Tensor] = {}
        if not state.keeps_previous:
            number = _one_number(model, loss)
            rewritten = None
            if loss is None or number is not None:
                with refusals_as_step_errors("the step cannot be run"):
                    rewritten = in_place(model, loss, check_finite)
            if rewritten is None:
                state.keep_previous()
            else:
                model = rewritten.model
                self._passed = Tensor.holding(np.zeros(1, np.float32), TensorProto.FLOAT)
                outputs = {rewritten.passed: self._passed}
                if loss is not None and number is not None and number.dtype is not None:
                    shape = [1] * len(number.shape or ())
                    self._bound_loss[loss] = Tensor.holding(np.zeros(shape, reported.pop(loss)), number.dtype)
                    outputs |= self._bound_loss
        first, second = state.next_values()
        now, then = state.sets
        self._bound = BoundSession(
            session(model), [inputs(now), inputs(then)], [{**first, **outputs}, {**second, **outputs}], reported
        )

    def run(self, turn: int, batch: Arrays) -> Arrays:
        """Run the session: the reported outputs, by name.

        Raises:
            StepError: a loss that is refused; the state is as it was.
            UpdateFailedError: the state has been updated in part.
            onnxruntime exceptions: the run has failed otherwise; the state is as it was.
        """
        for tensor in (self._passed, *self._bound_loss.values()):
            if tensor is not None:
                tensor.array[...] = 0
        try:
            found = self._bound.run(turn, batch)
        except Exception as error:
            if self._passed is None or not is_of_onnxruntime(error):
                raise
            if self._passed.array[0]:
                raise UpdateFailedError from error
            self._check({name: tensor.array for name, tensor in self._bound_loss.items()})
            raise
        found |= {name: tensor.array.copy() for name, tensor in self._bound_loss.items()}
        self._check(found)
        return {name: found[name] for name in self._order}

    def _check(self, found: Mapping[str, np.ndarray]) -> None:
        if self._check_finite and self._loss is not None and self._loss in found:
            check_loss(self._loss, found[self._loss])


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
