"""`onnx_ops.run`: ops on arrays, beside the oracles of the ops' records."""

from __future__ import annotations

import functools
from typing import Any

import backends
import ml_dtypes
import numpy as np
import pytest
from backends import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Backend, assert_same_bits

import onnx_ops
from onnx_ops.arrays import execution
from onnx_ops.ops import OPS
from tests.ops import RECORDS
from tests.ops._shared.record import Call, Record

each_record = pytest.mark.parametrize("record", [RECORDS[name] for name in OPS], ids=str)
each_backend = pytest.mark.parametrize("backend", ["kernel", "portable", "reference"])


def outputs_of(call: Call, **how: Any) -> dict[str, np.ndarray]:
    """The outputs of a call that are there, by name."""
    inputs = [call.inputs.get(name) for name in OPS[call.op].input_names]
    result = onnx_ops.run(call.op, *inputs, **call.attributes, **how)
    names = OPS[call.op].output_names
    values = result._asdict() if isinstance(result, tuple) else {names[0]: result}
    assert tuple(values) == names
    return {name: value for name, value in values.items() if value is not None}


def on(backend: str) -> Backend:
    return Backend(f"run_{backend}", functools.partial(outputs_of, backend=backend), portable=backend == "portable")


@each_backend
@each_record
def test_results(record: Record, backend: str) -> None:
    """Beside the oracle."""
    backends.check_call(on(backend), record.plain)


@pytest.mark.full
@each_backend
@each_record
def test_results_of_other_calls(record: Record, backend: str) -> None:
    """They differ in dtypes, attributes, and inputs that are omitted."""
    calls = [call for call in record.combinations() if call.outputs is None]
    for call in calls[:: max(1, len(calls) // 6)]:
        backends.check_call(on(backend), call)


@each_record
def test_golden_results(record: Record) -> None:
    """In float64, as the reference computes them."""
    call = record.plain
    expected = backends.REFERENCE.run(call)
    found = outputs_of(call, dtype="float64")
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert_same_bits(array, expected[name])


@each_record
def test_refusals(record: Record) -> None:
    """Those of the record; a node can also ask for an output without the input that it requires."""
    required = {output.requires for output in OPS[record.op].signature.outputs}
    for refusal, call in record.wrong_calls():
        omitted = {name for name, array in refusal.change.items() if array is None}
        if refusal.outputs is not None or not omitted & required:
            with pytest.raises(onnx_ops.OpError) as error:
                outputs_of(call)
            assert error.value.op_type == call.op
            assert [word for word in refusal.words if word not in str(error.value)] == []


GRAD, SELF, TARGET = (np.linspace(low, 1, 6, dtype=np.float32).reshape(2, 3) for low in (-1, -2, 0.5))
EXPECTED = -GRAD * TARGET / 6


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32, FLOAT64], ids=str)
@each_backend
def test_by_position_and_by_name(backend: Any, dtype: np.dtype) -> None:
    grad, own, target = (a.astype(dtype) for a in (GRAD, SELF, TARGET))
    by_name = onnx_ops.run("KlDivBackward", target=target, self=own, grad_output=grad, reduction=1, backend=backend)
    mixed = onnx_ops.run("KlDivBackward", grad, target=target, self=own, reduction="mean", backend=backend)
    assert by_name.dtype == dtype
    assert_same_bits(by_name, mixed)
    error = np.abs(by_name.astype(np.float64) - EXPECTED).max()
    assert error < {1: 4e-3, 2: 2e-3, 4: 1e-7, 8: 1e-7}[dtype.itemsize]


def test_words_of_enumerations() -> None:
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    one = np.ones_like(x)
    by_word = onnx_ops.run("GeluBackwardV2", one, x, approximate="tanh")
    assert_same_bits(by_word, onnx_ops.run("GeluBackwardV2", one, x, approximate=1))
    assert not np.array_equal(by_word, onnx_ops.run("GeluBackwardV2", one, x, approximate="none"))
    with pytest.raises(onnx_ops.OpError, match=r"'approximate' is 'erf', expected one of 0 \(none\), 1 \(tanh\)"):
        onnx_ops.run("GeluBackwardV2", one, x, approximate="erf")


@each_backend
def test_several_outputs_and_one_that_needs_an_omitted_input(backend: Any) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    mean, invstd = onnx_ops.run("BatchNormStats", x, backend=backend)
    np.testing.assert_allclose(mean, x.mean((0, 2)))
    stats = onnx_ops.run("BatchNormGatherStatsWithCounts", x, mean[None], invstd[None], counts=np.float32([4]))
    np.testing.assert_allclose(stats.mean_all, mean)
    assert stats.running_mean_out is None
    running = np.zeros(2, np.float32)
    stats = onnx_ops.run("BatchNormGatherStatsWithCounts", x, mean[None], invstd[None], running, running, mean[:1] + 4)
    np.testing.assert_allclose(stats.running_mean_out, mean * 0.1, rtol=1e-6)


@each_backend
@pytest.mark.parametrize(
    "grad",
    [
        np.float32(2),
        np.array(2, ml_dtypes.bfloat16),
        np.ones((0, 3), ml_dtypes.bfloat16),
        np.ones((3, 2), ">f4").T,
        np.ones((4, 6), np.float64)[::2, ::2],
    ],
    ids=["scalar", "bfloat16", "empty", "big-endian", "strided"],
)
def test_layouts(grad: np.ndarray, backend: Any) -> None:
    """Any memory layout; results are native and contiguous, and never an input itself."""
    before = np.array(grad)
    result = onnx_ops.run("HardshrinkBackward", grad, grad, lambd=0.5, backend=backend)
    assert result.shape == grad.shape
    assert result.dtype == grad.dtype.newbyteorder("=")
    assert np.array_equal(result, grad)
    assert not np.shares_memory(result, grad)
    result[...] = 0
    assert np.array_equal(grad, before)


def test_result_of_an_op_that_passes_its_input_on_is_new() -> None:
    x = np.ones(3, np.float32)
    for backend in ("kernel", "portable", "reference"):
        assert not np.shares_memory(onnx_ops.run("OptimizationBarrier", x, x, backend=backend), x)  # type: ignore[arg-type]


def test_sessions_are_kept() -> None:
    """One for each op, dtypes, ranks and attributes; sizes may change."""
    execution._session.cache_clear()
    for size in (1, 5, 5):
        x = np.linspace(-2, 2, size, dtype=np.float32)
        assert np.array_equal(onnx_ops.run("Hardshrink", x, lambd=1), np.where(np.abs(x) > 1, x, 0))
    assert execution._session.cache_info().misses == 1
    onnx_ops.run("Hardshrink", x, lambd=0.75)
    onnx_ops.run("Hardshrink", x.astype(np.float64), lambd=1)
    onnx_ops.run("Hardshrink", x, lambd=1, backend="portable")
    assert execution._session.cache_info().misses == 4


X = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (["Hardsrink", X], {}, "Hardsrink: no such op in domain aclnn"),
        (["Hardshrink"], {}, "required input 'self' is missing"),
        (["Hardshrink", X, X], {}, "got 2 inputs, expected at most 1: self"),
        (["Hardshrink", X], {"self": X}, "input 'self' is given by position and by name"),
        (["Hardshrink", X], {"lambda": 1}, "unknown input or attribute 'lambda', expected inputs self; attributes "),
        (["Hardshrink", X], {"lambd": "wide"}, "attribute 'lambd' is 'wide', expected a number"),
        (["Hardshrink", X], {"lambd": None}, "attribute 'lambd' is None, expected a number"),
        (["Hardshrink", [1.0]], {}, "input 'self' is a list, expected an array"),
        (["Hardshrink", np.ma.masked_less(X, 0)], {}, "input 'self' is a masked array"),
        (["Hardshrink", np.array(["a"])], {}, "input 'self' has dtype string, expected one of bfloat16, double, float"),
        (["Hardshrink", X.astype(int)], {}, "input 'self' has dtype int64, expected one of bfloat16, double, float"),
        (["Hardshrink", np.array([None])], {}, "input 'self' has dtype string, expected one of"),
        (["Hardshrink", X], {"backend": "gpu"}, "backend is 'gpu', expected one of kernel, reference, portable"),
        (["Hardshrink", X], {"dtype": "float16"}, "dtype is float16, expected float64"),
        (["Hardshrink", X], {"dtype": "double", "backend": "kernel"}, "backend is 'kernel', expected 'reference'"),
        (["KlDiv", X, np.ones(3, np.float32)], {}, r"input 'target' has shape \(3,\), expected one that broadcasts"),
        (["MaxPool2dWithIndices", X], {}, "required attribute 'kernel_size' is missing"),
    ],
)  # fmt: skip
def test_wrong_calls(arguments: list[Any], named: dict[str, Any], message: str) -> None:
    with pytest.raises(onnx_ops.OpError, match=message):
        onnx_ops.run(*arguments, **named)


def test_one_session_serves_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    x = np.linspace(-2, 2, 10_000, dtype=np.float32)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda lambd: onnx_ops.run("Hardshrink", x, lambd=lambd), [0.5, 1.0] * 20))
    for lambd, result in zip([0.5, 1.0] * 20, found, strict=True):
        assert np.array_equal(result, np.where(np.abs(x) > lambd, x, 0))
