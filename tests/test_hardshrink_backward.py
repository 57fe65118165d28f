"""HardshrinkBackward: what it computes, on every engine."""

from __future__ import annotations

import itertools
import math
from typing import Any

import cases
import engines
import golden
import numpy as np
import oracles
import pytest
from engines import FLOATS, KERNEL, Array, Engine, check
from hypothesis import given
from hypothesis import strategies as st

OP = "HardshrinkBackward"
INF, NAN = math.inf, math.nan


def make(grad_shape: cases.Shape, shape: cases.Shape, grad_dtype: Any, dtype: Any) -> list[Array]:
    return [cases.normal(grad_shape, grad_dtype, "grad"), cases.normal(shape, dtype, "self")]


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


@engines.on_every_engine
@pytest.mark.parametrize("lambd", [0.0, -0.0, -1.0, -INF, 0.3, 0.123456789, 1e-45, 1e-30, 3.4e38, INF])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_boundary_of_lambd(engine: Engine, dtype: np.dtype, lambd: float) -> None:
    """lambd is a float32, all 24 bits of it count; below 0 it counts as 0."""
    limit = max(np.float32(lambd), np.float32(0))
    with np.errstate(over="ignore", under="ignore"):
        near = np.array([limit, np.nextafter(limit, np.float32(INF)), np.nextafter(limit, np.float32(-INF))])
        wide = np.array([np.nextafter(np.float64(limit), INF), np.nextafter(np.float64(limit), -INF)])
        x = np.concatenate([near, wide, [0.0, 1.0, INF]]).astype(dtype)
    x = np.concatenate([x, -x])
    check(engine, OP, [np.arange(1, x.size + 1).astype(dtype), x], {"lambd": lambd})


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


@engines.on_every_engine
@pytest.mark.parametrize(
    ("grad_dtype", "dtype"), list(itertools.product(FLOATS, repeat=2)), ids=lambda dtype: dtype.name
)
def test_dtypes(engine: Engine, grad_dtype: np.dtype, dtype: np.dtype) -> None:
    check(engine, OP, make((3, 40), (40,), grad_dtype, dtype))


@engines.on_every_engine
@pytest.mark.parametrize(("first", "second"), cases.BROADCASTS, ids=cases.shape_id)
@pytest.mark.parametrize("static", [False, True], ids=["symbolic", "static"])
def test_broadcasting(engine: Engine, first: cases.Shape, second: cases.Shape, static: bool) -> None:
    inputs = make(first, second, np.float32, np.float32)
    assert check(engine, OP, inputs, static=static).shape == np.broadcast_shapes(first, second)


@pytest.mark.parametrize("engine", [KERNEL, engines.PORTABLE], ids=str)
@given(
    shapes=cases.broadcast_pairs(),
    dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 2),
    lambd=st.floats(-1, 2, width=32),
)
def test_any_shapes(engine: Engine, shapes: tuple[cases.Shape, cases.Shape], dtypes: tuple, lambd: float) -> None:
    check(engine, OP, make(*shapes, *dtypes), {"lambd": lambd})


@pytest.mark.parametrize("size", [1, 7, 255, 4096, 4097, 70_001])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_bits_are_copied(size: int, dtype: np.dtype) -> None:
    """Whole blocks and what is left over after them; every bit of a gradient that passes."""
    g, x = make((size,), (size,), dtype, dtype)
    passes = np.abs(x.astype(np.float64)) > 0.5
    engines.assert_same_bits(KERNEL(OP, [g, x]), np.where(passes, g, np.zeros((), dtype)))


@engines.on_typed_engines
@pytest.mark.parametrize("case", cases.golden_cases("hardshrink_backward"), ids=str)
def test_golden(engine: Engine, case: golden.Golden) -> None:
    actual = engine(OP, list(case.inputs.values()), case.attributes)
    assert actual.dtype == case.expected.dtype
    np.testing.assert_array_equal(actual.astype(np.float64), case.expected.astype(np.float64), strict=True)


@pytest.mark.parametrize("lambd", [0.0, 0.5, 0.3])
def test_against_torch(lambd: float) -> None:
    torch = pytest.importorskip("torch")
    g, x = make((50, 60), (50, 60), np.float32, np.float32)
    x.flat[:4] = [lambd, -lambd, np.nextafter(np.float32(lambd), np.float32(2)), 0]
    expected = torch.ops.aten.hardshrink_backward(torch.from_numpy(g), torch.from_numpy(x), lambd).numpy()
    np.testing.assert_array_equal(KERNEL(OP, [g, x], {"lambd": lambd}), expected, strict=True)


def test_is_the_derivative() -> None:
    x = cases.uniform((4, 5), np.float64, low=-2, high=2)
    x = np.where(np.abs(np.abs(x) - 0.5) < 1e-3, 1.0, x)  # not at the jump
    g = cases.normal((4, 5), np.float64)
    expected = oracles.finite_difference(lambda a: (g * oracles.hardshrink(a)).sum(), x)
    np.testing.assert_allclose(KERNEL(OP, [g, x]), expected, rtol=1e-8, atol=1e-8)
