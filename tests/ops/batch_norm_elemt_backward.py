"""BatchNormElemtBackward: the last step of the gradient of synchronized batch norm."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, batch_norm, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN, Shape
from tests.ops._shared.numbers import Array, Reals, per_channel, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Record, Worked, like, limits

OP = "BatchNormElemtBackward"
NAMES = ("grad_out", "input", "mean", "invstd", "weight", "sum_dy", "sum_dy_xmu", "counter")


def _parts(
    grad_out: ArrayLike,
    input: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    weight: ArrayLike | None,
    sum_dy: ArrayLike,
    sum_dy_xmu: ArrayLike,
    counter: ArrayLike,
    dtype: Reals,
) -> tuple[Array, Array, Array, Array]:
    """grad_out, sum_dy / n, the projection onto input - mean, and the scale invstd * weight."""
    x = real(input, dtype)
    mean, invstd, sum_dy, sum_dy_xmu = (per_channel(a, x.ndim, dtype) for a in (mean, invstd, sum_dy, sum_dy_xmu))
    n = real(counter, dtype).sum()
    scale = invstd if weight is None else invstd * per_channel(weight, x.ndim, dtype)
    return real(grad_out, dtype), sum_dy / n, (x - mean) * (invstd**2 * (sum_dy_xmu / n)), scale


def oracle(*inputs: Any, dtype: Reals = np.float64) -> Array:
    """((grad_out - sum_dy/n) - (input - mean) * (invstd**2 * (sum_dy_xmu/n))) * invstd * weight, n = sum(counter).

    mean, invstd, weight, sum_dy, sum_dy_xmu are (channels,); counter holds one sample count per worker, in any shape.
    Ioffe and Szegedy, "Batch Normalization", ICML 2015, section 3.
    """
    with np.errstate(all="ignore"):
        g, average, projection, scale = _parts(*inputs, dtype)
        return (g - average - projection) * scale


def terms(*inputs: Any, dtype: Reals = np.float64) -> Array:
    """|invstd * weight| * max(|grad_out|, |sum_dy/n|, |(input - mean) * invstd**2 * sum_dy_xmu/n|), input's shape."""
    with np.errstate(all="ignore"):
        g, average, projection, scale = _parts(*inputs, dtype)
        return np.abs(scale) * np.maximum(np.maximum(np.abs(g), np.abs(average)), np.abs(projection))


def calls() -> Iterator[Call]:
    """Special values in one input, which the other channels do not see; empty tensors; counters of any shape."""
    for name, value in itertools.product(NAMES, (NAN, INF, -INF, 0.0)):
        call = batch_norm.of_shape(OP, NAMES, (3, 4, 5), f"{name}_{value}")
        array = np.array(call.given[name], np.float32)
        if array.ndim == 3:
            array[:, 2] = value
        else:
            array[min(2, array.size - 1)] = value
        yield call.but({name: array})
    for shape in ((0, 3), (2, 3, 0), (0, 1, 0), (2, 3, 0, 4)):
        yield batch_norm.of_shape(OP, NAMES, shape, f"empty_{shape}".replace(" ", ""))
    plain = batch_norm.of_shape(OP, NAMES, (2, 3, 5), "")
    for counter in ((0,), (2, 0)):  # n = 0: the sums are divided by 0
        yield plain.but({"counter": np.zeros(counter, np.float32)}, f"no_counts_{counter}".replace(" ", ""))
    for number, rank in enumerate(range(9)):
        counts = np.arange(1, 2 ** min(rank, 3) + 1).reshape([2] * min(rank, 3) + [1] * (rank - 3))
        kind = batch_norm.COUNTS.dtypes[number % 4]
        yield plain.but({"counter": counts.astype(kind)}, f"counts_of_rank_{rank}")
    # The sum of float16 counts may exceed float16, that of int32 counts int32.
    yield plain.but({"counter": np.full(8, 60000, np.float16)}, "counts_beyond_float16")
    yield plain.but({"counter": np.full(4, 2_000_000_000, np.int32)}, "counts_beyond_int32")
    for dtype, inner in itertools.product(FLOATS, (1, 2, 31, 33, 1000)):
        yield batch_norm.of_shape(OP, NAMES, (2, 3, inner), f"inner_{inner}-{dtype.name}", dtype)


def worked(dtype: DType) -> Iterator[Worked]:
    """n = 4, two channels: sum_dy / n = 1, 2 and invstd**2 * sum_dy_xmu / n = 1, -1."""
    inputs: dict[str, Array | None] = {
        "grad_out": np.array([[3.0, 2.0], [1.0, 5.0]], dtype),
        "input": np.array([[2.0, 1.0], [0.0, 4.0]], dtype),
        "mean": np.array([1.0, 2.0], dtype),
        "invstd": np.array([2.0, 0.5], dtype),
        "weight": np.array([0.5, -4.0], dtype),
        "sum_dy": np.array([4.0, 8.0], dtype),
        "sum_dy_xmu": np.array([1.0, -16.0], dtype),
        "counter": np.array([1, 3], np.int32),
    }
    # channel 0: (3 - 1 - 1*1) * 2 = 2, (1 - 1 + 1*1) * 2 = 2; channel 1: (2 - 2 - 1) / 2, (5 - 2 + 2) / 2
    expected = np.array([[2.0, -0.5], [2.0, 2.5]])
    yield Worked(Call(OP, inputs, label="weight"), {"grad_input": expected * [0.5, -4.0]})
    yield Worked(Call(OP, inputs | {"weight": None}, label="no_weight"), {"grad_input": expected})
    # Nothing but the weight differs between the channels.
    one, zero, weight = np.ones(3, dtype), np.zeros(3, dtype), np.array([1.0, 2.0, 3.0], dtype)
    for shape in [(2, 3), (3, 3, 3, 3), (1, 3, 2, 1, 2), (2, 3, 1, 1, 1, 1, 1, 2)]:
        arrays = (np.ones(shape, dtype), np.ones(shape, dtype), zero, one, weight, zero, zero, np.ones((), np.float32))
        call = Call(OP, dict(zip(NAMES, arrays, strict=True)), label=f"channels_{len(shape)}")
        yield Worked(call, {"grad_input": np.broadcast_to(weight.reshape((3,) + (1,) * (len(shape) - 2)), shape)})


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    """A composition of tensor operations: torch has the op for GPUs only."""
    named = dict(zip(call.inputs, with_torch.tensors(torch, call), strict=True))
    this, invstd, weight = named["input"], named["invstd"], named.get("weight")
    column = (-1, *[1] * (this.dim() - 2))

    def run() -> Any:
        n = named["counter"].sum()
        offset = (named["sum_dy"] / n).view(column)
        slope = (invstd * invstd * (named["sum_dy_xmu"] / n)).view(column)
        scale = (invstd if weight is None else invstd * weight).view(column)
        out = ((named["grad_out"] - offset) - (this - named["mean"].view(column)) * slope) * scale
        return out.to(this.dtype)

    return run


def benchmark(size: int | Shape, dtype: DType) -> Call:
    return Call(OP, batch_norm.benchmark_inputs(NAMES, size, dtype) | {"weight": None})


def judged(dtype: DType) -> Iterator[Call]:
    """Images with statistics in float32, or float64 if they are."""
    random = np.random.default_rng(accuracy.SEED)
    wide, channels = np.promote_types(dtype, np.float32), accuracy.CHANNELS
    for tensors in accuracy.draws([accuracy.FACTOR, accuracy.FACTOR], dtype):
        signed = [accuracy.factors(random, channels, accuracy.STATISTICS).astype(wide) for _ in range(4)]
        invstd = accuracy.positive(random, channels, accuracy.STATISTICS).astype(wide)
        block = channels * accuracy.COLUMNS
        count = tensors[0].size // block * block
        grad_out, images = (values[:count].reshape(-1, channels, accuracy.COLUMNS) for values in tensors)
        arrays = (grad_out, images, signed[0], invstd, *signed[1:], np.array([7, 1000], np.int32))
        yield Call(OP, dict(zip(NAMES, arrays, strict=True)))


RECORD = Record(
    OP,
    inputs={name: Input(optional=name == "weight") for name in NAMES[:-1]} | {"counter": batch_norm.COUNTS},
    outputs={"grad_input": like("input", limits=limits(single=4, double=8))},  # a handful of roundings
    oracle=oracle,
    terms=terms,
    make=lambda choice: batch_norm.operands(NAMES, choice),
    forms=batch_norm.FORMS,
    calls=calls,
    worked=worked,
    refusals=batch_norm.refusals,
    large=lambda dtype: batch_norm.large(OP, NAMES, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "sum(counter)", "invstd^2", "sum_dy_xmu/n", "(N, C, ...)", "NaN"),
    benchmarks=(Benchmark(benchmark), Benchmark(benchmark, batch_norm.SMALL_PLANES, "small planes")),
    accuracies=(accuracy.Accuracy(judged),),
)
