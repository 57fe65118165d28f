"""The ways to run one op, and the one comparer that judges what they give by the op's record.

An engine takes a call and returns the outputs that the call wants as they came: dtype and shape count. Sessions are
cached by op, dtypes, ranks, attributes and outputs; their dimensions are symbolic unless the call is static.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator

import onnx_ops
from models.single_op import Dimension, single_op_model
from onnx_ops.ops import OPS
from tests.ops import RECORDS
from tests.ops._shared.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS
from tests.ops._shared.record import Call

__all__ = ["BFLOAT16", "FLOAT16", "FLOAT32", "FLOAT64", "FLOATS", "Call"]

Array = np.ndarray[Any, Any]
Arrays = Sequence[Array | None]
Attributes = Mapping[str, Any]
Signature = tuple[tuple[np.dtype[Any], tuple[Dimension, ...] | None] | None, ...]
Settled = tuple[tuple[str, Any], ...]
Names = tuple[str, ...]


def call_of(op: str, inputs: Arrays, attributes: Attributes | None = None, *, static: bool = False) -> Call:
    """A call of inputs in the op's order, which may end before the op's do."""
    names = OPS[op].input_names
    filled = [*inputs, *[None] * (len(names) - len(inputs))]
    return Call(op, dict(zip(names, filled, strict=True)), attributes or {}, static=static)


@dataclass(frozen=True)
class Engine:
    """One way to compute the outputs of a call."""

    name: str
    run: Callable[[Call], dict[str, Array]]
    portable: bool = False

    def __str__(self) -> str:
        return self.name

    def __call__(self, op: str, inputs: Arrays, attributes: Attributes | None = None, *, static: bool = False) -> Array:
        """The output of an op that has one."""
        (output,) = self.run(call_of(op, inputs, attributes, static=static)).values()
        return output


# --- models and sessions -------------------------------------------------------------------------------------------


def signature(op: str, inputs: Arrays, static: bool = False) -> Signature:
    """Dtype and dimensions of each input: its shape, or a name for each axis."""
    return tuple(
        None if a is None else (a.dtype, a.shape if static else tuple(f"{name}_{axis}" for axis in range(a.ndim)))
        for name, a in zip(OPS[op].input_names, inputs, strict=False)
    )


@functools.lru_cache(maxsize=1024)
def _model(op: str, types: Signature, attributes: Settled, outputs: Names | None) -> ModelProto:
    return single_op_model(op, types, dict(attributes), outputs)


Key = tuple[str, Signature, Settled, Names | None]


def key_of(call: Call) -> Key:
    """Equal for calls that can share a session."""
    types = signature(call.op, [call.inputs.get(name) for name in OPS[call.op].input_names], call.static)
    return call.op, types, tuple(sorted(call.attributes.items())), call.outputs


def model_of(call: Call) -> ModelProto:
    """A model of one node whose inputs have the dtypes and ranks (static: the shapes) of the arrays."""
    return _model(*key_of(call))


def options(threads: int = 1, optimise: bool = True) -> ort.SessionOptions:
    """Session options for tests: few threads, no log of errors that a test provokes."""
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    made.log_severity_level = 4
    level = ort.GraphOptimizationLevel
    made.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    return made


@functools.cache
def kernel_options(threads: int = 1, optimise: bool = True) -> ort.SessionOptions:
    """Those options with the kernels registered, the same for all sessions: registering takes as long as a session."""
    made = options(threads, optimise)
    onnx_ops.register_kernels(made)
    return made


@functools.lru_cache(maxsize=512)
def _session(way: str, key: Key) -> ort.InferenceSession:
    model = _model(*key)
    if way == "kernels":
        return onnx_ops.InferenceSession(model, kernel_options(), providers=["CPUExecutionProvider"])
    settled = options(optimise=way != "as_written")
    portable = onnx_ops.inline(model) if way == "inlined" else onnx_ops.link(model)
    return ort.InferenceSession(portable.SerializeToString(), settled, providers=["CPUExecutionProvider"])


def run_session(session: ort.InferenceSession, arrays: Mapping[str, Array]) -> Array:
    """The output of a session that has one, bfloat16 included."""
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
    """The inputs that are there, by name."""
    return {name: a for name, a in zip(OPS[op].input_names, inputs, strict=False) if a is not None}


def _in_session(call: Call, way: str) -> dict[str, Array]:
    return run_outputs(_session(way, key_of(call)), call.given)


@functools.lru_cache(maxsize=512)
def _evaluator(body: bool, key: Key) -> ReferenceEvaluator:
    if body:
        return ReferenceEvaluator(onnx_ops.inline(_model(*key)))
    return ReferenceEvaluator(_model(*key), new_ops=onnx_ops.reference_ops())


def _in_evaluator(call: Call, body: bool) -> dict[str, Array]:
    evaluator = _evaluator(body, key_of(call))
    # The operators of a body are NumPy's, which warns of infinities that are meant to be.
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


KERNEL = Engine("kernel", functools.partial(_in_session, way="kernels"))
PORTABLE = Engine("portable", functools.partial(_in_session, way="linked"), portable=True)
PORTABLE_AS_WRITTEN = Engine("portable_unoptimised", functools.partial(_in_session, way="as_written"), portable=True)
INLINED = Engine("inlined", functools.partial(_in_session, way="inlined"), portable=True)
EVALUATOR = Engine("evaluator", functools.partial(_in_evaluator, body=False))
REFERENCE = Engine("reference_float64", _in_float64)
PORTABLE_EVALUATOR = Engine("portable_evaluator", functools.partial(_in_evaluator, body=True), portable=True)
ENGINES = (KERNEL, PORTABLE, PORTABLE_AS_WRITTEN, PORTABLE_EVALUATOR, EVALUATOR, REFERENCE)
CAREFUL = (KERNEL, EVALUATOR, REFERENCE)

on_every_engine = pytest.mark.parametrize("engine", ENGINES, ids=str)


def in_turns(
    names: Sequence[str], rows: Iterable[tuple[Any, ...]], *, by: Callable[..., str] | None = None
) -> pytest.MarkDecorator:
    """Each row on the kernel and on one of the other engines, which take turns; on all of them by `make test-full`.

    Args:
        names: of the test's parameters that a row has values for; `engine` comes after them.
        by: what rows to join: a test gets the list of the rows of an engine for which this function of a row's values
            returns the same name, as its parameter `rows`.
    """
    return pytest.mark.in_turns(tuple(names), list(rows), by)


def generate_turns(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that is marked `in_turns`."""
    for mark in metafunc.definition.iter_markers("in_turns"):
        names, rows, by = mark.args
        others = itertools.cycle(engine for engine in ENGINES if engine is not KERNEL)
        taken = [
            (row, engine)
            for row, turn in zip(rows, others, strict=False)
            for engine in ENGINES
            if engine in (KERNEL, turn) or metafunc.config.getoption("--full")
        ]
        if by is None:
            parameters = [(*row, engine) for row, engine in taken]
            metafunc.parametrize((*names, "engine"), parameters, ids=map(row_id, parameters))
        else:
            joined: dict[tuple[str, Engine], list[tuple[Any, ...]]] = {}
            for row, engine in taken:
                joined.setdefault((by(*row), engine), []).append(row)
            parameters = [(found, engine) for (_, engine), found in joined.items()]
            metafunc.parametrize(("rows", "engine"), parameters, ids=map(row_id, joined))


def row_id(row: Sequence[Any]) -> str:
    """The test id of a row of `in_turns`."""
    return "-".join(map(_words, row))


def _words(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


on_typed_engines = pytest.mark.parametrize("engine", [e for e in ENGINES if e is not REFERENCE], ids=str)
on_careful_engines = pytest.mark.parametrize("engine", CAREFUL, ids=str)


# --- judging -------------------------------------------------------------------------------------------------------


def check(
    engine: Engine,
    op: str,
    inputs: Arrays,
    attributes: Attributes | None = None,
    *,
    static: bool = False,
    slack: float | None = None,
) -> Array:
    """`check_call` of an op with one output."""
    (output,) = check_call(engine, call_of(op, inputs, attributes, static=static), slack=slack).values()
    return output


def dtype_on(engine: Engine, call: Call, output: str) -> np.dtype[Any]:
    """The dtype that an engine gives an output in."""
    own = RECORDS[call.op].output_dtype(call, output)
    return FLOAT64 if engine is REFERENCE and own in FLOATS else own


def check_call(engine: Engine, call: Call, *, slack: float | None = None) -> dict[str, Array]:
    """Run and compare all outputs with the oracle.

    Dtype, shape, NaN and infinities exactly, numbers within the record's limits. slack: by what a number may be off
    besides, if not by what the record says.
    """
    record = RECORDS[call.op]
    outputs = engine.run(call)
    assert tuple(outputs) == record.wanted(call)
    for name, actual in outputs.items():
        assert isinstance(actual, np.ndarray)
        dtype = dtype_on(engine, call, name)
        assert actual.dtype == dtype, f"{name} has dtype {actual.dtype}, expected {dtype}"
        error = record.errors(call, name, actual, portable=engine.portable, slack=slack)
        most = record.limit(call, name, dtype, portable=engine.portable)
        worst = float(error.max(initial=0.0))
        key = (call.op, name, dtype.name, engine.name)
        MEASURED[key] = max(worst, MEASURED.get(key, 0.0))
        if worst > most:
            place = np.unravel_index(int(error.argmax()), error.shape)
            where = f"{name}[{', '.join(map(str, map(int, place)))}]"
            pytest.fail(f"{call} on {engine}: {where} is {actual[place]!r}, off by {worst} units; allowed {most}")
    return outputs


MEASURED: dict[tuple[str, str, str, str], float] = {}
"""Largest error seen so far, by op, output, dtype of the result and engine."""


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Same dtype, shape and bits, NaN included."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


def assert_close(actual: Array, expected: Array, *, rtol: float = 0, atol: float = 0, what: str = "") -> None:
    """Same dtype and shape, and numbers that are near. (`strict` of NumPy's assert_allclose came with NumPy 2.)

    A tolerance that is not finite, such as a share of an infinite number, would pass everything.
    """
    assert math.isfinite(rtol + atol), what
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)


def assert_result(actual: Array, expected: Any, dtype: Any, *, signs: bool = True) -> None:
    """Equal to numbers written out, which are exact in `dtype`; the sign of zero counts too, NaN equals NaN."""
    wanted = np.asarray(expected, np.float64)
    assert actual.dtype == np.dtype(dtype)
    assert actual.shape == wanted.shape
    got = actual.astype(np.float64)
    np.testing.assert_array_equal(got, wanted)
    numbers = ~np.isnan(wanted) & signs
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(wanted)[numbers])
