"""What the updates of optimizers compute with tensors, with few passes over memory.

Numbers that a step computes, such as powers of the count of steps, are float64 scalars, and are rounded once to the
dtype that elements are computed in: float64 for float64, else float32. Results are rounded where PyTorch's CPU kernels
round 16-bit tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.optimizers.rule import Group
from onnx_ops.torch.tracing.mixed_precision import NARROW

Number: TypeAlias = float | torch.Tensor
"""A Python number, or a scalar."""


class SharedScalars(TorchFunctionMode):
    """A mode in which a function of scalars runs once for the same arguments, for code that changes none in place.

    The updates of all parameters compute the same powers of the count of steps; to trace them takes longer than the
    rest of the update.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Any, tuple[Any, torch.Tensor]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())
        if not all(_is_scalar(value) for value in given):
            return func(*args, **kwargs)
        # Numbers with their type and text: 1 == 1.0 and 0.0 == -0.0 are not the same arguments.
        key = func, *kwargs, *(id(v) if isinstance(v, torch.Tensor) else (type(v), repr(v)) for v in given)
        if key in self._known:
            return self._known[key][1]
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and not result.dim():
            self._known[key] = given, result  # with the arguments, so that no other tensor gets their id
        return result


def _is_scalar(value: object) -> bool:
    """Whether an argument is a number, a dtype or a scalar."""
    return not value.dim() if isinstance(value, torch.Tensor) else isinstance(value, int | float | torch.dtype)


def number(value: Number) -> torch.Tensor:
    """A number as a float64 scalar."""
    return value.double() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the dtype that its elements are computed in."""
    return tensor.float() if tensor.dtype in NARROW else tensor


def added(tensor: torch.Tensor, other: torch.Tensor, factor: Number) -> torch.Tensor:
    """tensor + factor * other, as torch.add(alpha=)."""
    stepped: torch.Tensor = domain_ops.FusedSgd(tensor, other, -number(factor), None, None, None, None)[0]
    return stepped


def lerp(start: torch.Tensor, end: torch.Tensor, weight: Number) -> torch.Tensor:
    """start + weight * (end - start)."""
    one = number(1.0)
    between: torch.Tensor = domain_ops.FusedSgd(start, end, number(weight), None, one, None, None, maximize=1)[0]
    return between


def scaled(tensor: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """tensor * factor, for a scalar."""
    computed = wide(tensor)
    return (computed * factor.to(computed.dtype)).to(tensor.dtype)


def average_of_squares(average: torch.Tensor, tensor: torch.Tensor, decay: float) -> torch.Tensor:
    """decay * average + (1 - decay) * tensor**2."""
    if average.dtype in NARROW:
        return torch.addcmul(average * decay, tensor, tensor, value=1 - decay)
    return lerp(average, tensor * tensor, 1 - decay)


def added_quotient(
    tensor: torch.Tensor, numerator: torch.Tensor, denominator: torch.Tensor, factor: Number
) -> torch.Tensor:
    """tensor + factor * numerator / denominator, as torch.addcdiv."""
    return added(wide(tensor), wide(numerator) / wide(denominator), factor).to(tensor.dtype)


def with_decay(gradient: torch.Tensor, parameter: torch.Tensor, group: Group) -> torch.Tensor:
    """The gradient with that of the L2 penalty of `weight_decay`."""
    return added(gradient, parameter, group["weight_decay"]) if group["weight_decay"] else gradient


def decayed(
    parameter: torch.Tensor, gradient: torch.Tensor, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameter and gradient after the weight decay of optimizers with an option `decoupled_weight_decay`."""
    if group["decoupled_weight_decay"]:
        return shrunk(parameter, rate, group), gradient
    return parameter, with_decay(gradient, parameter, group)


def shrunk(parameter: torch.Tensor, rate: torch.Tensor, group: Group) -> torch.Tensor:
    """The parameter after decoupled weight decay."""
    return scaled(parameter, 1 - number(rate) * group["weight_decay"]) if group["weight_decay"] else parameter
