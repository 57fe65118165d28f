"""The part of an update with the state that changes with each batch, also with an accumulated one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import onnx
from onnx import helper

from onnx_ops.core.step_format import NEXT, InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.slices import following, part
from onnx_ops.graph.types import declared_types, value_info
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.binding import Arrays, BoundSession
from onnx_ops.training.state import StatePart, Version
from onnx_ops.training.step import Step
from onnx_ops.training.step_runner import MakeSession

WRITTEN = "written."
"""Prefix of a value that is what the loss writes to a parameter or buffer, and the update reads."""


class Counted(NamedTuple):
    """The parts of an update of which one changes state with each batch.

    Attributes:
        counters: from the state, the next values of what changes with each batch and does not depend on it; None if
            nothing does.
        update: the others, from the values in `written` too.
        written: the types of the values of `counters` that the update reads, by the names of its inputs.
    """

    counters: onnx.ModelProto | None
    update: onnx.ModelProto
    written: Mapping[str, TensorType]


def counted_parts(model: onnx.ModelProto, shared: onnx.ModelProto, varying: Collection[str]) -> Counted:
    """The parts of an update.

    A buffer is the update's own, which changes with each step, if the update reads the value that it had before.

    Args:
        model: the step.
        shared: the part of it with the updates.
        varying: inputs of that part that depend on batches, such as gradients.
    """
    types = Step.of(model).state(model)
    of_model = Step.of(model).names(InputRole.BUFFER, InputRole.PARAMETER)
    later = following(shared.graph, varying)
    made = {name for node in shared.graph.node for name in node.output} - later
    # What the loss writes, without the optimizer's update of it.
    ends = {name: NEXT + name if NEXT + name in made else WRITTEN + name for name in of_model}
    ends = {name: end for name, end in ends.items() if end in made}
    while True:
        given = {prefix + name: types[name] for name in ends for prefix in (WRITTEN, NEXT) if prefix + name in made}
        inputs = [*shared.graph.input, *(value_info(name, tensor) for name, tensor in given.items())]
        updated = part(shared, inputs, [value for value in shared.graph.output if value.name in later])
        own = ends.keys() & {value.name for value in updated.graph.input}
        if not own:
            break
        ends = {name: end for name, end in ends.items() if name not in own}
    if not ends:
        return Counted(None, shared, {})
    counters = part(shared, shared.graph.input, [value_info(end, types[name]) for name, end in ends.items()])
    for value, (name, end) in zip(counters.graph.output, ends.items(), strict=True):
        if end != NEXT + name:
            counters.graph.node.append(helper.make_node("Identity", [end], [NEXT + name]))
            value.name = NEXT + name
    update = part(shared, inputs, [value for value in shared.graph.output if value.name not in given])
    read = {value.name for value in update.graph.input}
    return Counted(counters, update, {name: tensor for name, tensor in given.items() if name in read})


def unread_counters(
    model: onnx.ModelProto, shared: onnx.ModelProto, varying: Collection[str]
) -> onnx.ModelProto | None:
    """The `counters` of `counted_parts` that the update does not read; None if there are none."""
    counters, _, written = counted_parts(model, shared, varying)
    if counters is None:
        return None
    read = {name_of_state(name) for name in written}
    unread = [value for value in counters.graph.output if name_of_state(value.name) not in read]
    return part(counters, counters.graph.input, unread) if unread else None


def name_of_state(name: str) -> str:
    """The input of the state of which a value is the next one, or what the loss writes to it."""
    return name.removeprefix(WRITTEN if name.startswith(WRITTEN) else NEXT)


class Counters:
    """Computes the next values of `counters`.

    Args:
        model: the part; None if it is empty.
        state: the state of the step.
        session: makes a session.

    Attributes:
        names: of the state that changes.
    """

    def __init__(self, model: onnx.ModelProto | None, state: StatePart, session: MakeSession) -> None:
        outputs = {} if model is None else declared_types(model.graph.output)
        self.names = [name.removeprefix(NEXT) for name in outputs]
        self._state, self._bound = state, None
        if model is not None:
            dtypes = {name: numpy_dtype(tensor) for name, tensor in outputs.items()}
            self._bound = BoundSession(session(model), state.sets, [{}, {}], dtypes)

    def next(self, version: Version) -> Arrays:
        """The values after one further batch, by name."""
        found = {} if self._bound is None else self._bound.run(version.turn, {})
        return {name.removeprefix(NEXT): array for name, array in found.items()}

    def current(self, version: Version) -> Arrays:
        """Copies of the values, by name."""
        now = self._state.sets[version.turn]
        return {name: now[name].array.copy() for name in self.names}
