"""BatchNormElemtBackward: what it computes, on every backend."""

from __future__ import annotations

import math
from typing import Any

import backends
import cases
import numpy as np
import pytest
from backends import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, KERNEL, PORTABLE, Array, Backend, check
from hypothesis import given
from hypothesis import strategies as st

from tests.ops._shared import arrays

OP = "BatchNormElemtBackward"
INF, NAN = math.inf, math.nan
COUNTERS = (np.dtype(np.int32), FLOAT16, BFLOAT16, FLOAT32)


def make(
    shape: arrays.Shape,
    dtypes: Any = np.float32,
    statistics: Any = None,
    counter: Array | None = None,
    weighted: bool = True,
) -> list[Array | None]:
    """dtypes: of grad_out and input, or of each; statistics: of the five per-channel inputs, or of each."""
    grad_dtype, dtype = dtypes if isinstance(dtypes, tuple) else (dtypes, dtypes)
    kinds = statistics if isinstance(statistics, tuple) else (statistics or dtype,) * 5
    channels = (shape[1],)
    count = np.full(1, 37, np.int32) if counter is None else counter
    per_channel = [
        arrays.normal(channels, kinds[0], "mean"),
        arrays.uniform(channels, kinds[1], "invstd", low=0.3, high=3.0),
        arrays.normal(channels, kinds[2], "weight") if weighted else None,
        arrays.normal(channels, kinds[3], "sum_dy", scale=20.0),
        arrays.normal(channels, kinds[4], "sum_dy_xmu", scale=20.0),
    ]
    return [arrays.normal(shape, grad_dtype, "grad"), arrays.normal(shape, dtype, "input"), *per_channel, count]


# --- hand-made -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_and_small_statistics(dtype: type) -> None:
    """Statistics near the ends of the dtype's range, where the formula's terms still fit."""
    shape = (4, 6, 3)
    inputs = make(shape, dtype)
    exponent = 30.0 if dtype == np.float32 else 250.0
    for place in (3, 5, 6):
        assert inputs[place] is not None
        inputs[place] = inputs[place] * np.array([10.0 ** (s * exponent) for s in (-1, 1)] * 3, dtype)
    inputs[3] = np.where(np.arange(6) % 2 == 0, dtype(1), dtype(10.0 ** (-exponent / 2)))
    check(KERNEL, OP, inputs)


def test_products_that_float32_does_not_hold() -> None:
    """Beside float16 images, in one channel, whose scale makes float16 numbers of them."""
    inputs = make((2, 3, 300), FLOAT16, FLOAT32)
    for place, value in ((2, 100.0), (3, 1.0), (4, 1e-38), (6, 3e38)):
        statistic = inputs[place]
        assert statistic is not None
        statistic[1] = value
    check(KERNEL, OP, inputs)


# --- dtypes, shapes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [(20_000, 5), (3, 20_000), (2, 7, 10_007), (70, 65, 33), (300, 3, 100), (1, 1, 100_003), (5000, 1), (3, 40_000, 2)],
    ids=cases.shape_id,
)
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32, FLOAT64], ids=cases.shape_id)
def test_many_elements(dtype: np.dtype, shape: arrays.Shape) -> None:
    """Block ends fall anywhere in the runs."""
    check(KERNEL, OP, make(shape, dtype, FLOAT32 if dtype.itemsize == 2 else dtype))


@backends.on_every_backend
@pytest.mark.parametrize("rank", range(2, 9))
@pytest.mark.parametrize("static", [False, True], ids=["symbolic", "static"])
def test_ranks(backend: Backend, rank: int, static: bool) -> None:
    check(backend, OP, make((2, 3, 4, 1, 2, 3, 1, 2)[:rank]), static=static)
    check(backend, OP, make((1,) * rank), static=static)


@pytest.mark.parametrize("backend", [KERNEL, PORTABLE], ids=str)
@given(
    shape=cases.small_shapes(min_rank=2),
    dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 2),
    statistics=st.sampled_from(FLOATS),
    counter=st.sampled_from(COUNTERS),
    weighted=st.booleans(),
)
def test_any_shapes(
    backend: Backend,
    shape: arrays.Shape,
    dtypes: tuple[np.dtype, np.dtype],
    statistics: np.dtype,
    counter: np.dtype,
    weighted: bool,
) -> None:
    shape = (shape[0], max(shape[1], 1), *shape[2:])
    check(backend, OP, make(shape, dtypes, statistics, np.array([9, 2], counter), weighted))


# --- against others ------------------------------------------------------------------------------------------------
