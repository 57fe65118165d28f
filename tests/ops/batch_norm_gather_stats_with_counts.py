"""BatchNormGatherStatsWithCounts: statistics of several workers as those of all their samples."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, batch_norm
from tests.ops._shared.arrays import FLOATS, INF, NAN, normal, uniform
from tests.ops._shared.batch_norm import COUNTS
from tests.ops._shared.numbers import Array, Reals, attribute, exact_sum, real
from tests.ops._shared.record import (
    MISSING,
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    like,
    limits,
)

OP = "BatchNormGatherStatsWithCounts"
NAMES = ("input", "mean", "invstd", "running_mean", "running_var", "counts")


def oracle(
    input: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    running_mean: ArrayLike | None,
    running_var: ArrayLike | None,
    counts: ArrayLike,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    """mean_all, invstd_all and the running statistics; of those that are not given, NaN.

    Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983: the sum of squared distances is that
    within the workers and that between them. A worker's variance is 1 / invstd^2 - eps.
    """
    counts = real(counts, dtype).reshape(-1)
    there = counts != 0
    counts, means, inverse = counts[there, None], real(mean, dtype)[there], real(invstd, dtype)[there]
    channels = means.shape[1]
    n, rate = counts.sum(), attribute(momentum, dtype)
    old_mean, old_var = (
        np.full(channels, np.nan, dtype) if old is None else real(old, dtype) for old in (running_mean, running_var)
    )
    if n == 0:
        return np.zeros(channels, dtype), np.zeros(channels, dtype), old_mean, old_var
    with np.errstate(all="ignore"):
        whole = exact_sum(counts * means, (0,)) / n
        within = 1 / inverse**2 - attribute(eps, dtype)
        squares = exact_sum(counts * (within + (means - whole) ** 2), (0,))
        unbiased = squares / (n - 1) if n != 1 else np.zeros_like(squares)
        return (
            whole,
            1 / np.sqrt(squares / n + attribute(eps, dtype)),
            (1 - rate) * old_mean + rate * whole,
            (1 - rate) * old_var + rate * unbiased,
        )


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """A few roundings of float64, of terms as large as the workers' means, and as 1 / invstd^2."""
    given = {name: real(array) for name, array in call.given.items()}
    there = given["counts"].reshape(-1) != 0
    with np.errstate(all="ignore"):
        largest = np.abs(given["mean"][there]).max(axis=0, initial=0.0)
        if output == "invstd_all":
            largest = np.abs(oracle(*(call.inputs.get(n) for n in NAMES), **call.attributes)[1])  # type: ignore[arg-type]
        if output == "running_var_out":
            own = (given["mean"][there].max(axis=0, initial=-INF) - given["mean"][there].min(axis=0, initial=INF)) ** 2
            largest = np.abs(given["running_var"]) + (own + (1 / given["invstd"][there] ** 2).max(axis=0, initial=0.0))
        if output == "running_mean_out":
            largest = largest + np.abs(given["running_mean"])
        return np.asarray(np.where(np.isfinite(largest), 1e-14 * largest, 0.0))


def make(choice: Choice) -> dict[str, Array | None]:
    shape, counts = choice.form
    channels, workers = shape[1], len(counts)
    made: dict[str, Array | None] = {
        "input": normal(shape, choice.dtype("input"), "input"),
        "mean": normal((workers, channels), choice.dtype("mean"), "mean"),
        "invstd": uniform((workers, channels), choice.dtype("invstd"), "invstd", low=0.3, high=1.5),
    }
    for name in ("running_mean", "running_var"):
        kind = choice.dtypes[name]
        made[name] = None if kind is None else batch_norm.per_channel_input(name, channels, kind)
    return made | {"counts": np.array(counts, choice.dtype("counts"))}


FORMS = {
    "plain": ((2, 3), [4, 7]),
    "one_worker": ((2, 3, 5), [10]),
    "one_sample": ((1, 3), [1]),
    "unequal": ((2, 5), [1, 90, 0, 33, 2, 0, 7, 16]),
    "nothing": ((0, 4), [0, 0, 0]),
    "no_workers": ((3, 2), []),
}


def usual(label: str, counts: list[float], dtype: DType = FLOATS[2], **attributes: float) -> Call:
    floats = {name: dtype for name in NAMES} | {"counts": FLOATS[2]}
    return Call(OP, make(Choice(floats, {}, ((2, 3), counts))), attributes, label=label)


def calls() -> Iterator[Call]:
    for name in ("mean", "invstd", "running_mean", "running_var"):
        for value in (NAN, INF):
            call = usual(f"{name}_{value}", [3.0, 5.0])
            array = call.given[name].copy()
            array[..., 1] = value
            yield call.but({name: array})
    # A worker without samples counts for nothing, whatever its statistics are.
    for value in (0.0, NAN, INF):
        call = usual(f"no_samples_{value}", [3.0, 0.0, 5.0])
        mean, invstd = call.given["mean"].copy(), call.given["invstd"].copy()
        mean[1], invstd[1] = value, value
        yield call.but({"mean": mean, "invstd": invstd})
    for dtype in FLOATS[2:]:
        for momentum in (0.0, 1.0, 0.123456789):
            yield usual(f"momentum_{momentum}-{dtype.name}", [3.0, 5.0], dtype, momentum=momentum)
        # Means far from 0, near each other, and deviations that eps is small beside.
        call = usual(f"far-{dtype.name}", [300.0, 1.0, 4000.0], dtype)
        mean = (normal((3, 3), np.float64, "mean") * 1e-2 + 1e4).astype(dtype)
        yield call.but({"mean": mean, "invstd": np.full((3, 3), 100.0, dtype)})
    yield usual("large_counts", [1e7, 2e7 + 2, 3.0])
    for outputs in (("mean_all", "invstd_all"), ("mean_all", "invstd_all", "running_var_out")):
        call = usual("", [3.0, 5.0])
        yield Call(OP, call.inputs, outputs=outputs, label=f"outputs_{len(outputs)}")
    required = {**usual("", [3.0, 5.0]).inputs, "running_mean": None, "running_var": None}
    yield Call(OP, required, outputs=("mean_all", "invstd_all"), label="no_running_statistics")


def worked(dtype: DType) -> Iterator[Worked]:
    """Samples 1, 3 | 5 of one channel, and 0, 0 | 0 of another, of which eps = 0.25 is all there is."""
    within = {"mean": [[2.0, 0.0], [5.0, 0.0]], "invstd": [[1 / np.sqrt(1.25), 2.0], [2.0, 2.0]]}
    running = {"running_mean": [1.0, 2.0], "running_var": [8.0, 4.0]}
    arrays: dict[str, Array | None] = {"input": np.zeros((2, 2), dtype)}
    arrays |= {name: np.array(values, dtype) for name, values in (within | running).items()}
    call = Call(OP, arrays | {"counts": np.array([2, 1], np.int32)}, {"eps": 0.25, "momentum": 0.5}, label="by_hand")
    mean, squares = Fraction(9, 3), Fraction(8)
    expected = {
        "mean_all": [float(mean), 0.0],
        "invstd_all": [1 / np.sqrt(float(squares / 3) + 0.25), 2.0],
        "running_mean_out": [2.0, 1.0],
        "running_var_out": [4.0 + float(squares / 2) / 2, 2.0],
    }
    small = {2: 2e-2, 4: 1e-6, 8: 1e-14}[dtype.itemsize]  # the invstd that goes in is rounded too
    yield Worked(call, expected, rtol=small, atol=small)
    nothing = call.but({"counts": np.zeros(2, np.int32)}, "nothing")
    zero = {"mean_all": [0.0, 0.0], "invstd_all": [0.0, 0.0]}
    yield Worked(nothing, {**zero, "running_mean_out": [1.0, 2.0], "running_var_out": [8.0, 4.0]})
    single = call.but({"counts": np.array([0, 1], np.int32)}, "one_sample")  # its unbiased variance is 0
    alone = {"mean_all": [5.0, 0.0], "invstd_all": [2.0, 2.0]}
    yield Worked(single, {**alone, "running_mean_out": [3.0, 1.0], "running_var_out": [4.0, 2.0]})


def refusals(plain: Call) -> Iterator[Refusal]:
    def wrong(name: str, shape: tuple[int, ...], *words: str, by_rank: bool = False) -> Refusal:
        text = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
        label = f"{name}_of_{'x'.join(map(str, shape)) or 'rank_0'}"
        change = {name: np.zeros(shape, np.float32)}
        return Refusal(label, (f"'{name}'", text, "expected", *words), change, by_rank=by_rank)

    yield wrong("input", (3,), "2 to 8 dimensions", by_rank=True)
    yield wrong("mean", (2, 4), "3")
    yield wrong("mean", (3,), by_rank=True)
    yield wrong("invstd", (2, 4), "3")
    yield wrong("invstd", (3, 3))
    for name in ("running_mean", "running_var"):
        yield wrong(name, (2,), "(3,)")
        yield wrong(name, (1, 3), "(3,)", by_rank=True)
    yield Refusal("counts_of_3", ("'mean'", "'counts'", "expected"), {"counts": np.zeros(3, plain.dtype("counts"))})
    for name in ("running_mean", "running_var"):
        yield Refusal(f"no_{name}", (f"'{name}'", f"'{name}_out'"), {name: None}, status=MISSING)


def large(dtype: DType) -> Iterator[Call]:
    floats = {name: dtype for name in NAMES} | {"counts": FLOATS[2]}
    counts = [float(n % 7) for n in range(64)]
    yield Call(OP, make(Choice(floats, {}, ((2, 2000), counts))), label="workers")


def benchmark(channels: int, dtype: DType) -> Call:
    """Eight workers, statistics in float32 beside 16-bit images."""
    wide = np.promote_types(dtype, np.float32)
    floats = {name: wide for name in NAMES} | {"input": dtype, "counts": np.dtype(np.int32)}
    return Call(OP, make(Choice(floats, {}, ((2, channels), [32] * 8))))


def judged(dtype: DType) -> Iterator[Call]:
    wide = np.promote_types(dtype, np.float32)
    floats = {name: wide for name in NAMES} | {"input": dtype, "counts": np.dtype(np.int32)}
    counts = (np.random.default_rng(accuracy.SEED).integers(0, 1000, 16)).tolist()
    yield Call(OP, make(Choice(floats, {}, ((2, 20_000), counts))))


# Computed in float64, rounded once; of float64 results a division and a root more.
ROUNDED = limits(single=0.51, double=4)
SETTLED = {"limits": ROUNDED, "portable_limits": ROUNDED}
RECORD = Record(
    OP,
    inputs={
        "input": Input(),
        "mean": Input(),
        "invstd": Input(),
        "running_mean": Input(optional=True),
        "running_var": Input(optional=True),
        "counts": COUNTS,
    },
    outputs={
        "mean_all": like("mean", **SETTLED),
        "invstd_all": like("mean", **SETTLED),
        "running_mean_out": like("running_mean", optional=True, needs="running_mean", **SETTLED),
        "running_var_out": like("running_var", optional=True, needs="running_var", **SETTLED),
    },
    attributes={"momentum": Attribute(0.1, (0.1, 0.5)), "eps": Attribute(1e-5, (1e-5, 0.25))},
    oracle=oracle,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    documented=(f"aclnn{OP}", "momentum", "Chan", "unbiased", "(W, C)"),
    unread=("input",),
    benchmarks=(Benchmark(benchmark, {"64": 64, "2048": 2048}),),
    accuracies=(accuracy.Accuracy(judged),),
)
