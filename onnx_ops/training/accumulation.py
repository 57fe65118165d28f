"""Accumulation of gradients: several batches, and one update from the mean of their gradients.

The step is cut at its gradients, as it is for workers. The part that computes them gets further state: their mean over
all samples so far, and the number of these samples. A batch of `count` samples updates both in place:

    mean    += count / (samples + count) * (gradient - mean)
    samples += count

The part with the updates reads the mean in place of the gradient. What the loss writes to the state without the batch,
such as counts of batches and momentum encoders, a part of its own computes for each batch; the part with the updates
reads its last values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.errors import is_of_onnxruntime
from onnx_ops.core.step_format import CONDITION_NUMBERS, CONDITIONS, GRADIENT, NEXT, InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.edits import Names
from onnx_ops.graph.imports import add_import
from onnx_ops.graph.reading import one_line
from onnx_ops.graph.types import declared_types, value_info
from onnx_ops.linking.attached import restore
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.binding import Arrays, BoundSession, Tensor
from onnx_ops.training.condition_parts import ConditionParts
from onnx_ops.training.counters import Counted, Counters, counted_parts
from onnx_ops.training.errors import StepError, UpdateFailedError, refusals_as_step_errors
from onnx_ops.training.seeds import derived_seed
from onnx_ops.training.state import StatePart, Version
from onnx_ops.training.step import Step
from onnx_ops.training.step_runner import (
    Checks,
    MakeSession,
    UpdateSession,
)
from onnx_ops.training.workers.partition import partition


class Accumulation:
    """The gradients of the batches since the last update, and the update from their mean.

    Args:
        model: the step.
        state: the state of the step.
        session: makes a session.
        counted: the input, and its axis, whose size is the number of samples; None if all batches have as many.
        checks: the checks of the step's outputs.

    Attributes:
        batches: number of batches since the last update.

    Raises:
        StepError: a step that cannot be cut at its gradients.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        state: StatePart,
        session: MakeSession,
        counted: tuple[str, int] | None,
        checks: Checks,
    ) -> None:
        graphs = AccumulationGraphs.of(model, checks)
        gradients, averaging = graphs.gradients, graphs.averaging
        self._checks = checks.of_part(averaging.model)
        self._conditions = self._checks.tensors()

        self._state, self._counted = state, counted
        self._means = {name: Tensor.zeros(_wide(tensor)) for name, tensor in gradients.items()}
        self._samples, self._count, self._checked, self._value = (
            Tensor.zeros(TensorType(TensorProto.DOUBLE, ())) for _ in range(4)
        )
        seeds = Step.of(model).names(InputRole.SEED)
        self._seeds = {name: Tensor.zeros(TensorType(TensorProto.INT64, ())) for name in seeds}
        given = {averaging.means[name]: tensor for name, tensor in self._means.items()} | {
            averaging.samples: self._samples,
            averaging.count: self._count,
        }
        written = {NEXT + name: tensor for name, tensor in given.items() if name != averaging.count} | {
            averaging.checked: self._checked,
            averaging.value: self._value,
            **self._conditions,
        }
        outputs = {n: t for n, t in declared_types(averaging.model.graph.output).items() if n not in written}
        self._buffers = [name.removeprefix(NEXT) for name in outputs if name.startswith(NEXT)]
        inputs = [{**tensors, **self._seeds, **given} for tensors in state.sets]
        self._parts = ConditionParts(averaging.model, self._checks.conditions, session, inputs)
        self._gradients = BoundSession(
            session(averaging.model),
            inputs,
            [written, written],
            {name: numpy_dtype(tensor) for name, tensor in outputs.items()},
        )
        self._counters = Counters(graphs.counted, state, session)

        # Gradients of 16 bits are rounded once, from their mean.
        self._rounded = {name: Tensor.zeros(tensor) for name, tensor in gradients.items() if tensor != _wide(tensor)}
        read = self._means | self._rounded | self._counters.written
        sets, update = state.sets, graphs.counted.update
        self._updates = UpdateSession(
            update, state, session, lambda tensors: {**tensors, **read}, checks.of_part(update)
        )
        assert state.sets is sets, "the sessions of the same state must have the same sets of tensors"
        self.batches = 0

    def discard(self) -> None:
        """Forget the gradients of all batches since the last update."""
        self.batches = 0

    def add(self, version: Version, arrays: Arrays) -> Arrays:
        """Add the gradients of a batch, and change the buffers.

        Args:
            version: the current version of the state.
            arrays: the batch.

        Returns:
            The reported outputs that do not depend on the gradients, by name.

        Raises:
            StepError: a loss that is refused; a batch that failed while its gradients were added, after which there are
                none.
        """
        found = self._added(version, arrays)
        self._state.assign(self._changed(version, found))
        return found

    def update(self, version: Version, arrays: Arrays | None) -> Arrays:
        """Compute the update from the mean of the gradients, and forget them.

        Args:
            version: the current version of the state; the other set of tensors is written.
            arrays: a last batch; None for no further one.

        Returns:
            The reported outputs, by name, without a last batch those that do not depend on it.

        Raises:
            StepError: as for `add`.
            UpdateFailedError: the state has been updated in part.
        """
        found = {} if arrays is None else self._added(version, arrays)
        now, then = self._state.sets[version.turn], self._state.sets[1 - version.turn]
        if arrays is None:
            changed = {name: now[name].array for name in (*self._buffers, *self._counters.names)}
        else:
            changed = self._changed(version, found)
        for name, tensor in self._rounded.items():
            tensor.array[...] = self._means[name].array
        self._counters.write(changed)
        batches, self.batches = self.batches, 0  # first, so that an interrupt does not lead to a second update
        try:
            found |= self._updates.run(version.turn, {})
        except UpdateFailedError:
            raise
        except Exception:
            self.batches = batches
            raise
        for name in (*self._buffers, *self._counters.replaced):
            then[name].array[...] = changed[name]
        return found

    def _changed(self, version: Version, found: Arrays) -> Arrays:
        """The state that a batch changes, by name; its values are taken out of what the batch's run has returned."""
        return {name: found.pop(NEXT + name) for name in self._buffers} | self._counters.next(version)

    def _added(self, version: Version, arrays: Arrays) -> Arrays:
        """Add the gradients of a batch: the reported outputs and the next values of buffers, by name."""
        now = self._state.sets[version.turn]
        if not self.batches:
            for tensor in (*self._means.values(), self._samples):
                tensor.array[...] = 0
        for name, seed in self._seeds.items():
            seed.array[...] = derived_seed(int(now[name].array), 0, self.batches)
        self._count.array[...] = 1 if self._counted is None else arrays[self._counted[0]].shape[self._counted[1]]
        self._checked.array[...] = self._value.array[...] = 0
        for name, tensor in self._conditions.items():
            tensor.array[...] = name == CONDITIONS
        try:
            found = self._gradients.run(version.turn, arrays)
        except Exception as error:
            if is_of_onnxruntime(error):
                if self._checked.array:
                    self.discard()
                    raise StepError(
                        "the accumulated gradients are lost, as a batch has failed while its gradients were added:"
                        f" {one_line(error)}"
                    ) from error
                checked = {name: tensor.array for name, tensor in self._conditions.items()}
                if self._checks.loss is not None:
                    checked[self._checks.loss] = self._value.array
                self._checks.check(checked)
                self._parts.check(version.turn, arrays)
            raise
        self.batches += 1
        return found


# --- the parts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Averaging:
    """A model that updates means of gradients.

    Attributes:
        model: the model. Each of the means, and `samples`, has an output `next.<name>` that can be bound to its memory.
        means: inputs, by the names of the gradients.
        samples, count: inputs, numbers of float64: the samples of earlier batches, and those of this one.
        checked: an output, 1 in float64, which is computed before anything is written, and not if an output is refused.
        value: an output, the loss in float64.
    """

    model: onnx.ModelProto
    means: Mapping[str, str]
    samples: str
    count: str
    checked: str
    value: str


@dataclass(frozen=True)
class AccumulationGraphs:
    """A step that is cut at its gradients.

    Attributes:
        gradients: the types of the gradients that the update reads, by name.
        averaging: updates their means.
        counted: the update from the values of the gradients, which are inputs, and what changes with each batch.
    """

    gradients: Mapping[str, TensorType]
    averaging: Averaging
    counted: Counted

    @classmethod
    def of(cls, model: onnx.ModelProto, checks: Checks, check_finite: str = "") -> AccumulationGraphs:
        """Cut a step.

        Args:
            model: the step.
            checks: the checks of the step's outputs.
            check_finite: as for `in_place`.

        Raises:
            StepError: a step that cannot be cut at its gradients.
        """
        with refusals_as_step_errors("the step cannot be cut at its gradients"):
            parts = partition(model)
        (local,) = parts.local
        read = {value.name for value in parts.shared.graph.input}
        gradients = {
            value.own: value.tensor for value in local.exchanged if value.own in read and value.own.startswith(GRADIENT)
        }
        averaging = _averaging(local.model, gradients, checks.of_part(local.model), check_finite)
        return cls(gradients, averaging, counted_parts(model, parts.shared, gradients))


def _averaging(
    model: onnx.ModelProto, gradients: Mapping[str, TensorType], checks: Checks, check_finite: str
) -> Averaging:
    """Add the means of gradients to a model that computes them.

    Args:
        model: the part of a step with the gradients.
        gradients: the outputs that are replaced by their means, and their types.
        checks: the checks of outputs for which a run fails.
        check_finite: as for `in_place`.
    """
    names = Names.of(model)
    samples, count = names.new("samples"), names.new("count")
    averaging = Averaging(
        onnx.ModelProto(),
        {name: names.new(f"mean.{name}") for name in gradients},
        samples,
        count,
        names.new("checked"),
        names.new("loss_value"),
    )
    averaging.model.CopyFrom(model)
    restore(averaging.model)
    add_import(averaging.model, DOMAIN, OPSET_VERSION)
    graph = averaging.model.graph
    nodes: list[onnx.NodeProto] = []
    kept = [value for value in graph.output if value.name not in gradients]
    del graph.output[:]
    graph.output.extend(kept)

    def add(op_type: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [output or names.new(op_type.lower())], **attributes))
        return nodes[-1].output[0]

    def constant(array: np.ndarray) -> str:
        graph.initializer.append(numpy_helper.from_array(array, names.new("constant")))
        return graph.initializer[-1].name

    if checks.loss is None:
        accepted = constant(np.array(True))
        add("Identity", [constant(np.zeros(()))], averaging.value)
    else:
        value = add("ReduceSum", [add("Cast", [checks.loss], to=TensorProto.DOUBLE)], averaging.value, keepdims=0)
        refused = add("Or", [add("IsNaN", [value]), add("IsInf", [value])])
        single = add("Equal", [add("Size", [checks.loss]), constant(np.array(1, np.int64))])
        if check_finite:
            graph.input.append(helper.make_tensor_value_info(check_finite, TensorProto.BOOL, []))
            single = add("And", [single, check_finite])
        accepted = add("Not", [add("And", [refused, single])])
    table = constant(np.ones(1))
    if checks.conditions:
        all_hold = add("ReduceMin", [add("Cast", [CONDITIONS], to=TensorProto.INT64)], keepdims=0)
        accepted = add("And", [accepted, add("Cast", [all_hold], to=TensorProto.BOOL)])
        table = add("OptimizationBarrier", [table, CONDITION_NUMBERS], domain=DOMAIN)  # they are in the error message
    # An index out of range ends the run; the means depend on it.
    index = add("Cast", [add("Not", [accepted])], to=TensorProto.INT64)
    checked = add("Gather", [table, index], averaging.checked)
    added = add("Mul", [count, checked])
    total = add("Add", [samples, added], NEXT + samples)
    fraction, one = add("Div", [added, total]), constant(np.ones(()))
    for name, tensor in gradients.items():
        mean, dtype = averaging.means[name], _wide(tensor).dtype
        gradient = name if tensor.dtype == dtype else add("Cast", [name], to=dtype)
        # mean - fraction * (mean - gradient), a step from the mean towards the gradient, in place and in one pass
        moving = [mean, gradient, fraction, "", one]
        add("FusedSgd", moving, NEXT + mean, domain=DOMAIN, maximize=1)
    graph.node.extend(nodes)
    number = TensorType(TensorProto.DOUBLE, ())
    state = {mean: _wide(gradients[name]) for name, mean in averaging.means.items()} | {samples: number}
    graph.input.extend(value_info(name, tensor) for name, tensor in {**state, count: number}.items())
    further = {NEXT + name: tensor for name, tensor in state.items()}
    further |= {averaging.checked: number, averaging.value: number}
    graph.output.extend(value_info(name, tensor) for name, tensor in further.items())
    return averaging


def _wide(tensor: TensorType) -> TensorType:
    """The type of the mean of gradients: float64 for float64, else float32."""
    return TensorType(TensorProto.DOUBLE if tensor.dtype == TensorProto.DOUBLE else TensorProto.FLOAT, tensor.shape)
