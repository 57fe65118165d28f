"""Cuts a training step into local parts, with an exchange after each, and a part that is the same on all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from onnx_ops.core.step_format import CONDITION_NUMBERS, GRADIENT, NEXT, InputRole
from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.graph.slices import following, part, values_read
from onnx_ops.graph.types import declared_types, value_info, value_types
from onnx_ops.training.arrays import tensor_text
from onnx_ops.training.errors import StepError
from onnx_ops.training.step import Step
from onnx_ops.training.workers.exchange import Combined, Exchanged
from onnx_ops.training.workers.synchronized_batch_norm import synchronized


@dataclass(frozen=True)
class LocalPart:
    """A part that each worker computes with its own samples.

    Attributes:
        model: from the state, the batch, values of earlier parts and exchanged values to what later parts need.
        passed: the outputs that later parts read.
        exchanged: the values that are exchanged after this part; outputs of it or of an earlier one.
    """

    model: onnx.ModelProto
    passed: frozenset[str]
    exchanged: tuple[Exchanged, ...]


@dataclass(frozen=True)
class Parts:
    """A step in parts.

    Attributes:
        local: the parts with all that depends on the batch. After the last one gradients, next values of buffers and
            reported floating scalars are averaged.
        shared: from the state and the exchanged values to all other outputs.
    """

    local: tuple[LocalPart, ...]
    shared: onnx.ModelProto


def partition(model: onnx.ModelProto, *, synchronize_batch_norm: bool = False) -> Parts:
    """Cut a step at the values named `grad.<parameter>`, and optionally where batch norm needs all workers' samples.

    Raises:
        StepError: what is no step; a step without such values; a next state that depends on the batch otherwise than
            through them, except buffers of floating dtypes; batch norm that cannot be synchronized.
    """
    step = Step.of(model)
    state, batch = step.state(model), step.batch(model)
    computed = {name for node in model.graph.node for name in node.output}
    parameters = step.names(InputRole.PARAMETER)
    gradients = {GRADIENT + name: state[name] for name in parameters if GRADIENT + name in computed}
    if not gradients:
        raise StepError(
            f"the step cannot be cut at its gradients: no value in its graph is named '{GRADIENT}<parameter>', expected"
            " the gradients under these names"
        )
    inner: list[Exchanged] = []
    if synchronize_batch_norm:
        model, inner = synchronized(model, set(batch), gradients)
    graph = model.graph
    local = following(graph, set(batch), gradients) - gradients.keys()
    outputs = declared_types(graph.output)
    averaged = {}
    for name, tensor in outputs.items():
        if name in local and name.startswith(NEXT):
            _check_averaged(name, step, tensor)
        is_number = _is_floating_scalar(tensor) and name != CONDITION_NUMBERS
        if name in local and (name.startswith(NEXT) or is_number):
            averaged[name] = state.get(name.removeprefix(NEXT), tensor)
    given = [*graph.input, *(_info(name, tensor) for name, tensor in gradients.items())]
    inputs = [value for value in given if value.name not in batch]
    shared = part(model, inputs, [value for value in graph.output if value.name not in local])
    taken = {value.name for value in shared.graph.input} & gradients.keys()
    averaged = {name: gradients[name] for name in gradients if name in taken} | averaged
    last = [Exchanged(name, name, tensor, Combined.MEAN) for name, tensor in averaged.items()]
    others = [name for name in outputs if name in local and name not in averaged]
    return Parts(_local_parts(model, inner, last, others), shared)


def _local_parts(
    model: onnx.ModelProto, inner: Sequence[Exchanged], last: Sequence[Exchanged], others: Sequence[str]
) -> tuple[LocalPart, ...]:
    """The local parts; each computes only what the exchange after it needs.

    Args:
        model: the step, with inputs for the combined values of `inner`.
        inner: the values exchanged before the last part, each as early as possible.
        last: the values exchanged after the last part.
        others: the other outputs of local parts.
    """
    exchanges = [*_in_order(model.graph, inner), tuple(last)]
    wanted = [[value.own for value in values] for values in exchanges]
    wanted[-1] += others

    maker: dict[str, int] = {}  # the part that computes a value
    read: list[list[str]] = []
    outputs: list[list[str]] = [[] for _ in exchanges]
    passed: list[set[str]] = [set() for _ in exchanges]
    for number, names in enumerate(wanted):
        for name in names:
            outputs[maker.get(name, number)].append(name)
        earlier = [onnx.ValueInfoProto(name=name) for name in maker]
        ends = [onnx.ValueInfoProto(name=name) for name in outputs[number]]
        piece = part(model, [*model.graph.input, *earlier], ends).graph
        read.append([value.name for value in piece.input if value.name in maker])
        for name in read[-1]:
            passed[maker[name]].add(name)
        # Constants are repeated in each part: sessions fold them, and cannot fold inputs.
        maker |= {name: number for node in piece.node if node.op_type != "Constant" for name in node.output if name}

    types = value_types(model) if inner else {}  # a single part has no outputs but those of the step and `last`
    types |= declared_types(model.graph.output)
    types |= {value.own: value.tensor for value in last}
    found = []
    for number, values in enumerate(exchanges):
        wished = dict.fromkeys([*outputs[number], *sorted(passed[number])])
        inputs = [*model.graph.input, *(_info(name, types.get(name)) for name in read[number])]
        piece = part(model, inputs, [_info(name, types.get(name)) for name in wished])
        found.append(LocalPart(piece, frozenset(passed[number]), values))
    return tuple(found)


def _in_order(graph: onnx.GraphProto, values: Sequence[Exchanged]) -> list[tuple[Exchanged, ...]]:
    """The values in as few exchanges as possible: each directly after those that it depends on."""
    of_all = {value.of_all: value.own for value in values}
    before: dict[str, int] = {}  # the number of exchanges that a value depends on, at least

    def needed(name: str) -> int:
        return before.get(of_all[name], 0) + 1 if name in of_all else before.get(name, 0)

    for node in graph.node:
        count = max(map(needed, values_read(node)), default=0)
        before |= {name: count for name in node.output}
    groups: dict[int, list[Exchanged]] = {}
    for value in values:
        groups.setdefault(before.get(value.own, 0), []).append(value)
    return [tuple(groups[count]) for count in sorted(groups)]


def _info(name: str, tensor: TensorType | None) -> onnx.ValueInfoProto:
    if tensor is None or tensor.dtype is None:
        raise StepError(f"the step cannot be cut at '{name}', as its dtype is unknown")
    return value_info(name, tensor)


def _is_floating_scalar(tensor: TensorType) -> bool:
    """Whether a value is one floating number, of any rank."""
    return tensor.dtype in FLOATS and tensor.shape is not None and all(size == 1 for size in tensor.shape)


def _check_averaged(name: str, step: Step, tensor: TensorType) -> None:
    """Raise StepError for a next value that depends on the batch and cannot be averaged."""
    before = name.removeprefix(NEXT)
    role = step.roles[before]
    if role is not InputRole.BUFFER:
        raise StepError(
            f"the step cannot be cut at its gradients: '{name}' ({role}) depends on the batch otherwise than by values"
            f" named '{GRADIENT}<parameter>', which are averaged"
        )
    if tensor.dtype not in FLOATS:
        raise StepError(
            f"the step cannot be cut at its gradients: '{name}' depends on the batch and is {tensor_text(tensor)},"
            " expected a floating dtype, of which there is an average"
        )
