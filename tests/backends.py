"""The backends that run one op, and the comparison of their outputs with the op's record.

A backend takes a call and returns the requested outputs with their dtypes and shapes unchanged. Sessions are cached by
op, dtypes, ranks, attributes and outputs; their dimensions are symbolic unless the call is static.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from unittest import mock

import built_library
import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto
from onnx.compose import add_prefix_graph
from onnx.reference import ReferenceEvaluator

import onnx_ops
from models.single_op import Dimension, single_op_model
from onnx_ops.integrations import prebuilt
from onnx_ops.integrations.sessions import OwnOptions
from onnx_ops.ops import OPS
from tests.ops import RECORDS
from tests.ops._shared.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS
from tests.ops._shared.record import Call

__all__ = ["BFLOAT16", "FLOAT16", "FLOAT32", "FLOAT64", "FLOATS", "Call"]

Array = np.ndarray[Any, Any]
Options = TypeVar("Options", bound=ort.SessionOptions)
Arrays = Sequence[Array | None]
Attributes = Mapping[str, Any]
Signature = tuple[tuple[np.dtype[Any], tuple[Dimension, ...] | None] | None, ...]
SortedAttributes = tuple[tuple[str, Any], ...]
Names = tuple[str, ...]


def call_of(op: str, inputs: Arrays, attributes: Attributes | None = None, *, static: bool = False) -> Call:
    """A call with inputs in the op's order; trailing inputs may be omitted."""
    names = OPS[op].input_names
    filled = [*inputs, *[None] * (len(names) - len(inputs))]
    return Call(op, dict(zip(names, filled, strict=True)), attributes or {}, static=static)


@dataclass(frozen=True)
class Backend:
    """One way to compute the outputs of a call."""

    name: str
    run: Callable[[Call], dict[str, Array]]
    portable: bool = False
    run_in_one_session: Callable[[Sequence[Call]], list[dict[str, Array]]] | None = None

    def __str__(self) -> str:
        return self.name

    def __call__(self, op: str, inputs: Arrays, attributes: Attributes | None = None, *, static: bool = False) -> Array:
        """The output of an op with a single output."""
        (output,) = self.run(call_of(op, inputs, attributes, static=static)).values()
        return output

    def with_outputs_of(self, calls: Sequence[Call]) -> Backend:
        """The backend after it has run calls in few sessions, as making one takes longer than running it."""
        if self.run_in_one_session is None:
            return self
        outputs: dict[Call, dict[str, Array]] = {}
        for group in joinable(calls):
            # Some function bodies serve one combination of dtypes: those calls, and wrong ones, run one by one.
            with contextlib.suppress(Exception):
                outputs |= zip(group, self.run_in_one_session(group), strict=True)
        return replace(self, run=lambda call: outputs[call] if call in outputs else self.run(call))


# --- models and sessions -------------------------------------------------------------------------------------------


def signature(op: str, inputs: Arrays, static: bool = False) -> Signature:
    """Dtype and dimensions of each input: its shape, or a name for each axis."""
    return tuple(
        None if a is None else (a.dtype, a.shape if static else tuple(f"{name}_{axis}" for axis in range(a.ndim)))
        for name, a in zip(OPS[op].input_names, inputs, strict=False)
    )


@functools.lru_cache(maxsize=1024)
def _model(op: str, types: Signature, attributes: SortedAttributes, outputs: Names | None) -> ModelProto:
    return single_op_model(op, types, dict(attributes), outputs)


Key = tuple[str, Signature, SortedAttributes, Names | None]


def key_of(call: Call) -> Key:
    """The cache key of a call's session, equal for calls that can share one."""
    types = signature(call.op, [call.inputs.get(name) for name in OPS[call.op].input_names], call.static)
    return call.op, types, tuple(sorted(call.attributes.items())), call.outputs


def model_of(call: Call) -> ModelProto:
    """A model of one node whose inputs have the dtypes and ranks of the arrays, or their shapes for a static call."""
    return _model(*key_of(call))


def options(threads: int = 1, optimise: bool = True) -> ort.SessionOptions:
    """Session options for tests, which do not log the errors that a test provokes."""
    return _set(ort.SessionOptions(), threads, optimise)


def _set(options: Options, threads: int, optimise: bool = True) -> Options:
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    return options


def sessions(model: onnx.ModelProto) -> dict[str, ort.InferenceSession]:
    """A session with kernels, one of function bodies, and one of a model without functions."""
    linked, inlined = onnx_ops.link(model).SerializeToString(), onnx_ops.inline(model).SerializeToString()
    return {
        "kernel": kernel_session(model),
        "portable": ort.InferenceSession(linked, options()),
        "inlined": ort.InferenceSession(inlined, options()),
    }


def kernel_session(model: Any, threads: int = 1) -> onnx_ops.InferenceSession:
    """A session with the settings of `options`, which registers the kernels of its model."""
    return onnx_ops.InferenceSession(model, _set(OwnOptions(), threads), providers=["CPUExecutionProvider"])


def library_session(model: Any, threads: int = 1) -> onnx_ops.InferenceSession:
    """As `kernel_session`, with the kernels of a library."""
    with mock.patch.dict(os.environ, {prebuilt.VARIABLE: str(built_library.library())}):
        return kernel_session(model, threads)


@functools.cache
def kernel_options(threads: int = 1, optimise: bool = True) -> ort.SessionOptions:
    """`options` with all kernels registered, for several sessions."""
    made = options(threads, optimise)
    onnx_ops.register_kernels(made)
    return made


@functools.lru_cache(maxsize=512)
def _session(way: str, key: Key) -> ort.InferenceSession:
    return _session_of(way, _model(*key))


def _session_of(way: str, model: ModelProto) -> ort.InferenceSession:
    if way == "kernels":
        return kernel_session(model)
    if way == "library":
        return library_session(model)
    session_options = options(optimise=way != "as_written")
    portable = onnx_ops.inline(model) if way == "inlined" else onnx_ops.link(model)
    return ort.InferenceSession(portable.SerializeToString(), session_options, providers=["CPUExecutionProvider"])


def run_session(session: ort.InferenceSession, arrays: Mapping[str, Array]) -> Array:
    """The output of a session with a single output, bfloat16 included."""
    (output,) = run_outputs(session, arrays).values()
    return output


def run_outputs(session: ort.InferenceSession, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of a session by name, bfloat16 included."""
    feeds = {name: _ort_value(array) for name, array in arrays.items()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, map(_array, session.run_with_ort_values(names, feeds)), strict=True))


def _array(value: ort.OrtValue) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    out = np.empty(value.shape(), np.uint16)
    if out.size:
        ctypes.memmove(out.ctypes.data, value.data_ptr(), out.nbytes)
    return out.view(ml_dtypes.bfloat16)


def _ort_value(array: Array) -> ort.OrtValue:
    if not array.flags.c_contiguous:
        array = array.copy(order="C")  # np.ascontiguousarray would make a 0-d array 1-d
    if array.dtype == BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def named(op: str, inputs: Arrays) -> dict[str, Array]:
    """The inputs that are not omitted, by name."""
    return {name: a for name, a in zip(OPS[op].input_names, inputs, strict=False) if a is not None}


def _in_session(call: Call, way: str) -> dict[str, Array]:
    return run_outputs(_session(way, key_of(call)), call.given)


def joinable(calls: Iterable[Call], by_dtypes: bool = False) -> list[list[Call]]:
    """Calls in groups of one model each.

    Those with the same inputs left out, as in a model of both a node is given a default.

    Args:
        by_dtypes: only calls with the same dtypes together, for function bodies that serve one combination.
    """
    groups: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        key = tuple((name, array.dtype if by_dtypes else None) for name, array in call.given.items())
        groups.setdefault(key, []).append(call)
    return list(groups.values())


def joined(calls: Sequence[Call]) -> tuple[ModelProto, dict[str, Array]]:
    """A model with the nodes of calls, and its inputs; the names and dimensions of each call have a prefix."""
    model, feeds = ModelProto(), dict[str, Array]()
    model.CopyFrom(model_of(calls[0]))
    model.ClearField("graph")
    model.graph.name = "calls"
    for number, call in enumerate(calls):
        graph = add_prefix_graph(model_of(call).graph, f"{number}.")
        for value in (*graph.input, *graph.output):
            for dimension in value.type.tensor_type.shape.dim:
                if dimension.dim_param:
                    dimension.dim_param = f"{number}.{dimension.dim_param}"
        for part in ("node", "input", "output"):
            getattr(model.graph, part).extend(getattr(graph, part))
        feeds |= {f"{number}.{name}": array for name, array in call.given.items()}
    return model, feeds


def _in_one_session(calls: Sequence[Call], way: str) -> list[dict[str, Array]]:
    model, feeds = joined(calls)
    outputs = run_outputs(_session_of(way, model), feeds)
    results: list[dict[str, Array]] = [{} for _ in calls]
    for name, array in outputs.items():
        number, output = name.split(".", 1)
        results[int(number)][output] = array
    return results


@functools.lru_cache(maxsize=512)
def _evaluator(body: bool, key: Key) -> ReferenceEvaluator:
    if body:
        return ReferenceEvaluator(onnx_ops.inline(_model(*key)))
    return ReferenceEvaluator(_model(*key), new_ops=onnx_ops.reference_ops())


def _in_evaluator(call: Call, body: bool) -> dict[str, Array]:
    evaluator = _evaluator(body, key_of(call))
    # NumPy runs the operators of a body, and warns of infinities that are expected.
    with np.errstate(all="ignore" if body else None):
        outputs = evaluator.run(None, call.given)
    assert all(isinstance(output, np.ndarray) for output in outputs)
    return dict(zip(evaluator.output_names, outputs, strict=True))


def _in_float64(call: Call) -> dict[str, Array]:
    op = OPS[call.op]
    outputs = op.compute([call.inputs.get(name) for name in op.input_names], dtype=np.float64, **call.attributes)
    found = dict(zip(op.output_names, outputs, strict=True))
    wanted = op.output_names if call.outputs is None else call.outputs
    return {name: array for name in wanted if (array := found[name]) is not None}


def _of_sessions(name: str, way: str, portable: bool = True) -> Backend:
    together = functools.partial(_in_one_session, way=way)
    return Backend(name, functools.partial(_in_session, way=way), portable, together)


KERNEL = _of_sessions("kernel", "kernels", portable=False)
LIBRARY = _of_sessions("library", "library", portable=False)
WITH_KERNELS = (KERNEL, LIBRARY) if built_library.can_be_built() else (KERNEL,)
PORTABLE = _of_sessions("portable", "linked")
PORTABLE_AS_WRITTEN = _of_sessions("portable_unoptimised", "as_written")
INLINED = _of_sessions("inlined", "inlined")
EVALUATOR = Backend("evaluator", functools.partial(_in_evaluator, body=False))
REFERENCE = Backend("reference_float64", _in_float64)
PORTABLE_EVALUATOR = Backend("portable_evaluator", functools.partial(_in_evaluator, body=True), portable=True)
BACKENDS = (*WITH_KERNELS, PORTABLE, PORTABLE_AS_WRITTEN, PORTABLE_EVALUATOR, EVALUATOR, REFERENCE)
CAREFUL = (*WITH_KERNELS, EVALUATOR, REFERENCE)


def session_with_kernels(backend: Backend, model: Any, threads: int = 1) -> onnx_ops.InferenceSession:
    """A session with the kernels of KERNEL or of LIBRARY."""
    return (library_session if backend is LIBRARY else kernel_session)(model, threads)


def kernels_for(dtype: np.dtype[Any]) -> Backend:
    """The kernels that a test of all dtypes takes for one of them: those of the library for float16."""
    return WITH_KERNELS[-1] if dtype == FLOAT16 else KERNEL


on_every_backend = pytest.mark.parametrize("backend", BACKENDS, ids=str)


def in_turns(
    names: Sequence[str], rows: Iterable[tuple[Any, ...]], *, by: Callable[..., str] | None = None
) -> pytest.MarkDecorator:
    """Each row on the kernel and on one of the other backends in turn; on all of them with `make test-full`.

    Args:
        names: the test's parameters whose values are in a row; the parameter `backend` follows them.
        rows: the values of these parameters.
        by: groups rows: a function of a row's values to a name. A test gets the list of the rows of one backend and one
            name as its parameter `rows`.
    """
    return pytest.mark.in_turns(tuple(names), list(rows), by)


def generate_turns(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that is marked `in_turns`."""
    for mark in metafunc.definition.iter_markers("in_turns"):
        names, rows, by = mark.args
        others = itertools.cycle(backend for backend in BACKENDS if backend is not KERNEL)
        taken = [
            (row, backend)
            for row, turn in zip(rows, others, strict=False)
            for backend in BACKENDS
            if backend in (KERNEL, turn) or metafunc.config.getoption("--full")
        ]
        if by is None:
            parameters = [(*row, backend) for row, backend in taken]
            metafunc.parametrize((*names, "backend"), parameters, ids=map(row_id, parameters))
        else:
            joined: dict[tuple[str, Backend], list[tuple[Any, ...]]] = {}
            for row, backend in taken:
                joined.setdefault((by(*row), backend), []).append(row)
            parameters = [(found, backend) for (_, backend), found in joined.items()]
            metafunc.parametrize(("rows", "backend"), parameters, ids=map(row_id, joined))


def row_id(row: Sequence[Any]) -> str:
    """The test id of a row of `in_turns`."""
    return "-".join(map(_words, row))


def _words(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


on_typed_backends = pytest.mark.parametrize("backend", [b for b in BACKENDS if b is not REFERENCE], ids=str)
on_careful_backends = pytest.mark.parametrize("backend", CAREFUL, ids=str)


# --- comparing -----------------------------------------------------------------------------------------------------


def check(
    backend: Backend,
    op: str,
    inputs: Arrays,
    attributes: Attributes | None = None,
    *,
    static: bool = False,
    slack: float | None = None,
) -> Array:
    """`check_call` of an op with one output."""
    (output,) = check_call(backend, call_of(op, inputs, attributes, static=static), slack=slack).values()
    return output


def dtype_on(backend: Backend, call: Call, output: str) -> np.dtype[Any]:
    """The dtype of an output on a backend; the reference in float64 returns floating outputs in float64."""
    own = RECORDS[call.op].output_dtype(call, output)
    return FLOAT64 if backend is REFERENCE and own in FLOATS else own


def check_call(backend: Backend, call: Call, *, slack: float | None = None) -> dict[str, Array]:
    """Run a call on a backend and compare all outputs with the oracle.

    Dtypes, shapes, NaN and infinities have to be equal, numbers within the record's limits.

    Args:
        slack: absolute error that is allowed beyond rounding; by default that of the record.
    """
    record = RECORDS[call.op]
    outputs = backend.run(call)
    assert tuple(outputs) == record.wanted(call)
    for name, actual in outputs.items():
        assert isinstance(actual, np.ndarray)
        dtype = dtype_on(backend, call, name)
        assert actual.dtype == dtype, f"{name} has dtype {actual.dtype}, expected {dtype}"
        most = record.limit(call, name, dtype, portable=backend.portable)
        error = record.errors(call, name, actual, portable=backend.portable, slack=slack, limit=most)
        worst = float(error.max(initial=0.0))
        if worst > most:
            place = np.unravel_index(int(error.argmax()), error.shape)
            where = f"{name}[{', '.join(map(str, map(int, place)))}]"
            pytest.fail(f"{call} on {backend}: {where} is {actual[place]!r}, off by {worst} units; allowed {most}")
    return outputs


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Equal dtypes, shapes and bits, NaN included."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


def assert_same_numbers(actual: Array, expected: Array) -> None:
    """Equal dtypes, shapes and bits, but for sign and payload of NaN.

    IEEE 754 does not say which of two NaNs a sum has, nor LLVM in which order the processor gets them. Making them all
    one NaN would take an instruction for each element, in every kernel.
    """
    assert actual.shape == expected.shape
    numbers = ~(np.isnan(actual) & np.isnan(expected))
    assert_same_bits(actual[numbers], expected[numbers])


def assert_close(actual: Array, expected: Array, *, rtol: float = 0, atol: float = 0, what: str = "") -> None:
    """Equal dtypes and shapes, and numbers within the tolerances; `strict` of assert_allclose came with NumPy 2.

    The tolerances have to be finite, as an infinite one would accept everything.
    """
    assert math.isfinite(rtol + atol), what
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)


def assert_result(actual: Array, expected: Any, dtype: npt.DTypeLike, *, signs: bool = True) -> None:
    """Equal to numbers that are exact in `dtype`, NaN included; by default zeros have equal signs."""
    wanted = np.asarray(expected, np.float64)
    assert actual.dtype == np.dtype(dtype)
    assert actual.shape == wanted.shape
    got = actual.astype(np.float64)
    np.testing.assert_array_equal(got, wanted)
    numbers = ~np.isnan(wanted) & signs
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(wanted)[numbers])
