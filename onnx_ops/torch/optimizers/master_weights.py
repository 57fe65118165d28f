"""An optimizer with float32 copies of parameters of 16 bits (Micikevicius et al., Mixed Precision Training, 2018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch.optim.optimizer import ParamsT

from onnx_ops.torch.optimizers.rule import Group, Rule, State

MASTER = "master_parameter"
"""The key of the copy in `optimizer.state[parameter]`."""
NARROW = (torch.float16, torch.bfloat16)


class MasterWeights(torch.optim.Optimizer):
    """An optimizer that updates float32 copies of float16 and bfloat16 parameters, and rounds them to the parameters.

    Updates below half a unit in the last place of a parameter, which for bfloat16 is up to 1/256 of it, thus add up
    instead of being lost. The state of the optimizer is float32 as well. Parameters of other dtypes are updated as by
    the optimizer itself. Where a copy does not round to its parameter, as after `load_state_dict` of the model, the
    parameter counts.

        optimizer = onnx_ops.torch.MasterWeights(torch.optim.AdamW, model.parameters(), lr=1e-3)

    Args:
        optimizer: a class of optimizers whose options of a group are all in `param_groups`, as those of torch.optim.
        params: parameters, or groups of them, as for the class.
        options: those of the class.

    Attributes:
        kind: the class.
    """

    def __init__(self, optimizer: type[torch.optim.Optimizer], params: ParamsT, **options: Any) -> None:
        self.kind = optimizer
        self._options = options
        super().__init__(params, optimizer([torch.nn.Parameter(torch.empty(1, 1))], **options).defaults)
        self._made(self.param_groups)  # which checks the options of each group

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles have; the base class leaves out what its subclasses add."""
        return super().__getstate__() | {"kind": self.kind, "_options": self._options}

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the copies by their optimizer, and round them to the parameters.

        Args:
            closure: computes the loss once more, before the update.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        given = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        copies = dict(zip(given, map(self._copy_of, given), strict=True))
        optimizer = self._made(
            group | {"params": [copies[p] for p in group["params"] if p in copies]} for group in self.param_groups
        )
        for parameter, copy in copies.items():
            state = self.state[parameter]
            optimizer.state[copy] = {key: value for key, value in state.items() if key != MASTER}
        optimizer.step()
        for parameter, copy in copies.items():
            self.state[parameter] = optimizer.state[copy]
            if copy is not parameter:
                self.state[parameter][MASTER] = copy.detach()
                parameter.copy_(copy)
        return loss

    def _made(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """An optimizer of the class."""
        unnamed = [{key: value for key, value in group.items() if key != "param_names"} for group in groups]
        return self.kind(unnamed, **self._options)

    def _copy_of(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """A float32 copy with a gradient; the parameter itself if it has another dtype."""
        if parameter.dtype not in NARROW:
            return parameter
        copy = torch.nn.Parameter(current(self.state[parameter].get(MASTER), parameter))
        copy.grad = None if parameter.grad is None else parameter.grad.float()
        return copy


def current(master: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor:
    """The copy of a parameter in float32, by element, or the parameter where the copy does not round to it."""
    wide = parameter.detach().float()
    return wide if master is None else torch.where(master.to(parameter.dtype) == parameter, master, wide)


def with_master_weights(rule: Rule) -> Rule:
    """The rule of MasterWeights of an optimizer with this rule."""

    def initial(parameter: torch.Tensor, group: Group) -> State:
        if parameter.dtype not in NARROW:
            return rule.initial(parameter, group)
        return rule.initial(parameter.float(), group) | {MASTER: parameter.float()}

    def update(
        parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
    ) -> tuple[torch.Tensor, State]:
        if parameter.dtype not in NARROW:
            return rule.update(parameter, gradient, state, rate, group)
        own = {key: value for key, value in state.items() if key != MASTER}
        master, new = rule.update(current(state[MASTER], parameter), gradient.float(), own, rate, group)
        return master.to(parameter.dtype), new | {MASTER: master}

    return dataclasses.replace(rule, initial=initial, update=update)
