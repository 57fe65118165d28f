"""Rewrites a training step so that its state can be updated in place.

onnxruntime writes an output to the memory that it is bound to. An output `next.<x>` may be bound to the memory of the
input `<x>` only if all nodes that read `<x>` run before the node that writes it, in any order that the data permits and
with parallel execution too. The nodes that update the state are therefore made to wait, by OptimizationBarrier, for
those that read it, and for the loss: a step that is rejected before then leaves the state as it was.

Small values wait at no cost: a barrier is put on a scalar that the update reads, such as the learning rate. Only where
there is none, or where the update itself does not work in place, is its result copied.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.errors import Error
from onnx_ops.core.step_format import CONDITION_NUMBERS, CONDITIONS, NEXT
from onnx_ops.core.types import FLOATS, MAX_RANK, TensorType
from onnx_ops.graph.edits import Names
from onnx_ops.graph.functions import called_key, function_key
from onnx_ops.graph.imports import add_import, default_opset, normalized
from onnx_ops.graph.neutral import NEUTRAL
from onnx_ops.graph.slices import values_read
from onnx_ops.graph.types import LARGE, value_types
from onnx_ops.linking.attached import restore
from onnx_ops.loops.in_place import in_place_pairs
from onnx_ops.ops import OPS

BARRIER = OPS["OptimizationBarrier"]
AFTER = BARRIER.signature.inputs[1].dtypes
"""The dtypes of values that a barrier can wait for."""

MAY_SHARE = {
    *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "CastLike", "Dropout", "Expand", "Slice"),
    *("Pad", "Tile", "If", "Loop", "Scan", "Optional", "OptionalGetElement"),
}
"""Operators whose output may have the memory of an input, or that onnxruntime removes where they have no effect."""

OF_ONE = ("Concat", "Sum", "Max", "Min", "Mean")
"""Operators that onnxruntime removes where they have one operand."""

SCALES, PRODUCT = ("Mul", "Div"), "MatMul"
"""Operators that onnxruntime's MatMulScaleFusion makes the factor of a product where an operand is one constant."""

ELEMENTWISE = ("Add", "Sub", "Mul", "Div")
"""Operators whose output may have the memory of an operand of its shape."""


@dataclass(frozen=True)
class InPlaceStep:
    """A step whose state can be updated in place.

    Attributes:
        model: the step, with further nodes, not linked.
        passed: an output, one float32, that is computed before the first update and after everything that the loss
            depends on. If the loss is checked and not finite, or a condition of the step is violated, computing it
            fails.
    """

    model: onnx.ModelProto
    passed: str


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, np.ndarray]]:
    """The constants of a graph that are small or, for large ones, an empty array."""
    for tensor in graph.initializer:
        known = math.prod(tensor.dims) <= LARGE and tensor.data_location != TensorProto.EXTERNAL
        yield tensor.name, numpy_helper.to_array(tensor) if known else np.zeros(0)
    for node in graph.node:
        if node.op_type == "Constant" and not normalized(node.domain):
            attribute = node.attribute[0]
            known = attribute.name == "value"
            yield node.output[0], numpy_helper.to_array(attribute.t) if known else np.zeros(0)


def in_place(model: onnx.ModelProto, loss: str | None, check_finite: str = "") -> InPlaceStep | None:
    """A copy of a step whose outputs `next.<x>` may be bound to the memory of their inputs `<x>`.

    Args:
        model: the step.
        loss: the output for which a run fails before the first update if it is NaN or infinite; None if there is none.
        check_finite: name of a further input, a bool, for whether it does; empty if it always does.

    Returns:
        The rewritten step; None if it cannot be rewritten, as where it reports a parameter as it is.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    restore(copy)
    if default_opset(copy, BARRIER.body_opset) < BARRIER.body_opset:
        return None
    try:
        rewriting = _Rewriting(copy)
        if copied := rewriting.next_values_that_are_inputs():
            _copy_values(copy, copied)
            rewriting = _Rewriting(copy)
        return rewriting.result(loss, check_finite)
    except _CannotRewriteError:
        return None


def _copy_values(model: onnx.ModelProto, values: Collection[str]) -> None:
    """Copy values where they are computed."""
    names = Names.of(model)
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for i, output in enumerate(node.output):
            if output in values:
                node.output[i] = names.new(f"{output}.view")
                nodes.append(helper.make_node(BARRIER.name, [node.output[i]] * 2, [output], domain=DOMAIN))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    add_import(model, DOMAIN, OPSET_VERSION)


class _CannotRewriteError(Error, ValueError):
    """A step that cannot be rewritten.

    A value has a type that a barrier does not take, another output than a next value may be the memory of an input, or
    nodes are not in topological order.
    """


class _Rewriting:
    """One call of `in_place`; `model` is changed."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._nodes = list(model.graph.node)
        self._types = value_types(model)
        self._names = Names.of(model)
        self._functions = {function_key(function) for function in model.functions}
        self._constants = dict(_constants(model.graph))
        self._producer = {name: i for i, node in enumerate(self._nodes) for name in node.output if name}
        self._readers: defaultdict[str, list[int]] = defaultdict(list)
        self._ancestors: list[int] = []
        """For each node the set of nodes that it depends on, as bits."""
        for i, node in enumerate(self._nodes):
            before = 0
            for name in dict.fromkeys(values_read(node)):
                self._readers[name].append(i)
                made = self._producer.get(name)
                if made is not None:
                    if made >= i:
                        raise _CannotRewriteError
                    before |= self._ancestors[made] | 1 << made
            self._ancestors.append(before)
        self._inserted: defaultdict[int, list[NodeProto]] = defaultdict(list)
        """Nodes to insert before that of an index."""
        self._guarded: dict[str, str] = {}
        self._initializers: list[TensorProto] = []

        self._outputs = [value.name for value in model.graph.output]
        self._changed = [name.removeprefix(NEXT) for name in self._outputs if name.startswith(NEXT)]
        self._memory = {name: frozenset(self._shared(name)) for name in self._changed}
        """The values that may have the memory of an input that changes."""
        self._state = frozenset().union(*self._memory.values())

    def next_values_that_are_inputs(self) -> set[str]:
        """The next values that may have the memory of an input, such as `next.a = Identity(b)`."""
        found = {NEXT + name for name in self._changed}.intersection(self._state)
        if any(self.dtype(name) not in FLOATS for name in found):
            raise _CannotRewriteError
        return found

    def result(self, loss: str | None, check_finite: str) -> InPlaceStep:
        graph = self._model.graph
        self._passed = self._names.new("passed")
        self._guard = self._guard_position([name for name in self._outputs if not name.startswith(NEXT)], loss)
        for name in self._changed:
            self._order_update(name)
        self._write_guard(loss, check_finite)
        nodes = []
        for i, node in enumerate(self._nodes):
            nodes.extend(self._inserted[i])
            nodes.append(node)
        nodes.extend(self._inserted[len(self._nodes)])
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(self._initializers)
        graph.output.append(helper.make_tensor_value_info(self._passed, TensorProto.FLOAT, [1]))
        add_import(self._model, DOMAIN, OPSET_VERSION)
        return InPlaceStep(self._model, self._passed)

    def dtype(self, value: str) -> int | None:
        return self._types.get(value, TensorType()).dtype

    # --- the guard --------------------------------------------------------------------------------------------------

    def _guard_position(self, reported: Iterable[str], loss: str | None) -> int:
        """The index before which the guard is inserted: after the reported outputs that depend on no update.

        Updates that the loss depends on, as of buffers that the model has changed before it reads them, do not write to
        the state, and count as none.
        """
        updates = {self._producer[NEXT + name] for name in self._changed if NEXT + name in self._producer}
        checked = None if loss is None else self._producer.get(loss)
        self._early = set() if checked is None else {i for i in updates if self._ancestors[checked] >> i & 1}
        updates -= self._early
        self._awaited = []
        for name in reported:
            made = self._producer.get(name)
            if made is not None and not any(
                made == update or self._ancestors[made] >> update & 1 for update in updates
            ):
                self._awaited.append(name)
        return max((self._producer[name] + 1 for name in self._awaited), default=0)

    def _write_guard(self, loss: str | None, check_finite: str) -> None:
        """Compute `passed` before the guard's position; what is refused ends the run by an invalid index."""
        following, self._inserted[self._guard] = self._inserted[self._guard], []
        one = self._constant("one", np.ones(1, np.float32))
        found = one
        refused = [] if loss is None else [self._not_finite(loss, check_finite)]
        if CONDITIONS in self._awaited:
            found = self._barrier(self._guard, found, CONDITION_NUMBERS, "numbers")  # they are in the error message
            violated = self._insert(self._guard, "Not", [CONDITIONS], "violated")
            index = self._insert(self._guard, "Cast", [violated], "violated_index", to=TensorProto.INT64)
            refused.append(self._insert(self._guard, "ReduceMax", [index], "any_violated"))
        elif CONDITIONS in self._producer:  # they depend on an update
            raise _CannotRewriteError
        if refused:
            flat = self._constant("flat", np.array([-1]))
            rows = [self._insert(self._guard, "Reshape", [index, flat], "refused_row") for index in refused]
            index = self._insert(self._guard, "Max", rows, "refused")
            found = self._insert(self._guard, "Gather", [found, index], "checked")
        for name in self._awaited:
            found = self._barrier(self._guard, found, name, "reported")
        last = self._inserted[self._guard][-1:] if found != one else []
        if last:
            last[0].output[0] = self._passed
        else:
            self._insert(self._guard, "Identity", [one], self._passed, named=self._passed)
        self._inserted[self._guard] += following

    def _not_finite(self, loss: str, check_finite: str) -> str:
        """1 if the loss is NaN or infinite and is checked, else 0, as int64 of its shape."""
        value = loss
        if self.dtype(loss) not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            value = self._insert(self._guard, "Cast", [loss], "loss_float", to=TensorProto.FLOAT)
        nan = self._insert(self._guard, "IsNaN", [value], "loss_is_nan")
        infinite = self._insert(self._guard, "IsInf", [value], "loss_is_inf")
        either = self._insert(self._guard, "Or", [nan, infinite], "loss_is_not_finite")
        if check_finite:
            self._model.graph.input.append(helper.make_tensor_value_info(check_finite, TensorProto.BOOL, []))
            either = self._insert(self._guard, "And", [either, check_finite], "loss_is_refused")
        return self._insert(self._guard, "Cast", [either], "loss_index", to=TensorProto.INT64)

    # --- the updates ------------------------------------------------------------------------------------------------

    def _order_update(self, name: str) -> None:
        """Make the node that computes the next value of an input wait for the readers of the input and the guard."""
        output = NEXT + name
        if any(value in self._outputs and value != output for value in self._memory[name]):
            raise _CannotRewriteError
        update = self._producer.get(output)
        before = 0 if update is None else self._ancestors[update] | 1 << update
        readers = [i for i in self._reading(name) if not before >> i & 1]
        last = [i for i in readers if not any(self._ancestors[other] >> i & 1 for other in readers)]
        awaited = [self._value_of(i) for i in last]
        first = max([self._guard, *(i + 1 for i in last)])
        if update is not None and update not in self._early and self._works_in_place(name, update):
            place = self._scalar_read(update, first, name)
            if place is not None:
                node, index = place
                waiting = self._after_guard(self._nodes[node].input[index])
                for value in awaited:
                    waiting = self._barrier(node, waiting, value, "waiting")
                self._nodes[node].input[index] = self._guarded[waiting] = waiting
                return
        self._copy_at_end(name, awaited)

    def _shared(self, name: str) -> Iterator[str]:
        """A value and those that may have its memory."""
        pending, seen = [name], {name}
        while pending:
            value = pending.pop()
            yield value
            for i in self._readers[value]:
                if self._may_share(self._nodes[i]):
                    for output in self._nodes[i].output:
                        if output and output not in seen:
                            seen.add(output)
                            pending.append(output)

    def _reading(self, name: str) -> Iterator[int]:
        """The nodes that read the memory of a value.

        One whose output may be the same memory counts only if nothing reads that: what reads it runs later.
        """
        for value in self._memory[name]:
            for i in self._readers[value]:
                node = self._nodes[i]
                if not self._may_share(node) or not any(self._readers[output] for output in node.output):
                    yield i

    def _may_share(self, node: NodeProto) -> bool:
        """Whether an output may have the memory of an input, or onnxruntime may let others read the input instead."""
        if called_key(node) in self._functions:
            return True
        if normalized(node.domain):
            return False
        if node.op_type == "Cast":
            known = self.dtype(node.input[0]), self.dtype(node.output[0])
            return known[0] == known[1] or None in known
        if node.op_type in NEUTRAL:
            constants = [self._constants[name] for name in node.input if name in self._constants]
            if any(np.all(constant == NEUTRAL[node.op_type]) for constant in constants):
                return True
            return any(constant.size == 1 for constant in constants) and self._is_factor(node)
        return node.op_type in MAY_SHARE or (node.op_type in OF_ONE and len(node.input) == 1)

    def _is_factor(self, node: NodeProto) -> bool:
        """Whether onnxruntime may make a factor a part of a product of matrices, which then reads its input."""
        readers = [self._nodes[i] for i in self._readers[node.output[0]]]
        return node.op_type in SCALES and any(
            normalized(reader.domain) == "" and (reader.op_type == PRODUCT or self._may_share(reader))
            for reader in readers
        )

    def _works_in_place(self, name: str, update: int) -> bool:
        """Whether a node may write the next value of an input to the memory of the input."""
        node = self._nodes[update]
        read = set(values_read(node)).intersection(self._memory[name])
        if not read:
            return True
        if read != {name}:  # a view, perhaps of another shape
            return False
        if node.domain == DOMAIN:
            op = OPS[node.op_type]
            own = zip(op.input_names, node.input, strict=False)
            output = next(key for key, value in zip(op.output_names, node.output, strict=False) if value == NEXT + name)
            return all((key, output) in in_place_pairs(op) for key, value in own if value == name)
        return not normalized(node.domain) and node.op_type in ELEMENTWISE

    def _scalar_read(self, update: int, first: int, name: str) -> tuple[int, int] | None:
        """A node, and the index of an input of it that is one floating number, on which `update` depends.

        The node's index is at least `first`. The number is no part of the state, unless it is the one to be updated and
        the node is `update`.
        """
        pending = [update]
        seen = {update}
        while pending:
            node = pending.pop(0)
            if node < first:
                continue
            for index, value in enumerate(self._nodes[node].input):
                made = self._producer.get(value, -1)
                own = value == name and node == update
                # onnxruntime may remove a node that reads a constant, and what waits with it.
                free = value not in self._state and value not in self._constants
                if value and (own or free) and self._is_number(value):
                    return node, index
                if made >= first and made not in seen:
                    seen.add(made)
                    pending.append(made)
        return None

    def _is_number(self, value: str) -> bool:
        found = self._types.get(value, TensorType())
        return found.dtype in FLOATS and found.shape is not None and all(size == 1 for size in found.shape)

    def _copy_at_end(self, name: str, awaited: Sequence[str]) -> None:
        """Copy the next value of an input after everything that `awaited` are computed from has run."""
        output, end = NEXT + name, len(self._nodes)
        value = self._names.new(f"{output}.new")
        if output not in self._producer or output in self._state:
            raise _CannotRewriteError
        made = self._producer[output]
        for number in (made, *self._readers[output]):
            node = self._nodes[number]
            for names in (node.input, node.output):
                names[:] = [value if used == output else used for used in names]
            if output in values_read(node):  # in a subgraph
                raise _CannotRewriteError
        dtype = self._types[name].dtype
        self._types[value] = self._types[name]
        if made < self._guard and made not in map(self._producer.get, self._awaited) and dtype in AFTER:
            # Else onnxruntime would compute statistics of the forward pass last, and keep what they are computed from.
            self._awaited.append(value)
            self._producer[value] = made
        if dtype in FLOATS:
            for other in [self._passed, *awaited][:-1]:
                value = self._barrier(end, value, other, "waiting")
            self._barrier(end, value, [self._passed, *awaited][-1], "", named=output)
            return
        zero = self._constant("zero", np.zeros((), np.float32))
        for other in (self._passed, *awaited):
            zero = self._barrier(end, zero, other, "waiting")
        if dtype == TensorProto.BOOL:
            zero = self._insert(end, "Cast", [zero], "waiting", to=TensorProto.BOOL)
            self._insert(end, "Or", [value, zero], "", named=output)
        elif dtype in (TensorProto.INT32, TensorProto.INT64):
            zero = self._insert(end, "Cast", [zero], "waiting", to=dtype)
            self._insert(end, "Add", [value, zero], "", named=output)
        else:
            zero = self._insert(end, "Cast", [zero], "waiting", to=TensorProto.INT64)
            wide = self._insert(end, "Cast", [value], "waiting", to=TensorProto.INT64)
            wide = self._insert(end, "Add", [wide, zero], "waiting")
            self._insert(end, "Cast", [wide], "", named=output, to=dtype)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _value_of(self, node: int) -> str:
        """An output of a node that a barrier can wait for."""
        for name in self._nodes[node].output:
            found = self._types.get(name, TensorType())
            if name and found.dtype in AFTER and (found.shape is None or len(found.shape) <= MAX_RANK):
                return name
        raise _CannotRewriteError

    def _after_guard(self, value: str) -> str:
        """A number that is available after the guard."""
        if value not in self._guarded:
            made = self._producer.get(value, -1) + 1
            guarded = self._barrier(max(made, self._guard), value, self._passed, "guarded")
            self._guarded[value] = self._guarded[guarded] = guarded
        return self._guarded[value]

    def _barrier(self, place: int, value: str, after: str, hint: str, named: str = "") -> str:
        output = self._insert(place, BARRIER.name, [value, after], hint, named=named, domain=DOMAIN)
        self._types[output] = self._types.get(value, TensorType())
        return output

    def _insert(
        self,
        place: int,
        op_type: str,
        inputs: Sequence[str],
        hint: str,
        *,
        named: str = "",
        domain: str = "",
        to: int | None = None,
    ) -> str:
        output = named or self._names.new(hint)
        node = helper.make_node(op_type, inputs, [output], domain=domain)
        if to is not None:
            node.attribute.append(helper.make_attribute("to", to))
        self._inserted[place].append(node)
        return output

    def _constant(self, hint: str, value: np.ndarray) -> str:
        name = self._names.new(hint)
        self._initializers.append(numpy_helper.from_array(value, name))
        return name
