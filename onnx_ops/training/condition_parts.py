"""Conditions of a step that are computed by themselves, where a node of the step fails before they are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    parts = {node.output[0]: node.input for node in graph.node if node.op_type == "Concat"}
    holds, numbers = parts.get(CONDITIONS, ()), parts.get(CONDITION_NUMBERS, ())
    for condition, name in zip(conditions, holds, strict=False):
        read = {number.place: numbers[number.place] for number in condition.numbers if number.place < len(numbers)}
        outputs = [helper.make_tensor_value_info(name, TensorProto.BOOL, (1,))]
        outputs += [helper.make_tensor_value_info(own, TensorProto.DOUBLE, (1,)) for own in {*read.values()}]
        found = run(part(model, graph.input, outputs))
        if found is not None and not found[name].all():
            values = np.full(max(read, default=-1) + 1, np.nan)
            for place, own in read.items():
                values[place] = found[own].item()
            raise StepError(condition.problem(values))


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
