"""Runs an op on arrays."""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import helper

from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.integrations.examples import node_model
from onnx_ops.integrations.nodes import attribute_value
from onnx_ops.integrations.sessions import InferenceSession
from onnx_ops.integrations.sessions import session_options as kernel_options
from onnx_ops.integrations.values import input_value, output_array
from onnx_ops.linking.link import link
from onnx_ops.ops import op_named

Backend = Literal["kernel", "reference", "portable"]
MOST_SESSIONS = 64
"""Sessions that are kept; the one that has not been used for longest makes room."""

Attributes = tuple[tuple[str, Any], ...]
Types = tuple[tuple[int, int] | None, ...]
"""Element type and rank of each input, None for an omitted one."""


def run(
    op_type: str,
    /,
    *inputs: npt.ArrayLike | None,
    backend: Backend | None = None,
    dtype: npt.DTypeLike | None = None,
    **named: Any,
) -> Any:
    """Run an op on arrays.

    A session is made for the first call with an op, dtypes, ranks and attributes, and kept for later ones.

    Args:
        op_type: name of the op, such as "KlDivBackward".
        inputs: arrays in the order of the schema; None for an omitted one, trailing ones may be left out. Their dtypes
            are those of the call: lists and Python numbers, which have none, are refused.
        backend: "kernel", the default; "portable" for the function body in standard operators; "reference" for the
            NumPy definition. Without kernels a warning is issued once, and function bodies run.
        dtype: float64 for golden results: the NumPy definition, computed in float64 or more and returned in float64,
            whatever the dtypes of the inputs.
        named: inputs and attributes by the names of the schema; flags also as bools, enumerations also by PyTorch's
            words (reduction="mean", approximate="tanh").

    Returns:
        The output, as a new array; of an op with several outputs a named tuple of them, None for one that needs an
        input that is omitted.

    Raises:
        OpError: an unknown op, input, attribute or backend; dtypes, shapes or values that the op rejects.
    """
    op = op_named(op_type)
    arrays, attributes = _bound(op, inputs, named)
    outputs = [
        declared.requires is None or arrays[op.input_names.index(declared.requires)] is not None
        for declared in op.signature.outputs
    ]
    call = op.check_arrays(arrays, attributes, outputs)
    way = _resolved(op, backend, dtype)
    if way == "reference":
        kind = None if dtype is None else np.dtype(np.float64)
        found = op.compute(arrays, dtype=kind, **call.attributes)
        results = [None if array is None else np.array(array) for array in found]
    else:
        types = tuple(None if a is None else (_element(a), a.ndim) for a in arrays)
        session, dtypes = _session(op.name, way == "portable", types, tuple(attributes.items()), tuple(outputs))
        values = session.run_with_ort_values(
            list(dtypes),
            {
                name: input_value(a, _element(a))
                for name, a in zip(op.input_names, arrays, strict=True)
                if a is not None
            },
        )
        computed = iter(map(output_array, values, dtypes.values()))
        results = [next(computed) if wanted else None for wanted in outputs]
    return results[0] if len(results) == 1 else _results(op.name, op.output_names)(*results)


def _bound(
    op: Op, inputs: Sequence[npt.ArrayLike | None], named: Mapping[str, Any]
) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """The inputs in the order of the schema, and the attributes of a call."""
    if len(inputs) > len(op.input_names):
        expected = f"expected at most {len(op.input_names)}: {', '.join(op.input_names)}"
        raise OpError(op.name, f"got {len(inputs)} inputs, {expected}")
    given: dict[str, Any] = dict(zip(op.input_names, inputs, strict=False))
    attributes = {}
    for name, value in named.items():
        if name in op.attributes:
            value = attribute_value(op, name, value)
            attributes[name] = tuple(value) if isinstance(value, list) else value
        elif name not in op.input_names:
            known = f"expected inputs {', '.join(op.input_names)}; attributes {', '.join(op.attributes) or 'none'}"
            raise OpError(op.name, f"unknown input or attribute '{name}', {known}")
        elif name in given:
            raise OpError(op.name, f"input '{name}' is given by position and by name, expected once")
        else:
            given[name] = value
    return [_array(op, name, given.get(name)) for name in op.input_names], attributes


def _array(op: Op, name: str, value: object) -> np.ndarray | None:
    """An input as a contiguous array in the byte order of the machine."""
    if value is None:
        return None
    if isinstance(value, np.ma.MaskedArray) or not hasattr(value, "__array__"):
        kind = "masked array" if isinstance(value, np.ma.MaskedArray) else type(value).__name__
        raise OpError(op.name, f"input '{name}' is a {kind}, expected an array: numpy.asarray(..., dtype)")
    array = np.asarray(value, order="C")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        _element(array)
    except (KeyError, ValueError):  # by the version of onnx
        (parameter,) = (parameter for parameter in op.inputs if parameter.name == name)
        expected = ", ".join(sorted(parameter.dtypes))
        raise OpError(op.name, f"input '{name}' has dtype {array.dtype}, expected one of {expected}") from None
    return array


def _element(array: np.ndarray) -> int:
    """TensorProto.DataType of an array."""
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def _resolved(op: Op, backend: str | None, dtype: npt.DTypeLike | None) -> str:
    """The backend, after checks."""
    if backend is not None and backend not in get_args(Backend):
        raise OpError(op.name, f"backend is {backend!r}, expected one of {', '.join(get_args(Backend))}")
    if dtype is None:
        return backend or "kernel"
    if np.dtype(dtype) != np.float64:
        raise OpError(op.name, f"dtype is {np.dtype(dtype).name}, expected float64, or None for that of the inputs")
    if backend not in (None, "reference"):
        raise OpError(op.name, f"backend is {backend!r}, expected 'reference', which alone computes in another dtype")
    return "reference"


@functools.lru_cache(maxsize=MOST_SESSIONS)
def _session(
    op_type: str, portable: bool, types: Types, attributes: Attributes, outputs: tuple[bool, ...]
) -> tuple[ort.InferenceSession, dict[str, np.dtype]]:
    """A session of one node, and its outputs with their dtypes."""
    op = op_named(op_type)
    inputs = {
        name: TensorType(known[0], tuple(f"{name}_{axis}" for axis in range(known[1])))
        for name, known in zip(op.input_names, types, strict=True)
        if known is not None
    }
    call = op.call([inputs.get(name) for name in op.input_names], dict(attributes), outputs)
    found = {
        name: TensorType(tensor.dtype)
        for name, tensor, wanted in zip(op.output_names, op.infer(call), outputs, strict=True)
        if wanted
    }
    model = node_model(op, inputs, found, dict(attributes))
    options = ort.SessionOptions() if portable else kernel_options()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # many sessions are idle at a time
    if portable:
        session = ort.InferenceSession(link(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    else:
        session = InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session, {
        name: np.dtype(helper.tensor_dtype_to_np_dtype(tensor.dtype or 0)) for name, tensor in found.items()
    }


@functools.cache
def _results(op_type: str, names: tuple[str, ...]) -> Any:
    """The named tuple of an op's outputs."""
    return collections.namedtuple(op_type, names)
