"""What the ops compute, on every backend: the calls of their records against the records' oracles.

What is particular to an op is in a file of its own, `test_<op>.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import backends
import numpy as np
import pytest
from backends import FLOAT32, FLOAT64, FLOATS, KERNEL, Backend, check_call
from cases import check_each

import onnx_ops
from models.single_op import single_op_model
from onnx_ops import OPS
from tests.ops import RECORDS
from tests.ops._shared.record import Call, DType, Record

PRESENT = [record for name, record in RECORDS.items() if name in OPS]
each_record = pytest.mark.parametrize("record", PRESENT, ids=str)


def test_every_op_has_a_record() -> None:
    assert set(OPS) <= set(RECORDS)


def _named(calls: Iterator[Call]) -> list[Call]:
    made = list(calls)
    labels = [str(call) for call in made]
    assert len(set(labels)) == len(labels), [label for label in labels if labels.count(label) > 1]
    return made


PAIRS = _named(itertools.chain.from_iterable(record.combinations() for record in PRESENT))
CALLS = _named(itertools.chain.from_iterable(record.calls() for record in PRESENT))


def check_together(backend: Backend, calls: list[Call]) -> None:
    if calls:
        check_each(functools.partial(check_call, backend.with_outputs_of(calls)), calls)


@backends.in_turns(["call"], [(call,) for call in PAIRS], by=lambda call: call.op)
def test_pairs(rows: list[tuple[Call]], backend: Backend) -> None:
    """Every two dtypes, attributes and forms meet."""
    check_together(backend, [call for (call,) in rows])


@pytest.mark.full
@backends.on_every_backend
@each_record
def test_all_combinations(backend: Backend, record: Record) -> None:
    """All dtypes with all attributes; for an op of many inputs, every three of them."""
    count = 1
    for taken in record.inputs.values():
        count *= len(taken.dtypes) + taken.optional
    for call in record.combinations(None if count <= 256 else 3):
        check_call(backend, call)


@backends.in_turns(["call"], [(call,) for call in CALLS], by=lambda call: call.op)
def test_calls(rows: list[tuple[Call]], backend: Backend) -> None:
    """Shapes that broadcast, empty tensors, special values, the ends of the range."""
    # A function body may lose what is small.
    check_together(backend, [call for (call,) in rows if not (call.careful and backend.portable)])


@backends.in_turns(["record", "dtype"], itertools.product(PRESENT, FLOATS))
def test_worked(record: Record, dtype: DType, backend: Backend) -> None:
    """Results that are known without computing them."""
    cases = list(record.worked(dtype))
    backend = backend.with_outputs_of([worked.call for worked in cases])
    for worked in cases:
        outputs = backend.run(worked.call)
        assert tuple(outputs) == record.wanted(worked.call)
        for name, expected in worked.outputs.items():
            actual = outputs[name]
            assert actual.dtype == backends.dtype_on(backend, worked.call, name), worked.call.label
            wanted = np.asarray(expected, np.float64)
            assert actual.shape == wanted.shape, worked.call.label
            np.testing.assert_allclose(
                actual.astype(np.float64), wanted, worked.rtol, worked.atol, err_msg=worked.call.label
            )


@backends.on_every_backend
@pytest.mark.parametrize("record", [r for r in PRESENT if any(o.optional for o in r.outputs.values())], ids=str)
def test_outputs_left_out(record: Record, backend: Backend) -> None:
    """The others are the same without them."""
    whole = backend.run(record.plain)
    required = [name for name, output in record.outputs.items() if not output.optional]
    optional = [name for name, output in record.outputs.items() if output.optional]
    for count in range(len(optional) + 1):
        for some in itertools.combinations(optional, count):
            wanted = tuple(name for name in record.outputs if name in (*required, *some))
            if wanted:
                call = Call(record.op, record.plain.inputs, record.plain.attributes, outputs=wanted)
                outputs = backend.run(call)
                assert tuple(outputs) == wanted
                for name, array in outputs.items():
                    backends.assert_same_bits(array, whole[name])


# --- memory --------------------------------------------------------------------------------------------------------


@backends.on_every_backend
@each_record
def test_inputs_are_not_written_to(record: Record, backend: Backend) -> None:
    before = {name: array.copy() for name, array in record.plain.given.items()}
    backend.run(record.plain)
    for name, array in record.plain.given.items():
        backends.assert_same_bits(array, before[name])


LAYOUTS = {
    "transposed": lambda a: np.asarray(a.T.copy(order="C").T),
    "every_other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "backwards": lambda a: np.asarray(a[::-1].copy()[::-1]) if a.ndim else a,
}


@backends.in_turns(["record", "layout"], itertools.product(PRESENT, LAYOUTS))
def test_memory_layout_does_not_matter(record: Record, layout: str, backend: Backend) -> None:
    """NumPy arrays that do not lie in memory in order."""
    expected = backend.run(record.plain)
    changed = record.plain.but({name: LAYOUTS[layout](array) for name, array in record.plain.given.items()})
    for name, array in backend.run(changed).items():
        backends.assert_same_bits(array, expected[name])


# --- the same bits whatever the number of threads ------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [FLOAT32, *(pytest.param(dtype, marks=pytest.mark.full) for dtype in (np.dtype(np.float16), FLOAT64))],
    ids=str,
)
@each_record
def test_same_bits_for_any_number_of_threads(record: Record, dtype: DType) -> None:
    for call in record.large(dtype):
        model, expected = backends.model_of(call), check_call(KERNEL, call)
        for threads in (2, 3):
            session = backends.kernel_session(model, threads)
            for _ in range(2):
                for name, array in backends.run_outputs(session, call.given).items():
                    backends.assert_same_bits(array, expected[name])


def _mixed(record: Record) -> Iterator[Call]:
    """The first calls whose floating inputs have several dtypes."""
    calls = (call for call in record.combinations() if len({a.dtype for a in call.given.values()} & set(FLOATS)) > 1)
    return itertools.islice(calls, 3)


@pytest.mark.parametrize("call", [call for record in RECORDS.values() for call in _mixed(record)], ids=str)
def test_dtypes_of_outputs_are_known_where_ranks_are_not(call: Call) -> None:
    types = [None if array is None else (array.dtype, None) for array in RECORDS[call.op].arrays(call)]
    session = onnx_ops.InferenceSession(single_op_model(call.op, types, call.attributes, call.outputs))
    found = {name: array.dtype for name, array in backends.run_outputs(session, call.given).items()}
    assert found == {name: RECORDS[call.op].output_dtype(call, name) for name in found}
