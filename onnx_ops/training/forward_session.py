"""A session that computes a graph on the state of a training, which it does not change."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnx_ops.core.errors import is_of_onnxruntime
from onnx_ops.core.step_format import GRADIENT, NEXT
from onnx_ops.graph.slices import part
from onnx_ops.graph.types import declared_types
from onnx_ops.training.batches import Batches
from onnx_ops.training.binding import Arrays, BoundSession
from onnx_ops.training.condition_parts import ConditionParts
from onnx_ops.training.conditions import check_conditions
from onnx_ops.training.errors import StepError
from onnx_ops.training.state import StatePart
from onnx_ops.training.step import Bounds, Step
from onnx_ops.training.step_runner import MakeSession, reported_dtypes


class ForwardSession:
    """Runs a graph, whose inputs that are state are bound to its tensors.

    Args:
        model: the graph.
        step: the metadata of the step, whose ranges of indices hold for inputs of the same names.
        bounds: sizes that named dimensions may have.
        state: the state of the step.
        session: makes the session.
        counted: the input, and its axis, whose size is the number of samples, of which there must be one; None for a
            graph that takes none too.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        step: Step,
        bounds: Mapping[str, Bounds],
        state: StatePart,
        session: MakeSession,
        counted: tuple[str, int] | None = None,
    ) -> None:
        self._state, self._conditions = state, step.conditions
        inputs = {name: tensor for name, tensor in declared_types(model.graph.input).items() if name not in step.roles}
        ranges = [found for found in step.ranges if found.input in inputs]
        known = counted if counted is not None and counted[0] in inputs else None
        self._batches = Batches(inputs, bounds, ranges, known, may_be_empty=False)
        self._bound = BoundSession(session(model), state.sets, [{}, {}], reported_dtypes(model))
        self._parts = ConditionParts(model, step.conditions, session, state.sets)

    def run(self, batch: Mapping[str, object]) -> Arrays:
        """The outputs, by name; StepError for what is refused.

        These are arrays that do not fit the inputs, numbers that violate a condition, and a state that is lost.
        """
        turn = self._state.whole.version.turn
        arrays = self._batches.checked(batch)
        try:
            found = self._bound.run(turn, arrays)
        except Exception as error:
            if is_of_onnxruntime(error):
                self._parts.check(turn, arrays)
            raise
        check_conditions(self._conditions, found)
        return found


def reporting_part(model: onnx.ModelProto) -> onnx.ModelProto:
    """The part of a step that computes the reported outputs, without gradients.

    All inputs of the batch are inputs of the part.

    Raises:
        StepError: a step that reports nothing but gradients.
    """
    outputs = [value for value in model.graph.output if not value.name.startswith((NEXT, GRADIENT))]
    if not outputs:
        raise StepError("the step reports nothing that could be evaluated, expected the loss")
    found = part(model, model.graph.input, outputs)
    batch = Step.of(model).batch(model)
    read = {value.name for value in found.graph.input}
    kept = [value for value in model.graph.input if value.name in read or value.name in batch]
    del found.graph.input[:]
    found.graph.input.extend(kept)
    return found
