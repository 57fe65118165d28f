"""The state that several training steps share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from onnx_ops.core.step_format import NEXT, InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.stored import Source, same_bits
from onnx_ops.training.arrays import array_text, tensor_text
from onnx_ops.training.errors import StepError
from onnx_ops.training.step import Step

SHARED = (InputRole.PARAMETER, InputRole.BUFFER)
"""The roles of what steps have in common; optimizer state, seed and settings are of one step each."""


@dataclass
class SharedState:
    """The union of the states of some steps.

    Parameters and buffers of the same name are one tensor. Other inputs have the name of the step before their own.

    Attributes:
        types: of the tensors, by name.
        start: their start values.
        roles: their roles.
        tied: further names of parameters and buffers, each with the name of the tensor.
    """

    types: dict[str, TensorType] = field(default_factory=dict)
    start: dict[str, Source] = field(default_factory=dict)
    roles: dict[str, InputRole] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    _first: dict[str, str] = field(default_factory=dict)
    """For each name the step that has brought it."""

    def add(self, step: str, model: onnx.ModelProto, start: Mapping[str, Source]) -> dict[str, str]:
        """Add the state of a step.

        Args:
            step: its name; empty for the only one, whose names stay as they are.
            model: the step.
            start: its start values, which have been checked.

        Returns:
            The names in the union, by those of the step.

        Raises:
            StepError: a parameter or buffer that is another one in a step that was added before.
        """
        record = Step.of(model)
        names = {own: own if role in SHARED or not step else f"{step}.{own}" for own, role in record.roles.items()}
        types = record.state(model)
        for own, name in names.items():
            if name in self._first:
                self._check(step, name, types[own], start[own], record.roles[own])
            else:
                self.types[name], self.start[name], self.roles[name] = types[own], start[own], record.roles[own]
                self._first[name] = step
        for other, name in record.tied.items():
            known = self.tied.setdefault(other, name)
            if known != name:
                raise StepError(
                    f"'{other}' is tied to '{name}' in the step '{step}', and to '{known}' in another; expected steps"
                    " of the same model"
                )
        for other, name in self.tied.items():
            if other in self.types:
                raise StepError(
                    f"'{other}' is tied to '{name}' in one step, but is a tensor of its own in the step"
                    f" '{self._first[other]}'; expected steps of the same model"
                )
        return names

    def _check(self, step: str, name: str, tensor: TensorType, start: Source, role: InputRole) -> None:
        """Raise StepError if a tensor of a step is not the one of that name."""
        first = self._first[name]
        if (role, tensor) != (self.roles[name], self.types[name]):
            known = f"{self.roles[name]}, {tensor_text(self.types[name])}"
            raise StepError(
                f"'{name}' is a {role}, {tensor_text(tensor)}, in the step '{step}', and a {known}, in the step"
                f" '{first}'; expected one tensor, as steps share parameters and buffers of the same name"
            )
        if not same_bits(start, self.start[name]):
            raise StepError(
                f"'{name}', {array_text(start)}, has other start values in the step '{step}' than in '{first}',"
                " expected the same, as steps share parameters and buffers of the same name: capture all steps from the"
                " same model before it is trained"
            )


def changing_names(model: onnx.ModelProto) -> list[str]:
    """The inputs of a step that have a next value."""
    outputs = {value.name for value in model.graph.output}
    return [name for name in Step.of(model).roles if NEXT + name in outputs]


def untied_state(state: Mapping[str, Source], tied: Mapping[str, str]) -> dict[str, Source]:
    """A state by names of inputs.

    Args:
        state: arrays by names; a tied parameter or buffer can have any of its names.
        tied: further names of parameters and buffers, each with the name of the input.

    Raises:
        StepError: tied names with different values.
    """
    untied = {name: array for name, array in state.items() if name not in tied}
    for other, first in tied.items():
        if other in state and not _same(untied.setdefault(first, state[other]), state[other]):
            raise StepError(f"'{other}' differs from '{first}', to which it is tied")
    return untied


def _same(one: object, other: object) -> bool:
    """Whether two tensors agree in every bit."""
    return isinstance(one, Source) and isinstance(other, Source) and same_bits(one, other)
