"""HardshrinkBackward: what it computes, on every backend."""

from __future__ import annotations

import math

import backends
import cases
import numpy as np
import numpy.typing as npt
import pytest
from backends import FLOATS, KERNEL, Array, Backend, check
from hypothesis import given
from hypothesis import strategies as st

from tests.ops._shared import arrays

OP = "HardshrinkBackward"
INF, NAN = math.inf, math.nan


def make(grad_shape: arrays.Shape, shape: arrays.Shape, grad_dtype: npt.DTypeLike, dtype: npt.DTypeLike) -> list[Array]:
    return [arrays.normal(grad_shape, grad_dtype, "grad"), arrays.normal(shape, dtype, "self")]


def keeps_signs(backend: Backend) -> bool:
    """onnxruntime's Where adds the two halves of its result, so a gradient of -0 comes out of the body as +0."""
    return not backend.portable


@backends.on_typed_backends
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_by_hand(backend: Backend, dtype: np.dtype) -> None:
    x = np.array([-INF, -2.0, -0.5, -0.25, -0.0, 0.0, 0.5, 0.75, INF], dtype)
    g = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -0.0, 9.0], dtype)
    expected = [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.0, 9.0]
    backends.assert_result(backend(OP, [g, x]), expected, dtype, signs=keeps_signs(backend))


@backends.on_typed_backends
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_mask_off_gives_plus_zero(backend: Backend, dtype: np.dtype) -> None:
    """Whatever the gradient, also NaN, infinite or -0; NaN in self switches off."""
    g = np.array([NAN, INF, -INF, -0.0, -1.0, 1.0, NAN, INF], dtype)
    x = np.array([0.0, 0.5, -0.5, 0.1, -0.1, NAN, NAN, -NAN], dtype)
    backends.assert_result(backend(OP, [g, x]), np.zeros(8), dtype)


@backends.on_typed_backends
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_mask_on_passes_every_gradient(backend: Backend, dtype: np.dtype) -> None:
    tiny = np.finfo(dtype).smallest_subnormal if dtype.kind == "f" else 9.2e-41
    g = np.array([NAN, INF, -INF, -0.0, tiny, -tiny], dtype)
    x = np.full(6, -1.0, dtype)
    backends.assert_result(backend(OP, [g, x]), g.astype(np.float64), dtype, signs=keeps_signs(backend))


def test_lambd_keeps_its_last_bit() -> None:
    lambd = np.float32(0.123456789)
    x = np.array([lambd, np.nextafter(lambd, np.float32(1)), -lambd, -np.nextafter(lambd, np.float32(1))])
    actual = KERNEL(OP, [np.ones(4, np.float32), x], {"lambd": 0.123456789})
    backends.assert_result(actual, [0.0, 1.0, 0.0, 1.0], np.float32)
    exact = np.array([np.float64(lambd), np.nextafter(np.float64(lambd), 1)])
    backends.assert_result(KERNEL(OP, [np.ones(2), exact], {"lambd": 0.123456789}), [0.0, 1.0], np.float64)


def test_nan_lambd_lets_nothing_pass() -> None:
    actual = KERNEL(OP, [np.ones(3, np.float32), np.array([-INF, 0.0, 5.0], np.float32)], {"lambd": NAN})
    backends.assert_result(actual, np.zeros(3), np.float32)


@pytest.mark.parametrize("backend", [KERNEL, backends.PORTABLE], ids=str)
@given(
    shapes=cases.broadcast_pairs(),
    dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 2),
    lambd=st.floats(-1, 2, width=32),
)
def test_any_shapes(backend: Backend, shapes: tuple[arrays.Shape, arrays.Shape], dtypes: tuple, lambd: float) -> None:
    check(backend, OP, make(*shapes, *dtypes), {"lambd": lambd})


@pytest.mark.parametrize("size", [1, 7, 255, 4096, 4097, 70_001])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_bits_are_copied(size: int, dtype: np.dtype) -> None:
    """Whole blocks and what is left over after them; every bit of a gradient that passes."""
    g, x = make((size,), (size,), dtype, dtype)
    passes = np.abs(x.astype(np.float64)) > 0.5
    backends.assert_same_bits(KERNEL(OP, [g, x]), np.where(passes, g, np.zeros((), dtype)))
