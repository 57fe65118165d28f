"""Metrics: single floating numbers that steps report, as means over samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx

from onnx_ops.core.step_format import CONDITION_NUMBERS, CONDITIONS, EVALUATION, GRADIENT, NEXT
from onnx_ops.core.types import FLOATS
from onnx_ops.graph.types import declared_types
from onnx_ops.training.errors import StepError
from onnx_ops.training.inference import carried_types
from onnx_ops.training.trainer_step import Mode

VALIDATION = "validation."
"""Prefix of the metrics of the validation data."""
Metrics = dict[str, float]


class Means:
    """Means over samples of reported numbers.

    Args:
        names: the outputs that may be metrics, the loss first. Those that are not single numbers in each batch are left
            out.
        totals: sums over the samples so far, by name.
        samples: number of samples so far.
    """

    def __init__(self, names: Iterable[str], totals: Mapping[str, float] | None = None, samples: int = 0) -> None:
        self._names, self.totals, self.samples = tuple(names), dict(totals or {}), samples

    def add(self, reported: Mapping[str, np.ndarray], samples: int) -> float:
        """Add the outputs of a batch.

        Returns:
            The loss: the first output.

        Raises:
            StepError: a first output that is no single number.
        """
        if not reported:
            raise StepError("the step reports nothing, expected the loss")
        first, loss = next(iter(reported.items()))
        if loss.size != 1:
            raise StepError(f"the step reports '{first}' of shape {loss.shape} first, expected the loss, one number")
        for name in self._names if not self.samples else tuple(self.totals):
            if name in reported and reported[name].size == 1:
                self.totals[name] = self.totals.get(name, 0.0) + float(reported[name].reshape(())) * samples
            else:
                self.totals.pop(name, None)
        self.samples += samples
        return float(loss.reshape(()))

    @property
    def means(self) -> Metrics:
        return {name: total / self.samples for name, total in self.totals.items()}


def metric_names(model: onnx.ModelProto, mode: Mode = "train") -> list[str]:
    """The outputs of a step that may be metrics: the loss, and other single floating numbers that are no gradients.

    Args:
        model: the step.
        mode: "train" for the outputs of the step, "eval" for those of its evaluation graph.

    Raises:
        StepError: a step without an evaluation graph in mode "eval".
    """
    outputs = carried_types(model, EVALUATION)[1] if mode == "eval" else declared_types(model.graph.output)
    internal = (NEXT, GRADIENT, CONDITIONS, CONDITION_NUMBERS)
    reported = [item for item in outputs.items() if not item[0].startswith(internal)]
    return [
        name
        for number, (name, tensor) in enumerate(reported)
        if not number or (tensor.dtype in FLOATS and all(size in (1, None) for size in tensor.shape or ()))
    ]
