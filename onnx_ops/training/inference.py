"""Graphs that the model of a step carries as functions: the trained network, and the loss in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_ops.core.step_format import CARRIED_DOMAIN, EVALUATION, INFERENCE, InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.files import ModelFileError, write_model
from onnx_ops.graph.functions import Key, add_function_imports, called_key, function_key, functions_needed
from onnx_ops.graph.imports import add_import, default_opset
from onnx_ops.graph.light import placeholder
from onnx_ops.graph.neutral import protect_constants
from onnx_ops.graph.reading import check, is_protobuf, load_model
from onnx_ops.graph.types import LARGE, declared_types, value_info, without_data
from onnx_ops.graph.walk import function_text, placed_nodes
from onnx_ops.linking.attached import restore
from onnx_ops.linking.link import link
from onnx_ops.training.arrays import check_state, tensor_text
from onnx_ops.training.errors import StepError
from onnx_ops.training.step import Step
from onnx_ops.training.weights import fill, save_model

STATE_OF: Mapping[str, tuple[InputRole, ...]] = {
    INFERENCE: (InputRole.PARAMETER, InputRole.BUFFER),
    EVALUATION: (InputRole.PARAMETER, InputRole.BUFFER, InputRole.SEED),
}
"""The carried graphs, each with the roles of the inputs of the step that it may have."""


def carried_function(model: onnx.ModelProto, name: str) -> onnx.FunctionProto | None:
    """The function with a graph that a step carries; None if it has none of that name."""
    return next((f for f in model.functions if function_key(f) == _key(name)), None)


def _key(name: str) -> Key:
    return CARRIED_DOMAIN, name, ""


def with_carried(model: onnx.ModelProto, name: str, given: onnx.ModelProto) -> onnx.ModelProto:
    """Add a graph to a step, which carries it as a function.

    Args:
        model: a step that has none of that name.
        name: INFERENCE or EVALUATION.
        given: a model whose inputs and outputs have types. Inputs and initializers with the name of a parameter or
            buffer of the step, in EVALUATION also of its seed, become that input; other initializers become constants.

    Returns:
        A copy of the step, not linked.

    Raises:
        LinkError: no model.
        StepError: a step that has such a graph already; parameters or buffers of other types.
    """
    whole = load_model(model)
    restore(whole)
    if carried_function(whole, name) is not None:
        raise StepError(f"the step has an {name} graph already")
    step = Step.of(whole)
    inputs = set(step.names(*STATE_OF[name]))
    brought = without_data(given, lambda tensor: tensor.name in inputs)
    check(brought)
    restore(brought)
    _separate_functions(brought, whole, f"{name}_")
    parameters = {n: t for n, t in step.state(whole).items() if n in inputs}
    graph = brought.graph
    if graph.sparse_initializer:
        raise StepError(f"the {name} graph has sparse initializers, expected dense ones")
    types = {tensor.name: TensorType(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    types |= declared_types(graph.input)
    for own in types.keys() & parameters.keys():
        if types[own] != parameters[own]:
            came, wanted = tensor_text(types[own]), tensor_text(parameters[own])
            raise StepError(f"'{own}' is {came} in the {name} graph, expected that of the step, {wanted}")
    taken = [own for own in parameters if own in types]
    batch = [value for value in graph.input if value.name not in parameters]
    for value in (*batch, *graph.output):
        _check_typed(value, name)
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=_nameless(tensor))
        for tensor in graph.initializer
        if tensor.name not in parameters and tensor.name not in {value.name for value in batch}
    ]
    function = helper.make_function(
        CARRIED_DOMAIN,
        name,
        [*taken, *(value.name for value in batch)],
        [value.name for value in graph.output],
        [*constants, *graph.node],
        list(brought.opset_import),
    )
    add_import(function, "", default_opset(whole, 1))
    described = [value_info(n, parameters[n]) for n in taken]
    function.value_info.extend([*described, *batch, *graph.output])
    whole.functions.extend(brought.functions)
    whole.functions.append(function)
    add_function_imports(whole)
    add_import(whole, CARRIED_DOMAIN, 1)
    return whole


def _check_typed(value: onnx.ValueInfoProto, name: str) -> None:
    if TensorType.of_proto(value.type).dtype is None:
        raise StepError(f"'{value.name}' of the {name} graph has no type")


def _nameless(tensor: TensorProto) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.ClearField("name")
    return copy


def _separate_functions(brought: onnx.ModelProto, whole: onnx.ModelProto, prefix: str) -> None:
    """Drop functions of `brought` that are also in `whole`; if any differ, rename all of `brought` with the prefix."""
    own = {function_key(f): f for f in whole.functions}
    if all(own.get(function_key(f), f) == f for f in brought.functions):
        kept = [f for f in brought.functions if function_key(f) not in own]
        del brought.functions[:]
        brought.functions.extend(kept)
        return
    called = {function_key(f) for f in brought.functions}
    names = {name for _, name, _ in (*own, *called)}
    while any(prefix + name in names for _, name, _ in called):
        prefix += "_"
    for _, node in placed_nodes(brought):
        if called_key(node) in called:
            node.op_type = prefix + node.op_type
    for function in brought.functions:
        function.name = prefix + function.name


def inference_model(model: onnx.ModelProto, state: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The inference graph of a step as a model of its own.

    Args:
        model: the step.
        state: at least the parameters and buffers that are inputs of the inference graph, by name.

    Returns:
        A linked model, whose initializers are those parameters and buffers.

    Raises:
        StepError: a step without an inference graph; a state that does not fit it.
        OpError, LinkError: as `link`.
    """
    whole, contents = _light_inference_model(model, state)
    fill(whole, contents)
    return whole


def write_inference_model(model: onnx.ModelProto, state: Mapping[str, np.ndarray], path: Path) -> None:
    """Write the model of `inference_model`, without a copy of the state.

    Above 2 GiB the large parameters and buffers are external data, in a file with ".data" appended to its name.

    Args:
        model, state: as for `inference_model`.
        path: a new file or one to replace; its extension determines the format.

    Raises:
        ModelFileError: a file that cannot be written; a format that cannot represent the model.
        As `inference_model`.
    """
    if not is_protobuf(path):
        write_model(inference_model(model, state), path, path)
        return
    whole, contents = _light_inference_model(model, state)
    try:
        save_model(whole, contents, path, f"{path.name}.data", external=False)
    except OSError as error:
        raise ModelFileError(f"cannot write {path}: {error.strerror}") from error


def _light_inference_model(
    model: onnx.ModelProto, state: Mapping[str, np.ndarray]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """As `inference_model`, with placeholders for the large initializers; and their contents, by name.

    Small ones may be shapes, which `link` reads.
    """
    function = _carried(model, INFERENCE)
    step = Step.of(model)
    inferred = set(step.names(*STATE_OF[INFERENCE]))
    taken = [name for name in function.input if name in inferred]
    types = step.state(model)
    check_state({name: types[name] for name in taken}, {name: state[name] for name in taken if name in state})
    contents = {name: state[name] for name in taken if state[name].size > LARGE}
    initializers = [
        placeholder(name, state[name]) if name in contents else numpy_helper.from_array(state[name], name)
        for name in taken
    ]
    return _carried_model(model, function, initializers), contents


def carried_model(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A graph that a step carries, as a model whose inputs are the state that it reads, then the batch.

    Raises:
        StepError: a step without that graph.
        OpError, LinkError: as `link`.
    """
    return _carried_model(model, _carried(model, name), [])


def carried_types(model: onnx.ModelProto, name: str) -> tuple[dict[str, TensorType], dict[str, TensorType]]:
    """The types of the inputs, without the state, and of the outputs of a graph that a step carries, by name.

    Raises:
        StepError: a step without that graph.
    """
    function = _carried(model, name)
    types = declared_types(function.value_info)
    state = Step.of(model).roles
    inputs = {own: types[own] for own in function.input if own not in state}
    return inputs, {own: types[own] for own in function.output}


def _carried(model: onnx.ModelProto, name: str) -> onnx.FunctionProto:
    function = carried_function(model, name)
    if function is None:
        how = "inference=, a function of the model" if name == INFERENCE else "evaluation=True"
        raise StepError(
            f"the step has no {name} graph: there is no function {function_text(*_key(name))} in its model; capture it"
            f" with {how}"
        )
    return function


def _carried_model(
    model: onnx.ModelProto, function: onnx.FunctionProto, initializers: Sequence[TensorProto]
) -> onnx.ModelProto:
    """The graph of a function as a model, linked, in which initializers take the place of inputs."""
    infos = {info.name: info for info in function.value_info}
    for name in (*function.input, *function.output):
        _check_typed(infos.get(name, onnx.ValueInfoProto(name=name)), function.name)
    given = {tensor.name for tensor in initializers}
    graph = helper.make_graph(
        list(function.node),
        model.graph.name or function.name,
        [infos[name] for name in function.input if name not in given],
        [infos[name] for name in function.output],
        list(initializers),
        function.doc_string or None,
        [info for info in function.value_info if info.name not in (*function.input, *function.output)],
    )
    whole = onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=function.opset_import,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        graph=graph,
    )
    whole.functions.extend(functions_needed(graph, model.functions))
    add_function_imports(whole)
    protect_constants(whole)
    return link(whole)
