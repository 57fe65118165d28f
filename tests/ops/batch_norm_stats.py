"""BatchNormStats: mean and reciprocal deviation of each channel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, batch_norm, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, attribute, exact_sum, per_channel, real
from tests.ops._shared.record import (
    SUM_LIMITS,
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Output,
    Record,
    Worked,
    at_least_float32,
    limits,
)

OP = "BatchNormStats"
EPS = Attribute(1e-5, (1e-5, 0.25))


def oracle(input: ArrayLike, eps: float = 1e-5, *, dtype: Reals = np.float64) -> tuple[Array, Array]:
    """Mean, and 1 / sqrt(biased variance + eps), over all axes but 1; both 0 where there are no elements."""
    x = real(input, dtype)
    axes, count = batch_norm.axes(x.shape), x.size // x.shape[1]
    if not count:
        return np.zeros(x.shape[1], dtype), np.zeros(x.shape[1], dtype)
    with np.errstate(all="ignore"):
        mean = exact_sum(x, axes) / dtype(count)
        centred = x - per_channel(mean, x.ndim, dtype)
        # What the mean was rounded by counts too, where the mean is far larger than the deviations.
        variance = exact_sum(centred * centred, axes) / dtype(count) - (exact_sum(centred, axes) / dtype(count)) ** 2
        return mean, 1 / np.sqrt(variance + attribute(eps, dtype))


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """What float64 sums of the numbers may be off by, for the mean; of their squared distances, for the deviation."""
    x = real(call.given["input"])
    axes = batch_norm.axes(x.shape)
    with np.errstate(all="ignore"):
        if output == "mean":
            sizes = np.abs(x).mean(axis=axes) if x.size else np.zeros(x.shape[1])
        else:
            variance = x.var(axis=axes) if x.size else np.zeros(x.shape[1])
            sizes = 0.1 / np.sqrt(variance + attribute(call.attributes.get("eps", 1e-5)))
        return np.asarray(np.where(np.isfinite(sizes), 1e-13 * sizes, 0.0))


def make(choice: Choice) -> dict[str, Array | None]:
    return batch_norm.operands(("input",), choice)


def calls() -> Iterator[Call]:
    for value in (NAN, INF, -INF):
        x = normal((3, 4, 5), np.float32, "x")
        x[1, 2, 3] = value
        yield Call(OP, {"input": x}, label=f"one_{value}")
    for shape in ((0, 3), (2, 3, 0), (0, 1, 0), (1, 3), (1, 1), (1, 2, 1, 1, 1, 1, 1, 1)):
        yield batch_norm.of_shape(OP, ("input",), shape, f"shape_{shape}".replace(" ", ""))
    for dtype, inner in itertools.product(FLOATS, (1, 2, 31, 33, 1000)):
        yield batch_norm.of_shape(OP, ("input",), (3, 4, inner), f"inner_{inner}-{dtype.name}", dtype)
    for dtype in FLOATS:
        yield batch_norm.of_shape(OP, ("input",), (3, 1, 1000), f"one_channel-{dtype.name}", dtype)
    # A deviation far below the mean keeps its digits, as far as the dtype of the input has them.
    for dtype, centre, spread in itertools.product(FLOATS[2:], (1e4, -3e3), (1e-2, 1.0)):
        x = (normal((64, 3, 50), np.float64, "x") * spread + centre).astype(dtype)
        yield Call(OP, {"input": x}, label=f"centre_{centre}_{spread}-{dtype.name}")
    # The same in runs that are read where they lie; a channel of two values, and one with a single infinity.
    for dtype, (channel, other) in itertools.product(FLOATS, enumerate(("far", "two_values", "infinite"))):
        x = normal((3, 3, 1000), np.float64, "x")
        x[:, channel] = {
            "far": x[:, channel] + 200.0,
            "two_values": np.where(x[:, channel] > 2.0, 1000.0, 0.375),
            "infinite": np.where(x[:, channel] == x[:, channel].max(), INF, x[:, channel]),
        }[other]
        yield Call(OP, {"input": x.astype(dtype)}, label=f"{other}-{dtype.name}")
    for dtype in FLOATS:
        yield Call(OP, {"input": np.full((30, 2, 7), 3.0, dtype)}, label=f"constant-{dtype.name}")
        # Several chunks of rows for each task, in each of which channels lie side by side.
        yield Call(OP, {"input": normal((700, 300), dtype, "x") + dtype.type(1)}, label=f"rows-{dtype.name}")
    yield Call(
        OP,
        {"input": normal((1_100_000, 2), np.float32, "x") + np.float32(3)},
        label="so_many_rows_that_sums_have_two_parts",
    )
    large = normal((50, 3), np.float32, "large") * np.float32(1e30)  # squares that float32 does not hold
    yield Call(OP, {"input": large}, label="squares_beyond_float32")


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.array([[1.0, -2.0], [3.0, -2.0], [5.0, 4.0], [-1.0, 0.0]], dtype)
    # channel 0: mean 2, squares 1 + 1 + 9 + 9; channel 1: mean 0, squares 4 + 4 + 16
    expected = {"mean": [2.0, 0.0], "invstd": [1 / np.sqrt(5.25), 1 / np.sqrt(6.25)]}
    small = 1e-15 if dtype.itemsize == 8 else 1e-7
    yield Worked(Call(OP, {"input": x}, {"eps": 0.25}, label="by_hand"), expected, rtol=small)
    flat = np.full((5, 1, 3), 7.0, dtype)
    yield Worked(Call(OP, {"input": flat}, {"eps": 0.25}, label="constant"), {"mean": [7.0], "invstd": [2.0]})
    for shape in ((0, 2), (3, 2, 0)):
        empty = Call(OP, {"input": np.zeros(shape, dtype)}, label=f"empty_{len(shape)}")
        yield Worked(empty, {"mean": [0.0, 0.0], "invstd": [0.0, 0.0]})


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    """native_batch_norm, which normalizes too; None without elements."""
    (this,) = with_torch.tensors(torch, call)
    eps = float(np.float32(call.attributes.get("eps", 1e-5)))

    def run() -> Any:
        _, mean, invstd = torch.ops.aten.native_batch_norm(this, None, None, None, None, True, 0.1, eps)
        return mean, invstd

    return run


def benchmark(size: int | Shape, dtype: DType) -> Call:
    return Call(OP, batch_norm.benchmark_inputs(("input",), size, dtype))


def judged(dtype: DType) -> Iterator[Call]:
    """Images far from 0 beside their deviation, and not."""
    block = accuracy.CHANNELS * accuracy.COLUMNS
    shape = (accuracy.RANDOM // block, accuracy.CHANNELS, accuracy.COLUMNS)
    for centre in (0.0, 1.0, 100.0):
        yield Call(OP, {"input": (normal(shape, np.float64, "x") + centre).astype(dtype)}, label=str(centre))


RECORD = Record(
    OP,
    inputs={"input": Input()},
    outputs={
        # Within 1 unit of the exact ones; of float64 results a division and a root more.
        "mean": Output(at_least_float32("input"), dtypes=FLOATS[2:], limits=SUM_LIMITS, portable_limits=SUM_LIMITS),
        "invstd": Output(
            at_least_float32("input"),
            dtypes=FLOATS[2:],
            limits=limits(single=0.51, double=4),
            portable_limits=limits(single=0.51, double=4),
        ),
    },
    attributes={"eps": EPS},
    oracle=oracle,
    slack=slack,
    make=make,
    forms=batch_norm.FORMS,
    calls=calls,
    worked=worked,
    refusals=batch_norm.refusals,
    large=lambda dtype: batch_norm.large(OP, ("input",), dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "eps", "(N, C, ...)", "axis 1"),
    benchmarks=(Benchmark(benchmark), Benchmark(benchmark, batch_norm.SMALL_PLANES, "small planes")),
    accuracies=(accuracy.Accuracy(judged),),
)
