"""What the model of a training step says of itself, and the inference graph that it carries.

A training step is a model whose one run makes one step of training. Its inputs are the state (parameters, buffers,
optimizer state, a seed, settings such as `learning_rate`) and the batch; what is state, and in which role, stands in
its metadata. An initializer of the same name is the state's start. An output `next.<x>` is the next value of input
`<x>`; all others are reported. The graph of the trained network, for inference, may be in the model as a function that
nothing calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_ops.core.errors import Error
from onnx_ops.core.step_format import (
    CARRIED_DOMAIN,
    FORMAT,
    INFERENCE,
    NEXT,
    STEP_METADATA,
    UNVERSIONED,
    InputRole,
    check_format,
)
from onnx_ops.core.types import TensorType, shape_text
from onnx_ops.graph.functions import Key, called_key, function_key, functions_needed, import_what_functions_do
from onnx_ops.graph.imports import add_import, default_opset
from onnx_ops.graph.reading import load_model
from onnx_ops.graph.walk import function_text, placed_nodes
from onnx_ops.linking.attached import restore
from onnx_ops.linking.link import link
from onnx_ops.training.ranges import IndexRange

INFERENCE_FUNCTION: Key = (CARRIED_DOMAIN, INFERENCE, "")
"""The function that is the inference graph."""


INTEGERS = (
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
)


class StepError(Error, ValueError):
    """A model that is no training step, or what does not fit one: state, batch, checkpoint or inference graph."""


class Bounds(NamedTuple):
    """The sizes that a dimension may have."""

    min: int = 0
    max: int | None = None

    def hold(self, size: int) -> bool:
        """Whether a dimension may have a size."""
        return self.min <= size and (self.max is None or size <= self.max)

    def __str__(self) -> str:
        return f">= {self.min}" if self.max is None else f"from {self.min} to {self.max}"


@dataclass(frozen=True)
class Step:
    """What a step's inputs are.

    Attributes:
        roles: those of the state, by name of the input and in the order of the inputs; all other inputs are the batch.
        tied: other names of parameters and buffers, each with the name of the input that they denote.
        bounds: the sizes that named dimensions of the batch may have; dimensions without an entry may have any.
        ranges: the values that indices among the inputs of the batch may have.
    """

    roles: Mapping[str, InputRole]
    tied: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    ranges: tuple[IndexRange, ...] = ()

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Step:
        """What the metadata of a model say; StepError where they say nothing, or what does not fit the model."""
        text = next((entry.value for entry in model.metadata_props if entry.key == STEP_METADATA), None)
        if text is None:
            raise StepError(f"the model is no training step: its metadata have no entry '{STEP_METADATA}'")
        try:
            step = _parsed(text)
        except (ValueError, RecursionError) as error:  # JSON's errors, and brackets nested too deep
            raise StepError(f"the entry '{STEP_METADATA}' of the model's metadata cannot be read: {error}") from error
        step._check(model)
        return step

    def write_into(self, model: onnx.ModelProto) -> None:
        """Let the metadata of a model say this; StepError where it does not fit the model."""
        self._check(model)
        entry = next((e for e in model.metadata_props if e.key == STEP_METADATA), None) or model.metadata_props.add()
        record: dict[str, Any] = {"format": str(FORMAT), "roles": dict(self.roles), "tied": dict(self.tied)}
        if self.bounds:
            record["bounds"] = {name: bounds._asdict() for name, bounds in self.bounds.items()}
        if self.ranges:
            record["ranges"] = [found.entry() for found in self.ranges]
        entry.key, entry.value = STEP_METADATA, json.dumps(record)

    def names(self, *roles: InputRole) -> list[str]:
        """The inputs that have one of these roles."""
        return [name for name, role in self.roles.items() if role in roles]

    def batch(self, model: onnx.ModelProto) -> dict[str, TensorType]:
        """The inputs of the batch, as the model declares them."""
        return {name: tensor for name, tensor in _inputs(model).items() if name not in self.roles}

    def state(self, model: onnx.ModelProto) -> dict[str, TensorType]:
        """The inputs of the state, as the model declares them."""
        inputs = _inputs(model)
        return {name: inputs[name] for name in self.roles}

    def _check(self, model: onnx.ModelProto) -> None:
        inputs, outputs = _inputs(model), _types(model.graph.output)
        for kind, values in (("input", inputs), ("output", outputs)):
            for name, tensor in values.items():
                if tensor.dtype is None:
                    raise StepError(f"{kind} '{name}' is no tensor of a known dtype")
        for name, role in self.roles.items():
            if name not in inputs:
                raise StepError(f"'{name}' has the role '{role}', but the step has no input of that name")
            _check_role(name, role, inputs[name])
        for name, tensor in outputs.items():
            if name.startswith(NEXT):
                before = name.removeprefix(NEXT)
                if before not in self.roles:
                    raise StepError(f"output '{name}' is the next value of '{before}', which is no state of the step")
                _check_next(name, tensor, inputs[before])
        for other, first in self.tied.items():
            if self.roles.get(first) not in (InputRole.PARAMETER, InputRole.BUFFER):
                raise StepError(f"'{other}' is tied to '{first}', which is no parameter and no buffer of the step")
            if other in inputs:
                raise StepError(f"'{other}' is tied to '{first}', but is an input of its own")
        for found in self.ranges:
            if found.input not in inputs or found.input in self.roles:
                raise StepError(f"'{found.input}' has a range of indices, but is no input of the batch")
            _check_range(found, inputs[found.input])


def _parsed(text: str) -> Step:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError('expected an object {"format": ..., "roles": ..., "tied": ...}')
    check_format(found.get("format", str(UNVERSIONED)))
    if not {"roles", "tied"} <= found.keys():
        raise ValueError('expected an object {"format": ..., "roles": ..., "tied": ...}')
    for key in ("roles", "tied"):
        entries = found[key]
        if not isinstance(entries, dict) or not all(isinstance(entry, str) for entry in entries.values()):
            raise ValueError(f"'{key}' is not an object of strings")
    known = {role.value for role in InputRole}
    for name, role in found["roles"].items():
        if role not in known:
            raise ValueError(f"'{name}' has the role '{role}', expected one of {', '.join(sorted(known))}")
    roles = {name: InputRole(role) for name, role in found["roles"].items()}
    bounds = found.get("bounds", {})
    if not isinstance(bounds, dict):
        raise ValueError("'bounds' is not an object")
    entries = found.get("ranges", [])
    if not isinstance(entries, list):
        raise ValueError("'ranges' is no list")
    return Step(
        roles,
        found["tied"],
        {name: _parsed_bounds(name, entry) for name, entry in bounds.items()},
        tuple(map(IndexRange.of_entry, entries)),
    )


def _parsed_bounds(name: str, entry: Any) -> Bounds:
    if isinstance(entry, dict) and {"min", "max"} <= entry.keys():
        least, most = entry["min"], entry["max"]
        if type(least) is int and least >= 0 and (most is None or (type(most) is int and most >= least)):
            return Bounds(least, most)
    raise ValueError(f"'bounds' has {json.dumps(entry)} for '{name}', expected {{\"min\": ..., \"max\": ...}}")


def _inputs(model: onnx.ModelProto) -> dict[str, TensorType]:
    return _types(model.graph.input)


def _types(values: Any) -> dict[str, TensorType]:
    return {value.name: TensorType.of_proto(value.type) for value in values}


def _check_role(name: str, role: InputRole, tensor: TensorType) -> None:
    if tensor.dtype is None or tensor.shape is None or not all(isinstance(d, int) for d in tensor.shape):
        raise StepError(f"input '{name}' has the role '{role}' and is {tensor_text(tensor)}, expected a fixed shape")
    scalars = {
        InputRole.SEED: (TensorProto.INT64,),
        InputRole.SETTING: (TensorProto.FLOAT, TensorProto.DOUBLE),
    }
    if role in scalars and (tensor.dtype not in scalars[role] or tensor.shape):
        wanted = " or ".join(tensor_text(TensorType(dtype, ())) for dtype in scalars[role])
        raise StepError(f"input '{name}' has the role '{role}' and is {tensor_text(tensor)}, expected {wanted}")


def _check_range(found: IndexRange, tensor: TensorType) -> None:
    if tensor.dtype not in INTEGERS or not found.fits(len(tensor.shape or ())):
        raise StepError(f"input '{found.input}' is {tensor_text(tensor)}, which does not fit its range of indices")


def _check_next(name: str, tensor: TensorType, before: TensorType) -> None:
    assert before.shape is not None
    fits = tensor.dtype == before.dtype and (
        tensor.shape is None
        or (
            len(tensor.shape) == len(before.shape)
            and all(not isinstance(d, int) or d == b for d, b in zip(tensor.shape, before.shape, strict=True))
        )
    )
    if not fits:
        raise StepError(f"output '{name}' is {tensor_text(tensor)}, expected that of the input, {tensor_text(before)}")


def tensor_text(tensor: TensorType) -> str:
    """How messages name a type: "float32 (N, 3)", with the dtype in NumPy's spelling, for users give NumPy's arrays."""
    dtype = "of unknown dtype" if tensor.dtype is None else helper.tensor_dtype_to_np_dtype(tensor.dtype).name
    return f"{dtype} of unknown shape" if tensor.shape is None else f"{dtype} {shape_text(tensor.shape)}"


# --- what a step's file holds -----------------------------------------------------------------------------------------


def step_model(
    model: onnx.ModelProto, state: Mapping[str, np.ndarray], inference: onnx.ModelProto | None = None
) -> onnx.ModelProto:
    """The model that a step's file holds: self-contained, with the state that it starts from.

    Args:
        model: the step, whose metadata say what its inputs are.
        state: an array for each input of the state.
        inference: the graph of the trained network, as for `with_inference`.

    Returns:
        A linked model.

    Raises:
        StepError: a model that is no step; a state or an inference graph that does not fit it.
        OpError, LinkError: as `link`.
    """
    step = Step.of(model)
    check_state(step.state(model), state)
    whole = link(model) if inference is None else with_inference(model, inference)
    kept = [tensor for tensor in whole.graph.initializer if tensor.name not in step.roles]
    del whole.graph.initializer[:]
    whole.graph.initializer.extend(kept)
    whole.graph.initializer.extend(numpy_helper.from_array(state[name], name) for name in step.roles)
    return whole


def check_state(wanted: Mapping[str, TensorType], state: Mapping[str, Any]) -> None:
    """Refuse, with a StepError, what is not an array of the right dtype and shape for each name, and no more."""
    check_names("the state", wanted, state)
    for name, tensor in wanted.items():
        array = state[name]
        if not isinstance(array, np.ndarray):
            raise StepError(f"'{name}' is a {type(array).__name__}, expected an array, {tensor_text(tensor)}")
        refuse_mask(name, array)
        if array.dtype != numpy_dtype(tensor) or array.shape != tensor.shape:
            raise StepError(f"'{name}' is {array_text(array)}, expected {tensor_text(tensor)}")


def check_names(what: str, wanted: Mapping[str, TensorType], given: Iterable[str]) -> None:
    """Refuse, with a StepError, what has not exactly the names that are wanted."""
    names = set(given)
    missing = [f"'{name}' ({tensor_text(tensor)})" for name, tensor in wanted.items() if name not in names]
    unknown = [f"'{name}'" for name in names if name not in wanted]
    problems = [f"lacks {', '.join(missing)}"] if missing else []
    if unknown:
        known = ", ".join(f"'{name}'" for name in wanted) or "nothing"
        problems.append(f"has {', '.join(sorted(unknown))}, where the step wants {known}")
    if problems:
        raise StepError(f"{what} {' and '.join(problems)}")


def refuse_mask(name: str, array: np.ndarray) -> None:
    """Refuse, with a StepError, a masked array, whose mask nothing here would heed."""
    if isinstance(array, np.ma.MaskedArray):
        raise StepError(
            f"'{name}' is a masked array, {array_text(array)}, expected one without a mask, such as"
            " numpy.ma.filled(array, value)"
        )


def conversion_hint(dtype: np.dtype) -> str:
    """How to get an array of the dtype that is expected."""
    name = f"{'numpy' if dtype.isbuiltin == 1 else 'ml_dtypes'}.{dtype.type.__name__}"
    return f"nothing is converted silently, but by numpy.asarray(..., {name})"


def numpy_dtype(tensor: TensorType) -> np.dtype:
    """The dtype of an array that a tensor of this type is given as."""
    assert tensor.dtype is not None
    return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.dtype))


def array_text(array: np.ndarray) -> str:
    """How messages name the type of an array, as `tensor_text` that of a tensor."""
    return f"{array.dtype} {shape_text(array.shape)}"


# --- the inference graph ----------------------------------------------------------------------------------------------


def inference_function(model: onnx.ModelProto) -> onnx.FunctionProto | None:
    """The inference graph of a step, if there is one."""
    return next((f for f in model.functions if function_key(f) == INFERENCE_FUNCTION), None)


def with_inference(model: onnx.ModelProto, inference: onnx.ModelProto) -> onnx.ModelProto:
    """A step with an inference graph in it.

    Args:
        model: a step that has none.
        inference: a model whose graph has the types of its inputs and outputs. Its inputs and initializers that have
            the name of a parameter or buffer of the step stand for that; other initializers are constants.

    Returns:
        A linked copy of the step.

    Raises:
        StepError: a step that has an inference graph already; parameters or buffers of other types.
        OpError, LinkError: as `link`.
    """
    whole, brought = load_model(model), load_model(inference)
    restore(whole)
    restore(brought)
    if inference_function(whole) is not None:
        raise StepError("the step has an inference graph already")
    step = Step.of(whole)
    _tell_apart(brought, whole)
    parameters = {n: t for n, t in step.state(whole).items() if n in _inferred(step)}
    graph = brought.graph
    if graph.sparse_initializer:
        raise StepError("the inference graph has sparse initializers, expected dense ones")
    types = {tensor.name: TensorType(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    types |= _types(graph.input)
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
    described = [helper.make_tensor_value_info(n, parameters[n].dtype or 0, parameters[n].shape) for n in taken]
    function.value_info.extend([*described, *own, *graph.output])
    whole.functions.extend(brought.functions)
    whole.functions.append(function)
    import_what_functions_do(whole)
    add_import(whole, CARRIED_DOMAIN, 1)
    return link(whole)


def _inferred(step: Step) -> set[str]:
    """The inputs of a step that an inference graph may take."""
    return set(step.names(InputRole.PARAMETER, InputRole.BUFFER))


def _check_typed(value: onnx.ValueInfoProto) -> None:
    if TensorType.of_proto(value.type).dtype is None:
        raise StepError(f"'{value.name}' of the inference graph has no type")


def _nameless(tensor: TensorProto) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.ClearField("name")
    return copy


def _tell_apart(brought: onnx.ModelProto, whole: onnx.ModelProto) -> None:
    """Leave the functions that both models have to one of them; rename those of the first if any differ."""
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
        state: at least the parameters and buffers that the inference graph takes, by the names of the step's inputs.

    Returns:
        A linked model, whose initializers are those parameters and buffers.

    Raises:
        StepError: a step without an inference graph; a state that does not fit it.
        OpError, LinkError: as `link`.
    """
    function = inference_function(model)
    if function is None:
        raise StepError(
            f"the step has no inference graph: there is no function {function_text(*INFERENCE_FUNCTION)} in its model"
        )
    step = Step.of(model)
    inferred = _inferred(step)
    taken = [name for name in function.input if name in inferred]
    types = step.state(model)
    check_state({name: types[name] for name in taken}, {name: state[name] for name in taken if name in state})
    infos = {info.name: info for info in function.value_info}
    for name in (*function.input, *function.output):
        _check_typed(infos.get(name, onnx.ValueInfoProto(name=name)))
    graph = helper.make_graph(
        list(function.node),
        model.graph.name or INFERENCE,
        [infos[name] for name in function.input if name not in inferred],
        [infos[name] for name in function.output],
        [numpy_helper.from_array(state[name], name) for name in taken],
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
    import_what_functions_do(whole)
    return link(whole)
