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
from onnx_ops.training.binding import Arrays, BoundSession, Tensor
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


class Counters:
    """Computes the next values of the state that changes with each batch.

    Args:
        counted: the parts of the update.
        state: the state of the step.
        session: makes a session.

    Attributes:
        names: of the state that changes.
        replaced: those of them that the update leaves as they are.
        written: what the update reads of them, by the names of its inputs.
    """

    def __init__(self, counted: Counted, state: StatePart, session: MakeSession) -> None:
        outputs = {} if counted.counters is None else declared_types(counted.counters.graph.output)
        self.names = [name.removeprefix(NEXT) for name in outputs]
        updated = {value.name for value in counted.update.graph.output}
        self.replaced = [name for name in self.names if NEXT + name not in updated]
        self.written = {name: Tensor.zeros(tensor) for name, tensor in counted.written.items()}
        self._state, self._bound = state, None
        if counted.counters is not None:
            dtypes = {name: numpy_dtype(tensor) for name, tensor in outputs.items()}
            self._bound = BoundSession(session(counted.counters), state.sets, [{}, {}], dtypes)

    def next(self, version: Version) -> Arrays:
        """The values after one further batch, by name."""
        found = {} if self._bound is None else self._bound.run(version.turn, {})
        return {name.removeprefix(NEXT): array for name, array in found.items()}

    def current(self, version: Version) -> Arrays:
        """Copies of the values, by name."""
        now = self._state.sets[version.turn]
        return {name: now[name].array.copy() for name in self.names}

    def write(self, values: Arrays) -> None:
        """Set `written` to the values after the last batch, which are given by the names of the state."""
        for name, tensor in self.written.items():
            tensor.array[...] = values[name.removeprefix(WRITTEN if name.startswith(WRITTEN) else NEXT)]
