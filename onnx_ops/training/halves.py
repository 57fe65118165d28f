"""A training step cut where its gradients are: what each worker does by itself, and what all do alike."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import helper

from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.graph.slices import following, part
from onnx_ops.training.step import NEXT, InputRole, Step, StepError, tensor_text

GRADIENT = "grad."
"""What the name of a value begins with that is the gradient by a parameter."""


@dataclass(frozen=True)
class Halves:
    """A step in two.

    Attributes:
        own: from the state and a batch to what depends on the batch: gradients, next buffers, reported outputs.
        shared: from the state and gradients to all other outputs.
        averaged: the outputs of `own` that the workers average: those that `shared` takes, next values of buffers, and
            reported floating scalars.
    """

    own: onnx.ModelProto
    shared: onnx.ModelProto
    averaged: dict[str, TensorType]


def halves(model: onnx.ModelProto) -> Halves:
    """Cut a step at the values named `grad.<parameter>`.

    Raises:
        StepError: what is no step; one that has no such value, or whose next state depends on the batch otherwise than
            by them, but for buffers of floating dtypes.
    """
    step, graph = Step.of(model), model.graph
    state, batch = step.state(model), step.batch(model)
    made = {name for node in graph.node for name in node.output}
    gradients = {GRADIENT + name: state[name] for name in step.names(InputRole.PARAMETER) if GRADIENT + name in made}
    if not gradients:
        raise StepError(
            f"the step cannot be shared by workers: no value in its graph is named '{GRADIENT}<parameter>', expected"
            " the gradients under these names"
        )
    local = following(graph, set(batch), gradients) - gradients.keys()
    outputs = {value.name: TensorType.of_proto(value.type) for value in graph.output}
    averaged = {}
    for name, tensor in outputs.items():
        if name in local and name.startswith(NEXT):
            _check_averaged(name, step, tensor)
        if name in local and (name.startswith(NEXT) or (tensor.dtype in FLOATS and tensor.shape == ())):
            averaged[name] = state.get(name.removeprefix(NEXT), tensor)
    given = [helper.make_tensor_value_info(name, t.dtype or 0, t.shape) for name, t in gradients.items()]
    inputs = [value for value in graph.input if value.name in state]
    shared = part(model, [*inputs, *given], [value for value in graph.output if value.name not in local])
    taken = {value.name for value in shared.graph.input} & gradients.keys()
    averaged = {name: gradients[name] for name in gradients if name in taken} | averaged
    own = part(
        model,
        list(graph.input),
        [
            *(value for value in given if value.name in taken),
            *(value for value in graph.output if value.name in local),
        ],
    )
    return Halves(own, shared, averaged)


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
