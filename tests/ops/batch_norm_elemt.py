"""BatchNormElemt: normalizes with given statistics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, batch_norm, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN, Shape
from tests.ops._shared.numbers import Array, Reals, per_channel, real
from tests.ops._shared.record import Attribute, Benchmark, Call, DType, Input, Record, Worked, like, limits

OP = "BatchNormElemt"
NAMES = ("input", "weight", "bias", "mean", "invstd")


def _parts(
    input: ArrayLike,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    mean: ArrayLike,
    invstd: ArrayLike,
    dtype: Reals,
) -> tuple[Array, Array]:
    """The normalized numbers times the weight, and the bias."""
    x = real(input, dtype)
    scale = real(invstd, dtype) if weight is None else real(invstd, dtype) * real(weight, dtype)
    offset = np.zeros(x.shape[1], dtype) if bias is None else real(bias, dtype)
    return (x - per_channel(mean, x.ndim, dtype)) * per_channel(scale, x.ndim, dtype), per_channel(
        offset, x.ndim, dtype
    )


def oracle(*inputs: Any, eps: float = 1e-5, dtype: Reals = np.float64) -> Array:
    """(input - mean) * invstd * weight + bias; a weight that is left out is 1, a bias 0."""
    with np.errstate(all="ignore"):
        scaled, offset = _parts(*inputs, dtype)
        return np.asarray(scaled + offset)


def terms(*inputs: Any, eps: float = 1e-5, dtype: Reals = np.float64) -> Array:
    """The larger of the two that are added."""
    with np.errstate(all="ignore"):
        scaled, offset = _parts(*inputs, dtype)
        return np.maximum(np.abs(scaled), np.abs(offset))


def calls() -> Iterator[Call]:
    for name, value in itertools.product(NAMES, (NAN, INF, -INF, 0.0)):
        call = batch_norm.of_shape(OP, NAMES, (3, 4, 5), f"{name}_{value}")
        array = np.array(call.given[name])
        array[(slice(None), 2) if array.ndim == 3 else 2] = value
        yield call.but({name: array})
    for shape in ((0, 3), (2, 3, 0), (0, 1, 0), (2, 3, 0, 4)):
        yield batch_norm.of_shape(OP, NAMES, shape, f"empty_{shape}".replace(" ", ""))
    for dtype, inner in itertools.product(FLOATS, (1, 2, 31, 33, 1000)):
        yield batch_norm.of_shape(OP, NAMES, (2, 3, inner), f"inner_{inner}-{dtype.name}", dtype)
    # A product of per-channel numbers that float32 does not hold, of a channel whose elements are their mean.
    call = batch_norm.of_shape(OP, NAMES, (2, 3, 300), "large_scale", FLOATS[0])
    wide = {name: call.given[name].astype(np.float32) for name in NAMES[1:]}
    wide["invstd"][1] = wide["weight"][1] = 1e30
    x = call.given["input"].copy()
    x[:, 1] = call.given["mean"][1]
    yield replace(call.but({"input": x, **wide}), careful=True)
    for dtype in FLOATS:  # a mean far from 0 is taken away before anything is rounded
        call = batch_norm.of_shape(OP, NAMES, (4, 3, 5), f"far-{dtype.name}", dtype)
        x, mean = call.given["input"] + np.array(1000, dtype), call.given["mean"] + np.array(1000, dtype)
        yield call.but({"input": x.astype(dtype), "mean": mean.astype(dtype), "bias": None})


def worked(dtype: DType) -> Iterator[Worked]:
    inputs: dict[str, Array | None] = {
        "input": np.array([[3.0, 1.0], [-1.0, 4.0]], dtype),
        "weight": np.array([0.5, -4.0], dtype),
        "bias": np.array([1.0, 2.0], dtype),
        "mean": np.array([1.0, 2.0], dtype),
        "invstd": np.array([2.0, 0.5], dtype),
    }
    normalized = np.array([[4.0, -0.5], [-4.0, 1.0]])
    weighted, plus = normalized * [0.5, -4.0], np.array([1.0, 2.0])
    yield Worked(Call(OP, inputs, label="all"), {"out": weighted + plus})
    yield Worked(Call(OP, inputs | {"bias": None}, label="no_bias"), {"out": weighted})
    yield Worked(Call(OP, inputs | {"weight": None}, label="no_weight"), {"out": normalized + plus})
    bare = Call(OP, inputs | {"weight": None, "bias": None}, {"eps": 0.25}, label="neither")
    yield Worked(bare, {"out": normalized})  # eps does not enter


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    """A composition of tensor operations: torch has the op for GPUs only."""
    named = dict(zip(call.inputs, with_torch.tensors(torch, call), strict=True))
    this, weight, bias = named["input"], named.get("weight"), named.get("bias")

    def run() -> Any:
        scale = named["invstd"] if weight is None else named["invstd"] * weight
        out = (this - batch_norm.column(named["mean"], this.dim())) * batch_norm.column(scale, this.dim())
        return (out if bias is None else out + batch_norm.column(bias, this.dim())).to(this.dtype)

    return run


def benchmark(size: int | Shape, dtype: DType) -> Call:
    return Call(OP, batch_norm.benchmark_inputs(NAMES, size, dtype))


def judged(dtype: DType) -> Iterator[Call]:
    """Images with statistics in float32, or float64 if they are."""
    random = np.random.default_rng(accuracy.SEED)
    wide, channels = np.promote_types(dtype, np.float32), accuracy.CHANNELS
    for (values,) in accuracy.draws([accuracy.FACTOR], dtype):
        weight, bias, mean = (accuracy.factors(random, channels, accuracy.STATISTICS).astype(wide) for _ in range(3))
        invstd = accuracy.positive(random, channels, accuracy.STATISTICS).astype(wide)
        block = channels * accuracy.COLUMNS
        images = values[: values.size // block * block].reshape(-1, channels, accuracy.COLUMNS)
        yield Call(OP, dict(zip(NAMES, (images, weight, bias, mean, invstd), strict=True)))


RECORD = Record(
    OP,
    inputs={name: Input(optional=name in ("weight", "bias")) for name in NAMES},
    outputs={"out": like("input", limits=limits(single=4, double=8))},  # a handful of roundings
    attributes={"eps": Attribute(1e-5, (1e-5,))},
    oracle=oracle,
    terms=terms,
    make=lambda choice: batch_norm.operands(NAMES, choice),
    forms=batch_norm.FORMS,
    calls=calls,
    worked=worked,
    refusals=batch_norm.refusals,
    large=lambda dtype: batch_norm.large(OP, NAMES, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "invstd", "(N, C, ...)"),
    benchmarks=(Benchmark(benchmark), Benchmark(benchmark, batch_norm.SMALL_PLANES, "small planes")),
    accuracies=(accuracy.Accuracy(judged),),
)
