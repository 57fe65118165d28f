"""HardshrinkBackward: what it computes, on every engine."""

from __future__ import annotations

import math
from typing import Any

import cases
import engines
import numpy as np
import pytest
from engines import FLOATS, KERNEL, Array, Engine, check
from hypothesis import given
from hypothesis import strategies as st

from tests.ops._shared import arrays

OP = "HardshrinkBackward"
INF, NAN = math.inf, math.nan


def make(grad_shape: arrays.Shape, shape: arrays.Shape, grad_dtype: Any, dtype: Any) -> list[Array]:
    return [arrays.normal(grad_shape, grad_dtype, "grad"), arrays.normal(shape, dtype, "self")]


def keeps_signs(engine: Engine) -> bool:
    """onnxruntime's Where adds the two halves of its result, so a gradient of -0 comes out of the body as +0."""
    return not engine.portable


@engines.on_typed_engines
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_by_hand(engine: Engine, dtype: np.dtype) -> None:
    x = np.array([-INF, -2.0, -0.5, -0.25, -0.0, 0.0, 0.5, 0.75, INF], dtype)
    g = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -0.0, 9.0], dtype)
    expected = [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.0, 9.0]
    engines.assert_result(engine(OP, [g, x]), expected, dtype, signs=keeps_signs(engine))


@engines.on_typed_engines
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_mask_off_gives_plus_zero(engine: Engine, dtype: np.dtype) -> None:
    """Whatever the gradient, also NaN, infinite or -0; NaN in self switches off."""
    g = np.array([NAN, INF, -INF, -0.0, -1.0, 1.0, NAN, INF], dtype)
    x = np.array([0.0, 0.5, -0.5, 0.1, -0.1, NAN, NAN, -NAN], dtype)
    engines.assert_result(engine(OP, [g, x]), np.zeros(8), dtype)


@engines.on_typed_engines
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_mask_on_passes_every_gradient(engine: Engine, dtype: np.dtype) -> None:
    tiny = np.finfo(dtype).smallest_subnormal if dtype.kind == "f" else 9.2e-41
    g = np.array([NAN, INF, -INF, -0.0, tiny, -tiny], dtype)
    x = np.full(6, -1.0, dtype)
    engines.assert_result(engine(OP, [g, x]), g.astype(np.float64), dtype, signs=keeps_signs(engine))


def test_lambd_keeps_its_last_bit() -> None:
    lambd = np.float32(0.123456789)
    x = np.array([lambd, np.nextafter(lambd, np.float32(1)), -lambd, -np.nextafter(lambd, np.float32(1))])
    actual = KERNEL(OP, [np.ones(4, np.float32), x], {"lambd": 0.123456789})
    engines.assert_result(actual, [0.0, 1.0, 0.0, 1.0], np.float32)
    exact = np.array([np.float64(lambd), np.nextafter(np.float64(lambd), 1)])
    engines.assert_result(KERNEL(OP, [np.ones(2), exact], {"lambd": 0.123456789}), [0.0, 1.0], np.float64)


def test_nan_lambd_lets_nothing_pass() -> None:
    actual = KERNEL(OP, [np.ones(3, np.float32), np.array([-INF, 0.0, 5.0], np.float32)], {"lambd": NAN})
    engines.assert_result(actual, np.zeros(3), np.float32)


@pytest.mark.parametrize("engine", [KERNEL, engines.PORTABLE], ids=str)
@given(
    shapes=cases.broadcast_pairs(),
    dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 2),
    lambd=st.floats(-1, 2, width=32),
)
def test_any_shapes(engine: Engine, shapes: tuple[arrays.Shape, arrays.Shape], dtypes: tuple, lambd: float) -> None:
    check(engine, OP, make(*shapes, *dtypes), {"lambd": lambd})


@pytest.mark.parametrize("size", [1, 7, 255, 4096, 4097, 70_001])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_bits_are_copied(size: int, dtype: np.dtype) -> None:
    """Whole blocks and what is left over after them; every bit of a gradient that passes."""
    g, x = make((size,), (size,), dtype, dtype)
    passes = np.abs(x.astype(np.float64)) > 0.5
    engines.assert_same_bits(KERNEL(OP, [g, x]), np.where(passes, g, np.zeros((), dtype)))
