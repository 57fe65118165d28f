"""Conditions of a step that are computed by themselves, where a node of the step fails before they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from onnx_ops.core.errors import is_of_onnxruntime
from onnx_ops.core.step_format import CONDITION_NUMBERS, CONDITIONS
from onnx_ops.graph.slices import part
from onnx_ops.graph.types import declared_types
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.binding import Arrays, BoundSession, Tensors
from onnx_ops.training.conditions import CONDITION_NODE, Condition, check_conditions
from onnx_ops.training.errors import StepError


def check_parts(
    model: onnx.ModelProto, conditions: Sequence[Condition], run: Callable[[onnx.ModelProto], Arrays | None]
) -> None:
    """Raise StepError if a condition is violated that can be computed.

    Args:
        model: the step.
        conditions: of the step.
        run: returns the outputs of a part of the step, by name; None if a node of the part fails.
    """
    graph = model.graph
    outputs = [value for value in graph.output if value.name in (CONDITIONS, CONDITION_NUMBERS)]
    if not outputs:
        return
    found = run(part(model, graph.input, outputs))
    if found is not None:
        check_conditions(conditions, found)
        return
    for own in condition_parts(model, conditions):
        if (violated := own.problem(run(own.model))) is not None:
            raise StepError(violated)


@dataclass(frozen=True)
class ConditionPart:
    """The part of a step that computes a condition.

    Attributes:
        condition: the condition.
        model: the part, with the outputs `holds` and those of `numbers`.
        holds: the name of the output that says whether the condition holds.
        numbers: the names of the numbers that it depends on, by their places.
    """

    condition: Condition
    model: onnx.ModelProto
    holds: str
    numbers: Mapping[int, str]

    def problem(self, found: Arrays | None) -> str | None:
        """The error message for the part's outputs; None if they are missing, or the condition holds."""
        if found is None or found[self.holds].all():
            return None
        values = np.full(max(self.numbers, default=-1) + 1, np.nan)
        for place, name in self.numbers.items():
            values[place] = found[name].item()
        return self.condition.problem(values)


def condition_parts(model: onnx.ModelProto, conditions: Sequence[Condition]) -> Iterator[ConditionPart]:
    """The part of a step for each of its conditions."""
    graph = model.graph
    parts = {node.output[0]: node.input for node in graph.node if node.op_type == "Concat"}
    # A single one is the output itself.
    holds, numbers = parts.get(CONDITIONS, [CONDITIONS]), parts.get(CONDITION_NUMBERS, [CONDITION_NUMBERS])
    for condition, name in zip(conditions, holds, strict=False):
        read = {number.place: numbers[number.place] for number in condition.numbers if number.place < len(numbers)}
        outputs = [helper.make_tensor_value_info(name, TensorProto.BOOL, (1,))]
        outputs += [helper.make_tensor_value_info(own, TensorProto.DOUBLE, (1,)) for own in {*read.values()}]
        yield ConditionPart(condition, part(model, graph.input, outputs), name, read)


def _check_failing_nodes(model: onnx.ModelProto, run: Callable[[onnx.ModelProto], Arrays | None]) -> None:
    """As `check_parts`, for a graph in evaluation mode, whose conditions are nodes that fail where they do not hold.

    Each of these reads an element whose index is the sum of that of the node before, and of 1 if the condition is
    violated.
    """
    graph = model.graph
    producers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type != "Gather" or not node.name.startswith(CONDITION_NODE):
            continue
        index = producers.get(node.input[1])
        if index is not None and index.op_type == "Add":
            violated = index.input[0]
            outputs = [helper.make_tensor_value_info(violated, TensorProto.INT64, (1,))]
            found = run(part(model, graph.input, outputs))
            if found is not None and found[violated].any():
                raise StepError(
                    f"'{node.name}' does not hold: the graph is valid only for batches with which the code does what it"
                    " does in the example of the capture"
                )


class ConditionParts:
    """Computes the conditions of a step by themselves, after a run in which a node has failed before they were known.

    Args:
        model: the step, or the part of it with the conditions.
        conditions: of the step.
        session: makes a session, when it is needed.
        inputs: for each turn the tensors of inputs, by name.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        conditions: Sequence[Condition],
        session: Callable[[onnx.ModelProto], ort.InferenceSession],
        inputs: Sequence[Tensors],
    ) -> None:
        self._model, self._conditions, self._session, self._inputs = model, conditions, session, inputs
        self._bound: dict[tuple[str, ...], BoundSession] = {}

    def check(self, turn: int, batch: Arrays) -> None:
        """Raise StepError if a condition is violated that can be computed."""

        def run(model: onnx.ModelProto) -> Arrays | None:
            outputs = tuple(value.name for value in model.graph.output)
            if outputs not in self._bound:
                dtypes = {name: numpy_dtype(tensor) for name, tensor in declared_types(model.graph.output).items()}
                self._bound[outputs] = BoundSession(self._session(model), self._inputs, [{}, {}], dtypes)
            try:
                return self._bound[outputs].run(turn, batch)
            except Exception as error:
                if is_of_onnxruntime(error):
                    return None
                raise

        check_parts(self._model, self._conditions, run)
        _check_failing_nodes(self._model, run)
