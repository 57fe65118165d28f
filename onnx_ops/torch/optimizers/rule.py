"""What the update rule of an optimizer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

State = dict[str, torch.Tensor]
Group = Mapping[str, Any]
"""The options of a group of parameters: numbers, booleans, strings, None, and tuples of them."""
Initial = Callable[[torch.Tensor, Group], State]
Update = Callable[[torch.Tensor, torch.Tensor, State, torch.Tensor, Group], tuple[torch.Tensor, State]]

CLOCK = "step"
"""The state that counts steps in the optimizers of torch.optim."""


@dataclass(frozen=True)
class Rule:
    """The update rule of a class of optimizers.

    Attributes:
        initial: (parameter, group) to the state before the first step, by the keys of `optimizer.state[parameter]`.
        update: (parameter, gradient, state, learning rate, group) to (new parameter, new state). The gradient is
            negated with `maximize`; the learning rate is a scalar of float32, or of float64 if the model has such
            parameters.
        shared: keys of scalars that are equal for all parameters of a group that have been updated together.
        internal: keys that the optimizer itself does not have.
        narrow: whether the update rounds to 16 bits, whatever the dtype of the parameter.
        of_defaults: options that the optimizer reads from its defaults, whatever a group has.
        elementwise: whether the update of an element depends on no other one, so that complex parameters are updated as
            torch.view_as_real returns them.
    """

    initial: Initial
    update: Update
    shared: frozenset[str] = frozenset()
    internal: frozenset[str] = frozenset()
    narrow: bool = False
    of_defaults: tuple[str, ...] = ()
    elementwise: bool = True


def clock() -> torch.Tensor:
    """A count of 0 steps, () of the default dtype, as torch.optim has it."""
    return torch.zeros(())


def zeros(parameter: torch.Tensor, *keys: str) -> State:
    """States of zeros, of the shape and dtype of a parameter."""
    return {key: torch.zeros_like(parameter) for key in keys}
