"""BatchNormElemtBackward: what it computes, on every engine."""

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
from engines import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, KERNEL, PORTABLE, Array, Engine, check
from hypothesis import given
from hypothesis import strategies as st

OP = "BatchNormElemtBackward"
INF, NAN = math.inf, math.nan
PER_CHANNEL = ("mean", "invstd", "weight", "sum_dy", "sum_dy_xmu")
COUNTERS = (np.dtype(np.int32), FLOAT16, BFLOAT16, FLOAT32)


def make(
    shape: cases.Shape,
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
    arrays = [
        cases.normal(channels, kinds[0], "mean"),
        cases.uniform(channels, kinds[1], "invstd", low=0.3, high=3.0),
        cases.normal(channels, kinds[2], "weight") if weighted else None,
        cases.normal(channels, kinds[3], "sum_dy", scale=20.0),
        cases.normal(channels, kinds[4], "sum_dy_xmu", scale=20.0),
    ]
    return [cases.normal(shape, grad_dtype, "grad"), cases.normal(shape, dtype, "input"), *arrays, count]


# --- hand-made -----------------------------------------------------------------------------------------------------


@engines.on_typed_engines
@pytest.mark.parametrize("weighted", [True, False], ids=["weight", "no_weight"])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_by_hand(engine: Engine, dtype: np.dtype, weighted: bool) -> None:
    """n = 4, two channels: sum_dy / n = 1, 2 and invstd**2 * sum_dy_xmu / n = 1, -1."""
    grad_out, x = np.array([[3.0, 2.0], [1.0, 5.0]], dtype), np.array([[2.0, 1.0], [0.0, 4.0]], dtype)
    mean, invstd, weight = np.array([1.0, 2.0], dtype), np.array([2.0, 0.5], dtype), np.array([0.5, -4.0], dtype)
    sum_dy, sum_dy_xmu = np.array([4.0, 8.0], dtype), np.array([1.0, -16.0], dtype)
    counter = np.array([1, 3], np.int32)
    inputs = [grad_out, x, mean, invstd, weight if weighted else None, sum_dy, sum_dy_xmu, counter]
    # channel 0: (3 - 1 - 1*1) * 2 = 2, (1 - 1 + 1*1) * 2 = 2; channel 1: (2 - 2 - 1) / 2, (5 - 2 + 2) / 2
    expected = np.array([[2.0, -0.5], [2.0, 2.5]])
    engines.assert_result(engine(OP, inputs), expected * ([0.5, -4.0] if weighted else 1.0), dtype)


@engines.on_typed_engines
def test_channel_is_axis_1(engine: Engine) -> None:
    """Nothing but the weight differs between the channels."""
    one, zero = np.ones(3, np.float32), np.zeros(3, np.float32)
    for shape in [(2, 3), (2, 3, 3), (3, 3, 3, 3), (1, 3, 2, 1, 2), (2, 3, 1, 1, 1, 1, 1, 2)]:
        ones = np.ones(shape, np.float32)
        weight = np.array([1.0, 2.0, 3.0], np.float32)
        actual = engine(OP, [ones, ones, zero, one, weight, zero, zero, np.ones((), np.float32)])
        expected = np.broadcast_to(weight.reshape((3,) + (1,) * (len(shape) - 2)), shape)
        engines.assert_result(actual, expected, np.float32)


@engines.on_every_engine
@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("value", [NAN, INF, -INF, 0.0])
def test_special_values(engine: Engine, place: int, value: float) -> None:
    """In one channel of one input; the other channels do not see it, unless it is the counter."""
    inputs = make((3, 4, 5), counter=np.full(1, 37.0, np.float32))
    array = inputs[place]
    assert array is not None
    if array.ndim == 3:
        array[:, 2] = value
    else:
        array[min(2, array.size - 1)] = value
    actual = check(engine, OP, inputs)
    assert place == 7 or np.isfinite(actual[:, [0, 1, 3]]).all()


@engines.on_every_engine
@pytest.mark.parametrize("shape", [(0, 3), (2, 3, 0), (0, 1, 0), (2, 3, 0, 4)], ids=cases.shape_id)
def test_empty(engine: Engine, shape: cases.Shape) -> None:
    assert check(engine, OP, make(shape)).shape == shape


@engines.on_every_engine
@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=cases.shape_id)
def test_empty_counter(engine: Engine, shape: cases.Shape) -> None:
    """n = 0: the sums are divided by 0."""
    check(engine, OP, make((3, 2, 4), counter=np.zeros(shape, np.float32)))


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


# --- dtypes, shapes ------------------------------------------------------------------------------------------------


@engines.on_every_engine
@pytest.mark.parametrize("weighted", [True, False], ids=["weight", "no_weight"])
@pytest.mark.parametrize(
    "dtypes", list(itertools.product(FLOATS, repeat=3)), ids=lambda kinds: "-".join(d.name for d in kinds)
)
def test_dtypes(engine: Engine, dtypes: tuple[np.dtype, ...], weighted: bool) -> None:
    """Of grad_out, input and the statistics; counters alternate along the mixtures."""
    place = sum(FLOATS.index(d) * 4**i for i, d in enumerate(dtypes))
    counter = np.array([5, 32], COUNTERS[(place + place // 4) % 4])
    check(engine, OP, make((3, 4, 7), dtypes[:2], dtypes[2], counter, weighted))


@engines.on_every_engine
@pytest.mark.parametrize("name", PER_CHANNEL)
@pytest.mark.parametrize(("dtype", "other"), list(itertools.permutations(FLOATS, 2)), ids=lambda dtype: dtype.name)
def test_one_statistic_of_another_dtype(engine: Engine, name: str, dtype: np.dtype, other: np.dtype) -> None:
    kinds = tuple(other if name == own else dtype for own in PER_CHANNEL)
    check(engine, OP, make((2, 3, 5), dtype, kinds))


@engines.on_every_engine
@pytest.mark.parametrize("counter_dtype", COUNTERS, ids=cases.shape_id)
@pytest.mark.parametrize("rank", range(9))
def test_counters(engine: Engine, counter_dtype: np.dtype, rank: int) -> None:
    """One count per worker, in any shape."""
    counter = np.arange(1, 2 ** min(rank, 3) + 1).reshape([2] * min(rank, 3) + [1] * (rank - 3)).astype(counter_dtype)
    check(engine, OP, make((2, 3, 5), counter=counter))


@engines.on_typed_engines
def test_counts_add_up_beyond_their_dtype(engine: Engine) -> None:
    """The sum of float16 counts may exceed float16, that of int32 counts int32."""
    check(engine, OP, make((2, 3, 5), counter=np.full(8, 60000, np.float16)))
    check(engine, OP, make((2, 3, 5), counter=np.full(4, 2_000_000_000, np.int32)))


@engines.on_every_engine
@pytest.mark.parametrize("inner", [1, 2, 7, 31, 32, 33, 1000])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_channel_runs(engine: Engine, dtype: np.dtype, inner: int) -> None:
    """Runs of one channel, short and long; 5 channels after one another fill no block evenly."""
    check(engine, OP, make((3, 5, inner), dtype, FLOAT32 if dtype.itemsize == 2 else dtype))


@pytest.mark.parametrize(
    "shape",
    [(20_000, 5), (3, 20_000), (2, 7, 10_007), (70, 65, 33), (300, 3, 100), (1, 1, 100_003), (5000, 1), (3, 40_000, 2)],
    ids=cases.shape_id,
)
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32, FLOAT64], ids=cases.shape_id)
def test_many_elements(dtype: np.dtype, shape: cases.Shape) -> None:
    """Block ends fall anywhere in the runs."""
    check(KERNEL, OP, make(shape, dtype, FLOAT32 if dtype.itemsize == 2 else dtype))


@engines.on_every_engine
@pytest.mark.parametrize("rank", range(2, 9))
@pytest.mark.parametrize("static", [False, True], ids=["symbolic", "static"])
def test_ranks(engine: Engine, rank: int, static: bool) -> None:
    check(engine, OP, make((2, 3, 4, 1, 2, 3, 1, 2)[:rank]), static=static)
    check(engine, OP, make((1,) * rank), static=static)


@pytest.mark.parametrize("engine", [KERNEL, PORTABLE], ids=str)
@given(
    shape=cases.small_shapes(min_rank=2),
    dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 2),
    statistics=st.sampled_from(FLOATS),
    counter=st.sampled_from(COUNTERS),
    weighted=st.booleans(),
)
def test_any_shapes(
    engine: Engine,
    shape: cases.Shape,
    dtypes: tuple[np.dtype, np.dtype],
    statistics: np.dtype,
    counter: np.dtype,
    weighted: bool,
) -> None:
    shape = (shape[0], max(shape[1], 1), *shape[2:])
    check(engine, OP, make(shape, dtypes, statistics, np.array([9, 2], counter), weighted))


# --- against others ------------------------------------------------------------------------------------------------


@engines.on_every_engine
@pytest.mark.parametrize("case", cases.golden_cases("batch_norm_elemt_backward"), ids=str)
def test_golden(engine: Engine, case: golden.Golden) -> None:
    actual = check(engine, OP, list(case.inputs.values()), case.attributes)
    np.testing.assert_allclose(
        actual.astype(np.float64), case.expected.astype(np.float64), rtol=2 * case.rtol, atol=2 * case.atol
    )


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 2)], ids=cases.shape_id)
@pytest.mark.parametrize("weighted", [True, False], ids=["weight", "no_weight"])
def test_against_torch(shape: cases.Shape, weighted: bool) -> None:
    """The whole gradient of batch norm, from statistics and sums of the same array."""
    torch = pytest.importorskip("torch")
    g, x = cases.normal(shape, np.float64, "grad"), cases.normal(shape, np.float64, "input")
    weight = cases.normal((3,), np.float64, "weight") if weighted else None
    leaf = torch.from_numpy(x).requires_grad_()
    given_weight = None if weight is None else torch.from_numpy(weight)
    output = torch.nn.functional.batch_norm(leaf, None, None, given_weight, training=True, eps=1e-5)
    output.backward(torch.from_numpy(g))
    _, mean, invstd = oracles.batch_norm(x)
    sums = oracles.batch_norm_backward_reduce(g, x, mean)
    actual = KERNEL(OP, [g, x, mean, invstd, weight, *sums, np.array(x.size // 3, np.int32)])
    np.testing.assert_allclose(actual, leaf.grad.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(6, 2), (3, 2, 4), (2, 2, 2, 3)], ids=cases.shape_id)
@pytest.mark.parametrize("weighted", [True, False], ids=["weight", "no_weight"])
def test_is_the_derivative_over_two_workers(shape: cases.Shape, weighted: bool) -> None:
    """Each worker holds half of the samples; sums and counts are added up, each finishes its half."""
    g, x = (np.asarray(cases.normal((2, *shape), np.float64, key)) for key in ("grad", "input"))
    weight = cases.uniform((2,), np.float64, "weight", low=0.5, high=2.0) if weighted else None

    def loss(samples: Array) -> Array:
        output, _, _ = oracles.batch_norm(samples.reshape(-1, *shape[1:]), weight)
        return (output * g.reshape(output.shape)).sum()

    _, mean, invstd = oracles.batch_norm(x.reshape(-1, *shape[1:]))
    sums = [oracles.batch_norm_backward_reduce(g[k], x[k], mean) for k in range(2)]
    sum_dy, sum_dy_xmu = (sums[0][i] + sums[1][i] for i in range(2))
    counter = np.full(2, x[0].size // 2, np.float32)
    expected = oracles.finite_difference(loss, x)
    for k in range(2):
        actual = KERNEL(OP, [g[k], x[k], mean, invstd, weight, sum_dy, sum_dy_xmu, counter])
        np.testing.assert_allclose(actual, expected[k], rtol=1e-6, atol=1e-7)
