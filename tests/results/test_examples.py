"""The example that each op carries, which its page shows and `onnx-ops doctor` runs, is right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from backends import BACKENDS, FLOATS, Backend, Call, assert_close, check_call, dtype_on, in_turns

from onnx_ops.core.op import Op
from onnx_ops.ops import OPS
from tests.ops import RECORDS
from tests.ops._shared.record import DType

each_op = pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)


def example_call(op: Op) -> Call:
    return Call(op.name, op.example.arrays(), op.example.attributes, tuple(op.example.outputs), label="example")


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@each_op
def test_example(op: Op, backend: Backend) -> None:
    outputs = backend.run(example_call(op))
    expected = op.example.expected()
    assert list(outputs) == list(expected)
    for name, actual in outputs.items():
        assert actual.dtype == dtype_on(backend, example_call(op), name)
        # The inputs are rounded to float32, and so is the result.
        assert_close(actual, expected[name].astype(actual.dtype), rtol=3e-7, atol=6e-8)


@in_turns(["name", "dtype"], itertools.product(OPS, FLOATS))
def test_every_dtype(name: str, dtype: DType, backend: Backend) -> None:
    """The call of the example, with all its floating inputs that may have a dtype in that."""
    call, inputs = example_call(OPS[name]), RECORDS[name].inputs
    arrays = {n: a.astype(dtype) for n, a in call.given.items() if a.dtype in FLOATS and dtype in inputs[n].dtypes}
    check_call(backend, call.but(arrays))


@each_op
def test_example_agrees_with_the_oracle(op: Op) -> None:
    expected = RECORDS[op.name].expected(example_call(op))
    for name, array in op.example.expected().items():
        np.testing.assert_allclose(array, expected[name], rtol=3e-7, atol=6e-8)
