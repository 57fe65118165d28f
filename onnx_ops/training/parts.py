"""A training step cut into parts: what each worker does by itself, with exchanges between, and what all do alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from onnx_ops.core.step_format import GRADIENT, NEXT, InputRole
from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.graph.slices import following, part, values_read
from onnx_ops.graph.types import value_types
from onnx_ops.training.exchanges import Combined, Exchanged
from onnx_ops.training.step import Step, StepError, tensor_text
from onnx_ops.training.synchronizing import synchronized


@dataclass(frozen=True)
class OwnPart:
    """What a worker does by itself before an exchange.

    Attributes:
        model: from the state, the batch, what earlier parts have made and what has been exchanged, to what follows.
        passed: the outputs that later parts read.
        exchanged: the values that are exchanged then; outputs of this part, or of an earlier one.
    """

    model: onnx.ModelProto
    passed: frozenset[str]
    exchanged: tuple[Exchanged, ...]


@dataclass(frozen=True)
class Parts:
    """A step in parts.

    Attributes:
        own: what each worker does by itself; together they make all that depends on the batch. Behind the last one
            gradients, next values of buffers and reported floating scalars are averaged.
        shared: from the state and what has been exchanged to all other outputs.
    """

    own: tuple[OwnPart, ...]
    shared: onnx.ModelProto


def parts(model: onnx.ModelProto, *, synchronize_batch_norm: bool = False) -> Parts:
    """Cut a step at the values named `grad.<parameter>`, and, if wanted, where batch norm needs all workers' samples.

    Raises:
        StepError: what is no step; one that has no such value, or whose next state depends on the batch otherwise than
            by them, but for buffers of floating dtypes; batch norm that cannot be synchronized.
    """
    step = Step.of(model)
    state, batch = step.state(model), step.batch(model)
    made = {name for node in model.graph.node for name in node.output}
    gradients = {GRADIENT + name: state[name] for name in step.names(InputRole.PARAMETER) if GRADIENT + name in made}
    if not gradients:
        raise StepError(
            f"the step cannot be shared by workers: no value in its graph is named '{GRADIENT}<parameter>', expected"
            " the gradients under these names"
        )
    amid: list[Exchanged] = []
    if synchronize_batch_norm:
        model, amid = synchronized(model, set(batch), gradients)
    graph = model.graph
    local = following(graph, set(batch), gradients) - gradients.keys()
    outputs = {value.name: TensorType.of_proto(value.type) for value in graph.output}
    averaged = {}
    for name, tensor in outputs.items():
        if name in local and name.startswith(NEXT):
            _check_averaged(name, step, tensor)
        if name in local and (name.startswith(NEXT) or _is_one_number(tensor)):
            averaged[name] = state.get(name.removeprefix(NEXT), tensor)
    given = [*graph.input, *(_info(name, tensor) for name, tensor in gradients.items())]
    inputs = [value for value in given if value.name not in batch]
    shared = part(model, inputs, [value for value in graph.output if value.name not in local])
    taken = {value.name for value in shared.graph.input} & gradients.keys()
    averaged = {name: gradients[name] for name in gradients if name in taken} | averaged
    last = [Exchanged(name, name, tensor, Combined.MEAN) for name, tensor in averaged.items()]
    others = [name for name in outputs if name in local and name not in averaged]
    return Parts(_chain(model, amid, last, others), shared)


def _chain(
    model: onnx.ModelProto, amid: Sequence[Exchanged], last: Sequence[Exchanged], others: Sequence[str]
) -> tuple[OwnPart, ...]:
    """The parts that a worker makes by itself; each makes no more than the exchange behind it needs.

    Args:
        model: the step, with inputs for what comes of exchanges.
        amid: what is exchanged before the last part ends; each as soon as it can be.
        last: what is exchanged then.
        others: the other outputs of these parts.
    """
    exchanges = [*_in_turn(model.graph, amid), tuple(last)]
    wanted = [[value.own for value in values] for values in exchanges]
    wanted[-1] += others

    maker: dict[str, int] = {}  # the part that makes a value
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
        # Constants are made anew in each part: sessions do more with them than with what they are given.
        maker |= {name: number for node in piece.node if node.op_type != "Constant" for name in node.output if name}

    types = value_types(model) if amid else {}  # without what is exchanged amid, outputs are all that parts make
    types |= {value.name: TensorType.of_proto(value.type) for value in model.graph.output}
    types |= {value.own: value.tensor for value in last}
    made = []
    for number, values in enumerate(exchanges):
        wished = dict.fromkeys([*outputs[number], *sorted(passed[number])])
        inputs = [*model.graph.input, *(_info(name, types.get(name)) for name in read[number])]
        piece = part(model, inputs, [_info(name, types.get(name)) for name in wished])
        made.append(OwnPart(piece, frozenset(passed[number]), values))
    return tuple(made)


def _in_turn(graph: onnx.GraphProto, values: Sequence[Exchanged]) -> list[tuple[Exchanged, ...]]:
    """What is exchanged, in as few exchanges as can be: each value as soon as those that it depends on are there."""
    of_all = {value.of_all: value.own for value in values}
    before: dict[str, int] = {}  # how many exchanges a value needs

    def needed(name: str) -> int:
        return before.get(of_all[name], 0) + 1 if name in of_all else before.get(name, 0)

    for node in graph.node:
        count = max(map(needed, values_read(node)), default=0)
        before |= {name: count for name in node.output}
    turns: dict[int, list[Exchanged]] = {}
    for value in values:
        turns.setdefault(before.get(value.own, 0), []).append(value)
    return [tuple(turns[turn]) for turn in sorted(turns)]


def _info(name: str, tensor: TensorType | None) -> onnx.ValueInfoProto:
    if tensor is None or tensor.dtype is None:
        raise StepError(f"the step cannot be cut at '{name}', for its dtype is not known")
    return helper.make_tensor_value_info(name, tensor.dtype, tensor.shape)


def _is_one_number(tensor: TensorType) -> bool:
    """Whether a value is one floating number, as the loss is; with or without axes."""
    return tensor.dtype in FLOATS and tensor.shape is not None and all(size == 1 for size in tensor.shape)


def _check_averaged(name: str, step: Step, tensor: TensorType) -> None:
    """Refuse next values that depend on the batch and cannot be averaged."""
    before = name.removeprefix(NEXT)
    role = step.roles[before]
    if role is not InputRole.BUFFER:
        raise StepError(
            f"the step cannot be shared by workers: '{name}' ({role}) depends on the batch otherwise than by values"
            f" named '{GRADIENT}<parameter>', which workers average"
        )
    if tensor.dtype not in FLOATS:
        raise StepError(
            f"the step cannot be shared by workers: '{name}' depends on the batch and is {tensor_text(tensor)},"
            " expected a floating dtype, of which there is an average"
        )
