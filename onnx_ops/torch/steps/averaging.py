"""Averages of weights as part of a step: the update of torch.optim.swa_utils.AveragedModel as a function of tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_avg_fn, get_swa_multi_avg_fn

from onnx_ops.core.step_format import AVERAGES_COUNT, average_name
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.pairs import as_real
from onnx_ops.torch.optimizers.arithmetic import lerp, number
from onnx_ops.torch.tracing.program import Tensors


class Averaging:
    """The averages of an AveragedModel, and their update after each step.

    Args:
        averaged: its parameters, and its buffers with `use_buffers`, are the initial averages.
        parameters, buffers: those of the model, by name.

    Raises:
        CaptureError: no AveragedModel, or one of another model.
    """

    def __init__(self, averaged: AveragedModel, parameters: Tensors, buffers: Tensors) -> None:
        if not isinstance(averaged, AveragedModel):
            raise CaptureError(
                f"`averaged` is {type(averaged).__name__}, expected a torch.optim.swa_utils.AveragedModel"
            )
        self.averaged = averaged
        self._averages = averages_of(averaged)
        wanted = parameters | buffers if averaged.use_buffers else parameters
        if {name: tensor.shape for name, tensor in self._averages.items()} != {n: t.shape for n, t in wanted.items()}:
            odd = next((n for n, t in self._averages.items() if n not in wanted or wanted[n].shape != t.shape), None)
            odd = odd or next(name for name in wanted if name not in self._averages)
            raise CaptureError(f"`averaged` is not of the model that is captured: they differ in '{odd}'")

    def state(self) -> Tensors:
        """Copies of the averages and their count, by the names of the step's inputs."""
        count = {AVERAGES_COUNT: self.averaged.n_averaged.detach().clone()}
        return count | {average_name(name): as_real(tensor.detach()).clone() for name, tensor in self._averages.items()}

    def updated(self, values: Tensors, reached: Tensors) -> Tensors:
        """The averages after a step.

        Args:
            values: the averages and their count, by the names of the step's inputs.
            reached: parameters and buffers of the model after the step, by name.

        Returns:
            The new averages and their count, by the names of the step's inputs.

        Raises:
            CaptureError: an averaging function that returns no tensor of the shape of the average.
        """
        count = values[AVERAGES_COUNT]
        old = {name: values[average_name(name)] for name in self._averages}
        new = {AVERAGES_COUNT: count + 1}
        for name, average in self._updated(old, reached, count).items():
            # The first update copies the model.
            new[average_name(name)] = torch.where(count == 0, reached[name], average)
        return new

    def _updated(self, averages: Tensors, reached: Tensors, count: torch.Tensor) -> Tensors:
        """The averages after any but the first update."""
        several = self.averaged.multi_avg_fn
        if several is None:
            function = self.averaged.avg_fn or get_swa_avg_fn()
            return {
                name: _fitting(name, function(average.clone(), reached[name], count), average)
                for name, average in averages.items()
            }
        weight = _weight(several, count)
        floating = {} if weight is None else {n: t for n, t in averages.items() if t.is_floating_point()}
        new = {name: lerp(average, reached[name], weight) for name, average in floating.items()}
        by_dtype: dict[torch.dtype, list[str]] = {}
        for name, average in averages.items():
            if name not in new:
                by_dtype.setdefault(average.dtype, []).append(name)
        for names in by_dtype.values():
            own = [averages[name].clone() for name in names]
            several(own, [reached[name] for name in names], count)
            new |= dict(zip(names, own, strict=True))
        return {name: new[name] for name in averages}


def averages_of(averaged: AveragedModel) -> Tensors:
    """The tensors that an AveragedModel averages, by their names in the model."""
    module = averaged.module
    return dict(module.named_parameters()) | (dict(module.named_buffers()) if averaged.use_buffers else {})


def _weight(function: Callable[..., Any], count: torch.Tensor) -> torch.Tensor | float | None:
    """The weight of the model in the averages of a function of torch.optim.swa_utils; None for another function."""
    code = inspect.unwrap(function).__code__ if inspect.isfunction(function) else None
    if code is inspect.unwrap(get_swa_multi_avg_fn()).__code__:
        return number(1 / (count + 1))  # which has the default dtype, as the quotient of integers
    if code is inspect.unwrap(get_ema_multi_avg_fn()).__code__:
        return 1 - float(inspect.getclosurevars(inspect.unwrap(function)).nonlocals["decay"])
    return None


def _fitting(name: str, result: object, average: torch.Tensor) -> torch.Tensor:
    """The result of an averaging function, in the dtype of the average."""
    if not isinstance(result, torch.Tensor) or result.shape != average.shape:
        what = f"shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise CaptureError(f"avg_fn returns {what} for '{name}', expected a tensor of shape {tuple(average.shape)}")
    return result.to(average.dtype)
