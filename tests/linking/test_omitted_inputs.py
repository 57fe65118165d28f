"""Nodes with and without the optional inputs of an op in one model: those that lack an input are given its default."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from backends import KERNEL, PORTABLE, Backend

import onnx_ops
from tests.ops import RECORDS
from tests.ops._shared.arrays import FLOAT16, FLOAT64
from tests.ops._shared.record import Call, Choice, DType, Record

OPTIONAL = [r for r in RECORDS.values() if r.op in onnx_ops.OPS and any(i.optional for i in r.inputs.values())]


def calls(record: Record, dtype: DType) -> Iterator[Call]:
    """With all inputs, and without each of those that are optional, or all of them where they need each other."""
    dtypes = {name: dtype if dtype in own.dtypes else record.plain.dtype(name) for name, own in record.inputs.items()}
    whole = record.call(Choice(dtypes, record.defaults, next(iter(record.forms.values()))))
    yield whole
    optional = [name for name, own in record.inputs.items() if own.optional]
    for names in [optional] if record.op == "FusedSgd" else [[name] for name in optional]:
        yield record.call_of({**whole.inputs, **dict.fromkeys(names)}, whole.attributes)


@pytest.mark.parametrize("backend", [KERNEL, PORTABLE], ids=str)
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT64], ids=str)
@pytest.mark.parametrize("record", OPTIONAL, ids=str)
def test_nodes_with_and_without_an_input(record: Record, dtype: DType, backend: Backend) -> None:
    own = list(calls(record, dtype))
    assert backend.run_in_one_session is not None
    for call, found in zip(own, backend.run_in_one_session(own), strict=True):
        alone = backend.run(call)
        for name in record.wanted(call):
            np.testing.assert_array_equal(found[name].astype(np.float64), alone[name].astype(np.float64), name)
