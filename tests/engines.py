"""The ways to run one op, and the one comparer that judges what they give.

An engine takes op, inputs (None for one that is left out) and attributes, and returns the output as it came: dtype and
shape count. Sessions are cached by op, dtypes, ranks and attributes; their dimensions are symbolic unless `static`.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import oracles
import pytest
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator

import onnx_ops
from models.single_op import Dimension, single_op_model
from onnx_ops import OPS

Array = np.ndarray[Any, Any]
Arrays = Sequence[Array | None]
Attributes = Mapping[str, int | float]
Signature = tuple[tuple[np.dtype[Any], tuple[Dimension, ...] | None] | None, ...]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)


@dataclass(frozen=True)
class Engine:
    """One way to run an op: run(op, inputs, attributes, static)."""

    name: str
    run: Callable[[str, Arrays, Attributes, bool], Array]
    portable: bool = False

    def __str__(self) -> str:
        return self.name

    def __call__(self, op: str, inputs: Arrays, attributes: Attributes | None = None, *, static: bool = False) -> Array:
        return self.run(op, inputs, attributes or {}, static)


# --- models and sessions -------------------------------------------------------------------------------------------


def signature(op: str, inputs: Arrays, static: bool = False) -> Signature:
    """Dtype and dimensions of each input: its shape, or a name for each axis."""
    return tuple(
        None if a is None else (a.dtype, a.shape if static else tuple(f"{name}_{axis}" for axis in range(a.ndim)))
        for name, a in zip(OPS[op].input_names, inputs, strict=False)
    )


@functools.lru_cache(maxsize=1024)
def _model(op: str, types: Signature, attributes: tuple[tuple[str, int | float], ...]) -> ModelProto:
    return single_op_model(op, types, dict(attributes))


def model_of(op: str, inputs: Arrays, attributes: Attributes | None = None, static: bool = False) -> ModelProto:
    """A model of one node whose inputs have the dtypes and ranks (static: the shapes) of the arrays."""
    return _model(op, signature(op, inputs, static), tuple(sorted((attributes or {}).items())))


def options(threads: int = 1, optimise: bool = True) -> ort.SessionOptions:
    """Session options for tests: few threads, no log of errors that a test provokes."""
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    made.log_severity_level = 4
    level = ort.GraphOptimizationLevel
    made.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    return made


@functools.lru_cache(maxsize=512)
def _session(
    kernels: bool, optimise: bool, op: str, types: Signature, attributes: tuple[tuple[str, int | float], ...]
) -> ort.InferenceSession:
    model, settled = _model(op, types, attributes), options(optimise=optimise)
    if kernels:
        return onnx_ops.InferenceSession(model, settled, providers=["CPUExecutionProvider"])
    linked = onnx_ops.link(model).SerializeToString()
    return ort.InferenceSession(linked, settled, providers=["CPUExecutionProvider"])


def run_session(session: ort.InferenceSession, arrays: Mapping[str, Array]) -> Array:
    """The one output of a session, bfloat16 included."""
    feeds = {name: _ort_value(array) for name, array in arrays.items()}
    (value,) = session.run_with_ort_values(None, feeds)
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


def _in_session(
    op: str, inputs: Arrays, attributes: Attributes, static: bool, *, kernels: bool, optimise: bool = True
) -> Array:
    key = tuple(sorted(attributes.items()))
    session = _session(kernels, optimise, op, signature(op, inputs, static), key)
    return run_session(session, named(op, inputs))


@functools.lru_cache(maxsize=512)
def _evaluator(
    body: bool, op: str, types: Signature, attributes: tuple[tuple[str, int | float], ...]
) -> ReferenceEvaluator:
    model = _model(op, types, attributes)
    if body:
        return ReferenceEvaluator(onnx_ops.inline(model))
    return ReferenceEvaluator(model, new_ops=onnx_ops.reference_ops())


def _in_evaluator(op: str, inputs: Arrays, attributes: Attributes, static: bool, *, body: bool = False) -> Array:
    evaluator = _evaluator(body, op, signature(op, inputs, static), tuple(sorted(attributes.items())))
    # The operators of a body are NumPy's, which warns of infinities that are meant to be.
    with np.errstate(all="ignore" if body else None):
        (out,) = evaluator.run(None, named(op, inputs))
    assert isinstance(out, np.ndarray)
    return out


def _in_float64(op: str, inputs: Arrays, attributes: Attributes, static: bool) -> Array:
    del static
    filled = [*inputs, *[None] * (len(OPS[op].input_names) - len(inputs))]
    return OPS[op].reference(*filled, dtype=np.float64, **attributes)


KERNEL = Engine("kernel", functools.partial(_in_session, kernels=True))
PORTABLE = Engine("portable", functools.partial(_in_session, kernels=False), portable=True)
PORTABLE_AS_WRITTEN = Engine(
    "portable_unoptimised", functools.partial(_in_session, kernels=False, optimise=False), portable=True
)
EVALUATOR = Engine("evaluator", _in_evaluator)
REFERENCE = Engine("reference_float64", _in_float64)
PORTABLE_EVALUATOR = Engine("portable_evaluator", functools.partial(_in_evaluator, body=True), portable=True)
ENGINES = (KERNEL, PORTABLE, PORTABLE_AS_WRITTEN, PORTABLE_EVALUATOR, EVALUATOR, REFERENCE)

on_every_engine = pytest.mark.parametrize("engine", ENGINES, ids=str)
on_typed_engines = pytest.mark.parametrize("engine", [e for e in ENGINES if e is not REFERENCE], ids=str)
on_careful_engines = pytest.mark.parametrize("engine", [KERNEL, EVALUATOR, REFERENCE], ids=str)


# --- judging -------------------------------------------------------------------------------------------------------

# Largest error in units in the last place of the largest term, by op and dtype of the result.
# float32: a handful of roundings, each at most 0.5; one more for exp and for the division by a sum.
# 16 bits: one rounding at the store, of a float32 result that is off by a few 2**-13 (float16) or 2**-16 of a unit.
# float64: as float32, far below the 1e-12 (4504 units) that are promised. Hardshrink copies, so nothing may differ.
ULPS: dict[str, dict[str, float]] = {
    "KlDivBackward": {"float16": 0.51, "bfloat16": 0.51, "float32": 4, "float64": 8},
    "BinaryCrossEntropyWithLogitsBackward": {"float16": 0.51, "bfloat16": 0.51, "float32": 3.5, "float64": 8},
    "BatchNormElemtBackward": {"float16": 0.51, "bfloat16": 0.51, "float32": 4, "float64": 8},
    "HardshrinkBackward": {"float16": 0, "bfloat16": 0, "float32": 0, "float64": 0},
}
# The bodies go by the formula one operator at a time, and onnxruntime's float32 exp is off by up to 2.
PORTABLE_ULPS = {"float16": 0.51, "bfloat16": 0.51, "float32": 8, "float64": 8}
# A float64 sum of n terms, one after another, is off by up to n/2 units; 1e-12 of the largest term or of the sum.
SUM_ULPS = 1e-12 * 2**52
# CTC, absolute, per unit of grad_out, beyond the one rounding to the result's dtype: all is computed in float64, from
# exponents as large as the loss, so a loss of 1000 leaves 1000 * 2**-52; 1e-6 is what is promised for float32.
CTC_ABSOLUTE = {"float16": 1e-9, "bfloat16": 1e-9, "float32": 1e-9, "float64": 1e-12}


def snake(op: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", op).lower()


def output_dtype(op: str, inputs: Arrays) -> np.dtype[Any]:
    """The dtype of the output."""
    place = {
        "KlDivBackward": 1,
        "BinaryCrossEntropyWithLogitsBackward": 2,
        "CtcLossBackward": 1,
        "BatchNormElemtBackward": 1,
    }
    if op in place:
        typed = inputs[place[op]]
        assert typed is not None
        return typed.dtype
    kinds = {a.dtype for a in inputs if a is not None}
    if len(kinds) == 1:
        return kinds.pop()
    return FLOAT64 if FLOAT64 in kinds else FLOAT32


def tolerance(engine: Engine, op: str, dtype: np.dtype[Any], summed: bool = False) -> float:
    """In units in the last place of the largest term."""
    if summed and dtype == FLOAT64:
        return SUM_ULPS
    if engine.portable and ULPS[op][dtype.name]:
        return PORTABLE_ULPS[dtype.name]
    return ULPS[op][dtype.name]


def errors(
    op: str, actual: Array, inputs: Arrays, attributes: Attributes | None = None, *, portable: bool = False
) -> Array:
    """The error of each element, in units in the last place of the largest term.

    For CTC it is absolute, and 0 where the result is the expected one rounded. In a portable body a sigmoid below the
    smallest normal number may count as 0.
    """
    settled = dict(attributes or {})
    dtype = np.longdouble if actual.dtype == FLOAT64 else np.float64
    expected = getattr(oracles, snake(op))(*inputs, **settled, dtype=dtype)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    if op == "CtcLossBackward":
        with np.errstate(all="ignore"):
            got, want = actual.astype(np.float64), expected.astype(np.float64)
            ulps = oracles.ulp_error(actual, want)
            return np.where(ulps <= 0.51, 0.0, np.where(np.isinf(ulps), np.inf, np.abs(got - want)))
    largest = getattr(oracles, f"{snake(op)}_largest_term")(*inputs, **settled)
    error = oracles.ulp_error(actual, expected, largest)
    if portable and op == "BinaryCrossEntropyWithLogitsBackward":
        wide = any(a is not None and a.dtype == FLOAT64 for a in inputs)
        least = float(np.finfo(np.float64 if wide else np.float32).smallest_normal)
        with np.errstate(all="ignore"):
            scale = oracles.binary_cross_entropy_with_logits_backward_factor(*inputs, **settled)
            lost = np.abs(actual.astype(dtype) - expected) <= scale * least
        error = np.where(lost & (actual == 0), 0.0, error)
    return error


def check(
    engine: Engine,
    op: str,
    inputs: Arrays,
    attributes: Attributes | None = None,
    *,
    static: bool = False,
    limit: float | None = None,
) -> Array:
    """Run and compare with the oracle: dtype, shape, NaN and infinities exactly, numbers within the tolerance."""
    actual = engine(op, inputs, attributes, static=static)
    dtype = FLOAT64 if engine is REFERENCE else output_dtype(op, inputs)
    assert isinstance(actual, np.ndarray)
    assert actual.dtype == dtype, f"dtype {actual.dtype}, expected {dtype}"
    error = errors(op, actual, inputs, attributes, portable=engine.portable)
    if limit is None and op == "CtcLossBackward":
        grad = inputs[0]
        assert grad is not None
        sizes = np.abs(grad.astype(np.float64))
        limit = CTC_ABSOLUTE[dtype.name] * sizes.max(initial=1.0, where=np.isfinite(sizes))
    elif limit is None:
        summed = op == "KlDivBackward" and inputs[1] is not None and inputs[2] is not None
        summed = summed and np.broadcast_shapes(inputs[1].shape, inputs[2].shape) != inputs[1].shape  # type: ignore[union-attr]
        limit = tolerance(engine, op, dtype, summed)
    worst = float(error.max(initial=0.0))
    MEASURED[op, dtype.name, engine.name] = max(worst, MEASURED.get((op, dtype.name, engine.name), 0.0))
    if worst > limit:
        place = np.unravel_index(int(error.argmax()), error.shape)
        pytest.fail(f"{op} on {engine}: error {worst} at {tuple(map(int, place))}, {actual[place]!r}; allowed {limit}")
    return actual


MEASURED: dict[tuple[str, str, str], float] = {}
"""Largest error seen so far, by op, dtype of the result and engine."""


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Same dtype, shape and bits, NaN included."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


def assert_close(actual: Array, expected: Array, *, rtol: float = 0, atol: float = 0, what: str = "") -> None:
    """Same dtype and shape, and numbers that are near. (`strict` of NumPy's assert_allclose came with NumPy 2.)"""
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
