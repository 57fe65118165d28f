"""The records' oracles against results that are known, PyTorch's stored results, and PyTorch itself.

What oracles of one op need besides, such as sums over all alignments, is in `test_oracles.py`.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import golden
import numpy as np
import pytest
from backends import FLOAT64, FLOATS, check_call, in_turns
from cases import GOLDEN

from onnx_ops import OPS
from tests.ops import RECORDS
from tests.ops._shared import with_torch
from tests.ops._shared.numbers import Array, ulp_error
from tests.ops._shared.record import Call, DType, Record

each_record = pytest.mark.parametrize("record", RECORDS.values(), ids=str)
each_golden = pytest.mark.parametrize("case", GOLDEN, ids=str)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@each_record
def test_worked(record: Record, dtype: DType) -> None:
    for worked in record.worked(dtype):
        expected = record.expected(worked.call)
        for name, numbers in worked.outputs.items():
            wanted = np.asarray(numbers, np.float64)
            assert expected[name].shape == wanted.shape
            rtol = max(worked.rtol, 1e-15)
            np.testing.assert_allclose(expected[name], wanted, rtol, worked.atol, err_msg=f"{worked.call} {name}")


@each_record
def test_results_are_wide(record: Record) -> None:
    """In the dtype that is asked for, of all outputs, whatever the inputs are."""
    for wide in (np.float64, np.longdouble):
        for call in (record.plain, *record.worked(FLOATS[1])):
            outputs = record.expected(call if isinstance(call, Call) else call.call, wide)
            assert list(outputs) == list(record.outputs)
            assert {array.dtype for array in outputs.values()} == {np.dtype(wide)}


@each_record
def test_terms_have_the_shape_of_the_results(record: Record) -> None:
    for call in record.combinations():
        expected = record.expected(call)
        for name, array in record.largest_terms(call).items():
            assert array.shape == expected[name].shape


def _wide(call: Call) -> Call:
    """The call in float64."""
    inputs = {
        n: a if a is None or a.dtype not in FLOATS or n == "targets" else a.astype(FLOAT64)
        for n, a in call.inputs.items()
    }
    return replace(call, inputs=inputs, attributes={n: v for n, v in call.attributes.items() if n != "stash_type"})


def _comparable(call: Call, name: str, array: Array) -> Array:
    """Of forward variables, what torch writes: past the lengths it leaves memory as it is."""
    if name != "log_alpha":
        return array
    _, steps, states = array.shape
    inside = np.arange(steps)[:, None] < call.given["input_lengths"].astype(int)[:, None, None]
    inside = inside & (np.arange(states) < 2 * call.given["target_lengths"].astype(int)[:, None, None] + 1)
    return np.exp(np.where(inside, array, -np.inf))


@pytest.mark.parametrize("record", [r for r in RECORDS.values() if r.torch and not r.torch_draws], ids=str)
def test_against_torch(record: Record) -> None:
    torch = pytest.importorskip("torch")
    compared = 0
    for call in map(_wide, record.combinations()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # kl_div advises batchmean over mean
            assert record.torch
            run = record.torch(torch, call)
            if run is None or not _torch_takes(call):
                continue
            results = run()
        results = results if isinstance(results, tuple) else (results,)
        expected, sizes = record.expected(call), record.largest_terms(call)
        for (name, wanted), tensor in zip(expected.items(), results, strict=False):
            actual, wanted = (_comparable(call, name, a) for a in (with_torch.array(torch, tensor), wanted))
            largest = sizes.get(name, np.abs(wanted))
            finite = largest[np.isfinite(largest)]
            scale = float(finite.max(initial=1e-300))
            np.testing.assert_allclose(actual, wanted, rtol=1e-11, atol=1e-12 * scale, err_msg=f"{call} {name}")
            compared += 1
    assert compared > 3


def _torch_takes(call: Call) -> bool:
    """torch's CTC wants lengths that the longest target fits, and its impossible alignments are another test's."""
    lengths = call.inputs.get("input_lengths")
    return lengths is None or bool(lengths.size and lengths.min() > 0)


@each_golden
def test_golden(case: golden.Golden) -> None:
    record, call = _of_golden(case)
    (name,) = record.outputs
    expected = record.expected(call, np.longdouble)[name]
    assert expected.shape == case.expected.shape
    wanted = case.expected.astype(np.float64)
    np.testing.assert_allclose(expected.astype(np.float64), wanted, rtol=case.rtol, atol=case.atol)
    if not record.op.startswith("Ctc"):
        # Half types are torch's float64 rounded once; float32 and float64 are rounded per step, statistics included.
        error = ulp_error(case.expected, expected, record.largest_terms(call).get(name))
        assert error.max(initial=0.0) <= (0.51 if case.expected.dtype.itemsize == 2 else 8)


@in_turns(["case"], [(case,) for case in GOLDEN])
def test_golden_on_backends(case: golden.Golden, backend: object) -> None:
    record, call = _of_golden(case)
    assert record.op in OPS
    (actual,) = check_call(backend, call).values()  # type: ignore[arg-type]
    wanted = case.expected.astype(np.float64)
    # Both are off by as much; where the op only copies, neither is.
    np.testing.assert_allclose(actual.astype(np.float64), wanted, rtol=2 * case.rtol, atol=2 * case.atol)


def _of_golden(case: golden.Golden) -> tuple[Record, Call]:
    op = re.sub(r"(?:^|_)([a-z])", lambda match: match[1].upper(), case.op)
    return RECORDS[op], Call(op, case.inputs, case.attributes, label=case.id)
