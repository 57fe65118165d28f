"""BinaryCrossEntropyWithLogitsBackward: what it computes, on every backend."""

from __future__ import annotations

import math
from typing import Any

import backends
import cases
import numpy as np
import numpy.typing as npt
import pytest
from backends import FLOATS, KERNEL, PORTABLE, Array, Backend, check
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import binary_cross_entropy_with_logits_backward
from tests.ops._shared import arrays, numbers

OP = "BinaryCrossEntropyWithLogitsBackward"
INF, NAN = math.inf, math.nan
NONE, MEAN, SUM = range(3)
PRESENCE = [(False, False), (True, False), (False, True), (True, True)]
PRESENCE_IDS = ["neither", "weight", "pos_weight", "both"]


def make(
    shape: arrays.Shape,
    grad: arrays.Shape = (),
    weight: arrays.Shape | None = None,
    pos_weight: arrays.Shape | None = None,
    dtypes: Any = np.float32,
) -> list[Array | None]:
    kinds = dtypes if isinstance(dtypes, tuple) else (dtypes,) * 5
    return [
        arrays.normal(grad, kinds[0], "grad"),
        arrays.normal(shape, kinds[1], "self", scale=3.0),
        arrays.uniform(shape, kinds[2], "target"),
        None if weight is None else arrays.uniform(weight, kinds[3], "weight", low=0.5, high=2.0),
        None if pos_weight is None else arrays.uniform(pos_weight, kinds[4], "pos_weight", low=0.5, high=3.0),
    ]


# --- hand-made -----------------------------------------------------------------------------------------------------


@backends.on_every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_tails_keep_their_digits(backend: Backend, dtype: type, label: float) -> None:
    """The small gradient of a logit that is right by far, in kernels down to where it is subnormal."""
    edge = 103.0 if dtype == np.float32 else 744.0
    if backend.portable:
        edge = 87.0 if dtype == np.float32 else 708.0
    x = np.concatenate([np.linspace(0, edge, 3001), [16.0, 17.0, 33.0, 34.0, 40.0]]).astype(dtype)
    x = x if label else -x
    y = np.full(x.shape, label, dtype)
    g = np.ones((), dtype)
    actual = backend(OP, [g, x, y], {"reduction": NONE})
    reals = np.longdouble if actual.dtype == np.float64 else np.float64
    expected = binary_cross_entropy_with_logits_backward.split(g, x, y, reduction=NONE, dtype=reals)
    assert np.all(actual[np.abs(x) < edge - 1] != 0)
    assert numbers.ulp_error(actual, expected).max() <= 4


def test_tail_by_hand() -> None:
    x, y = np.float32([40.0, -40.0, 100.0]), np.float32([1.0, 0.0, 1.0])
    actual = KERNEL(OP, [np.ones((), np.float32), x, y], {"reduction": SUM})
    np.testing.assert_allclose(actual, [-math.exp(-40), math.exp(-40), -math.exp(-100)], rtol=3e-7, atol=3e-45)


@backends.on_careful_backends
@pytest.mark.parametrize("place", [0, 3], ids=["grad_output", "weight"])
def test_infinity_times_a_small_gradient(backend: Backend, place: int) -> None:
    """The difference in the formula is not 0 where float arithmetic would make it 0, so there is no NaN."""
    x, y = np.float32([60.0, -60.0, 60.0, -60.0]), np.float32([1.0, 0.0, 0.0, 1.0])
    inputs = [np.ones(4, np.float32), x, y, np.ones(4, np.float32)]
    inputs[place] = np.full(4, INF, np.float32)
    actual = backend(OP, inputs, {"reduction": NONE})
    np.testing.assert_array_equal(actual, [-INF, INF, INF, -INF])


# --- the ends of the range -----------------------------------------------------------------------------------------


def extreme_call(
    dtype: npt.DTypeLike, form: str, weighted: bool, pos_weighted: bool, shape: arrays.Shape = (30, 100)
) -> list[Array | None]:
    """Factors of all sizes, against logits near 0, far from it and of all sizes; the last in turn along the columns."""
    factor = () if form == "scalars" else shape
    logits = arrays.normal(shape, dtype, scale=100.0)
    logits[:, ::3] = arrays.extreme(shape, dtype, "logits")[:, ::3]
    logits[:, 1::3] = arrays.normal(shape, dtype)[:, 1::3]
    labels = arrays.extreme(shape, dtype, "labels")
    labels[::2] = arrays.uniform(shape, dtype)[::2]
    return [
        arrays.extreme(factor, dtype, "grad", form),
        logits,
        labels,
        arrays.extreme(factor, dtype, "weight") if weighted else None,
        arrays.extreme(factor, dtype, "pos_weight") if pos_weighted else None,
    ]


@backends.on_careful_backends
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
@pytest.mark.parametrize("form", ["scalars", "arrays"])
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
@pytest.mark.parametrize("reduction", [NONE, MEAN], ids=["none", "mean"])
def test_products_that_overflow_or_vanish_on_the_way(
    backend: Backend, dtype: np.dtype, form: str, weighted: bool, pos_weighted: bool, reduction: int
) -> None:
    """What the formula gives in exact arithmetic: its sign, its digits, and infinity only where it does not fit."""
    inputs = extreme_call(dtype, form, weighted, pos_weighted)
    actual = check(backend, OP, inputs, {"reduction": reduction})
    assert np.isfinite(actual).any()


@pytest.mark.parametrize("backend", [PORTABLE, backends.PORTABLE_AS_WRITTEN, backends.PORTABLE_EVALUATOR], ids=str)
@pytest.mark.parametrize("dtype", [d for d in FLOATS if d != backends.FLOAT64], ids=cases.shape_id)
@pytest.mark.parametrize("form", ["scalars", "arrays"])
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
def test_bodies_overflow_only_with_the_result(
    backend: Backend, dtype: np.dtype, form: str, weighted: bool, pos_weighted: bool
) -> None:
    """A function body may lose what is small; it makes no infinity, no NaN and no other sign."""
    inputs = extreme_call(dtype, form, weighted, pos_weighted)
    assert inputs[2] is not None
    inputs[2] = inputs[2] / np.array(2, dtype)  # the largest number itself is a few roundings from overflow
    actual = backend(OP, inputs, {"reduction": MEAN})
    expected = binary_cross_entropy_with_logits_backward.split(*inputs, reduction=MEAN)
    with np.errstate(over="ignore"):
        fits = np.isfinite((expected * (1 + 2.0**-20)).astype(dtype))
    assert np.isfinite(actual[fits]).all()
    assert not np.isnan(actual).any()
    largest = binary_cross_entropy_with_logits_backward.terms(*inputs, reduction=MEAN)
    clear = (actual != 0) & (np.abs(expected) > 1e-5 * largest)  # else a difference of two terms
    assert np.array_equal(np.signbit(actual)[clear], np.signbit(expected)[clear])


@backends.on_typed_backends
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (([2.0**120], [0.0], [0.0], [2.0**120], None), INF),
        (([2.0**120], [-INF], [-(2.0**-120)], [2.0**-120], [2.0**120]), 1.0),
        (([2.0**-100], [-INF], [2.0**100], [2.0**-100], [2.0**100]), -1.0),
        (([-(2.0**-126)], [-INF], [2.0**120], None, [2.0**120]), 2.0**114),
        (([2.0**-100], [INF], [-(2.0**100)], None, None), 1.0),
        (([2.0**-100], [INF], [-(2.0**100)], [INF], None), INF),
        (([2.0**-100], [INF], [INF], [2.0], None), NAN),
        (([2.0**100], [-INF], [0.0], [2.0**100], None), 0.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 700])
def test_products_by_hand(
    backend: Backend, inputs: tuple[list[float] | None, ...], expected: float, count: int
) -> None:
    """Where sigmoid(x) is 0, 0.5 or 1, alone and among others that are not extreme."""
    others = [1.0, 0.0, 0.0, 1.0, 1.0]
    given = [
        None if a is None else np.array([*a, *[other] * (count - 1)], np.float32)
        for a, other in zip(inputs, others, strict=True)
    ]
    actual = backend(OP, given, {"reduction": SUM})
    backends.assert_result(actual, [expected, *[0.5] * (count - 1)], actual.dtype, signs=False)


# --- dtypes, shapes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [KERNEL, PORTABLE], ids=str)
@given(
    shape=cases.small_shapes(),
    data=st.data(),
    dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 5),
    presence=st.sampled_from(PRESENCE),
    reduction=st.integers(0, 2),
)
def test_any_shapes(
    backend: Backend,
    shape: arrays.Shape,
    data: st.DataObject,
    dtypes: tuple[np.dtype, ...],
    presence: tuple[bool, bool],
    reduction: int,
) -> None:
    grad, weight, pos_weight = (data.draw(cases.shapes_into(shape)) for _ in range(3))
    inputs = make(shape, grad, weight if presence[0] else None, pos_weight if presence[1] else None, dtypes)
    check(backend, OP, inputs, {"reduction": reduction})


@pytest.mark.parametrize("size", [1, 7, 255, 4097, 70_001])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_long_runs(size: int, dtype: np.dtype) -> None:
    """Whole blocks and what is left over after them, with each operand broadcast and not."""
    check(KERNEL, OP, make((size,), (size,), (size,), (size,), dtype))
    check(KERNEL, OP, make((3, size), (3, 1), (size,), (1, 1), dtype))


# --- against others ------------------------------------------------------------------------------------------------
