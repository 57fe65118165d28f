"""The inference graph of a training step: the trained network, which the step's model carries as a function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_ops.core.step_format import CARRIED_DOMAIN, INFERENCE, InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.files import ModelFileError, write_model
from onnx_ops.graph.functions import Key, add_function_imports, called_key, function_key, functions_needed
from onnx_ops.graph.imports import add_import, default_opset
from onnx_ops.graph.light import placeholder
from onnx_ops.graph.reading import check, is_protobuf, load_model
from onnx_ops.graph.types import LARGE, declared_types, value_info, without_data
from onnx_ops.graph.walk import function_text, placed_nodes
from onnx_ops.linking.attached import restore
from onnx_ops.linking.link import link
from onnx_ops.training.arrays import check_state, tensor_text
from onnx_ops.training.errors import StepError
from onnx_ops.training.step import Step
from onnx_ops.training.weights import fill, save_model

INFERENCE_FUNCTION: Key = (CARRIED_DOMAIN, INFERENCE, "")


def inference_function(model: onnx.ModelProto) -> onnx.FunctionProto | None:
    """The function with the inference graph of a step; None if it has none."""
    return next((f for f in model.functions if function_key(f) == INFERENCE_FUNCTION), None)


def with_inference(model: onnx.ModelProto, inference: onnx.ModelProto) -> onnx.ModelProto:
    """Add an inference graph to a step.

    Args:
        model: a step that has none.
        inference: a model whose inputs and outputs have types. Inputs and initializers with the name of a parameter or
            buffer of the step become that parameter or buffer; other initializers become constants.

    Returns:
        A copy of the step, not linked.

    Raises:
        LinkError: no model.
        StepError: a step that has an inference graph already; parameters or buffers of other types.
    """
    whole = load_model(model)
    restore(whole)
    if inference_function(whole) is not None:
        raise StepError("the step has an inference graph already")
    step = Step.of(whole)
    brought = without_data(inference, lambda tensor: tensor.name in _parameters_and_buffers(step))
    check(brought)
    restore(brought)
    _separate_functions(brought, whole)
    parameters = {n: t for n, t in step.state(whole).items() if n in _parameters_and_buffers(step)}
    graph = brought.graph
    if graph.sparse_initializer:
        raise StepError("the inference graph has sparse initializers, expected dense ones")
    types = {tensor.name: TensorType(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    types |= declared_types(graph.input)
    for name in types.keys() & parameters.keys():
        if types[name] != parameters[name]:
            given, wanted = tensor_text(types[name]), tensor_text(parameters[name])
            raise StepError(f"'{name}' is {given} in the inference graph, expected that of the step, {wanted}")
    taken = [name for name in parameters if name in types]
    own = [value for value in graph.input if value.name not in parameters]
    for value in (*own, *graph.output):
        _check_typed(value)
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=_nameless(tensor))
        for tensor in graph.initializer
        if tensor.name not in parameters and tensor.name not in {value.name for value in own}
    ]
    function = helper.make_function(
        CARRIED_DOMAIN,
        INFERENCE,
        [*taken, *(value.name for value in own)],
        [value.name for value in graph.output],
        [*constants, *graph.node],
        list(brought.opset_import),
    )
    add_import(function, "", default_opset(whole, 1))
    described = [value_info(n, parameters[n]) for n in taken]
    function.value_info.extend([*described, *own, *graph.output])
    whole.functions.extend(brought.functions)
    whole.functions.append(function)
    add_function_imports(whole)
    add_import(whole, CARRIED_DOMAIN, 1)
    return whole


def _parameters_and_buffers(step: Step) -> set[str]:
    """The inputs of a step that an inference graph may have: parameters and buffers."""
    return set(step.names(InputRole.PARAMETER, InputRole.BUFFER))


def _check_typed(value: onnx.ValueInfoProto) -> None:
    if TensorType.of_proto(value.type).dtype is None:
        raise StepError(f"'{value.name}' of the inference graph has no type")


def _nameless(tensor: TensorProto) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.ClearField("name")
    return copy


def _separate_functions(brought: onnx.ModelProto, whole: onnx.ModelProto) -> None:
    """Drop functions of `brought` that are also in `whole`; if any differ, rename all of `brought` with a prefix."""
    own = {function_key(f): f for f in whole.functions}
    if all(own.get(function_key(f), f) == f for f in brought.functions):
        kept = [f for f in brought.functions if function_key(f) not in own]
        del brought.functions[:]
        brought.functions.extend(kept)
        return
    called = {function_key(f) for f in brought.functions}
    names = {name for _, name, _ in (*own, *called)}
    prefix = "inference_"
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
    function = inference_function(model)
    if function is None:
        raise StepError(
            f"the step has no inference graph: there is no function {function_text(*INFERENCE_FUNCTION)} in its model;"
            " capture it with inference=, a function of the model"
        )
    step = Step.of(model)
    inferred = _parameters_and_buffers(step)
    taken = [name for name in function.input if name in inferred]
    types = step.state(model)
    check_state({name: types[name] for name in taken}, {name: state[name] for name in taken if name in state})
    contents = {name: state[name] for name in taken if state[name].size > LARGE}
    infos = {info.name: info for info in function.value_info}
    for name in (*function.input, *function.output):
        _check_typed(infos.get(name, onnx.ValueInfoProto(name=name)))
    graph = helper.make_graph(
        list(function.node),
        model.graph.name or INFERENCE,
        [infos[name] for name in function.input if name not in inferred],
        [infos[name] for name in function.output],
        [
            placeholder(name, state[name]) if name in contents else numpy_helper.from_array(state[name], name)
            for name in taken
        ],
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
    return link(whole), contents
