"""The example that each op carries, which its page shows and `onnx-ops doctor` runs, is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracles
import pytest
from engines import ENGINES, FLOATS, REFERENCE, Engine, assert_close, check, snake

import onnx_ops


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("op", onnx_ops.OPS.values(), ids=lambda op: op.name)
def test_example(op: onnx_ops.op.Op, engine: Engine) -> None:
    arrays = op.example.arrays()
    inputs = [arrays.get(name) for name in op.input_names]
    actual = engine(op.name, inputs, op.example.attributes)
    assert actual.dtype == (np.float64 if engine is REFERENCE else np.float32)
    # The inputs are rounded to float32, and so is the result.
    assert_close(actual, op.example.expected().astype(actual.dtype), rtol=3e-7, atol=6e-8)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", onnx_ops.OPS.values(), ids=lambda op: op.name)
def test_every_dtype(op: onnx_ops.op.Op, dtype: np.dtype[Any], engine: Engine) -> None:
    """The call of the example, with all its floating inputs in one dtype."""
    arrays = {name: a.astype(dtype) if a.dtype in FLOATS else a for name, a in op.example.arrays().items()}
    check(engine, op.name, [arrays.get(name) for name in op.input_names], op.example.attributes)


@pytest.mark.parametrize("op", onnx_ops.OPS.values(), ids=lambda op: op.name)
def test_example_agrees_with_the_oracle(op: onnx_ops.op.Op) -> None:
    arrays = op.example.arrays()
    inputs = [arrays.get(name) for name in op.input_names]
    expected = getattr(oracles, snake(op.name))(*inputs, **op.example.attributes, dtype=np.float64)
    np.testing.assert_allclose(op.example.expected(), expected, rtol=3e-7, atol=6e-8)
