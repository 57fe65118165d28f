"""BatchNormReduceBackward: the sums of a worker that the gradient of synchronized batch norm needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, batch_norm, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN, Shape
from tests.ops._shared.numbers import Array, Reals, exact_sum, per_channel, real
from tests.ops._shared.record import (
    Benchmark,
    Call,
    DType,
    Input,
    Output,
    Record,
    Worked,
    at_least_float32,
    limits,
)

OP = "BatchNormReduceBackward"
NAMES = ("grad_out", "input", "mean", "invstd", "weight")


def oracle(
    grad_out: ArrayLike,
    input: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    """sum(grad_out), sum(grad_out * (input - mean)), that times invstd, and the first again, over all axes but 1."""
    del weight
    g, x = real(grad_out, dtype), real(input, dtype)
    axes = batch_norm.axes(x.shape)
    with np.errstate(all="ignore"):
        sum_dy = exact_sum(g, axes)
        sum_dy_xmu = exact_sum(g * (x - per_channel(mean, x.ndim, dtype)), axes)
        return sum_dy, sum_dy_xmu, sum_dy_xmu * real(invstd, dtype), sum_dy


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """What the float64 sums may be off by."""
    g, x = real(call.given["grad_out"]), real(call.given["input"])
    axes = batch_norm.axes(x.shape)
    with np.errstate(all="ignore"):
        sizes = np.abs(g)
        if output in ("sum_dy_xmu", "grad_weight"):
            sizes = sizes * np.abs(x - per_channel(call.given["mean"], x.ndim, np.float64))
        total = sizes.sum(axis=axes)
        if output == "grad_weight":
            total = total * np.abs(real(call.given["invstd"]))
        return np.asarray(np.where(np.isfinite(total), 1e-13 * total, 0.0))


def parameter_dtype(call: Call) -> DType:
    return call.dtype("weight" if "weight" in call.given else "mean")


def calls() -> Iterator[Call]:
    for name, value in itertools.product(NAMES, (NAN, INF, -INF)):
        call = batch_norm.of_shape(OP, NAMES, (3, 4, 5), f"{name}_{value}")
        array = np.array(call.given[name])
        array[(1, 2, 3) if array.ndim == 3 else 2] = value
        yield call.but({name: array})
    for shape in ((0, 3), (2, 3, 0), (0, 1, 0), (1, 3), (1, 1)):
        yield batch_norm.of_shape(OP, NAMES, shape, f"shape_{shape}".replace(" ", ""))
    for dtype, inner in itertools.product(FLOATS, (1, 2, 31, 33, 1000)):
        yield batch_norm.of_shape(OP, NAMES, (3, 4, inner), f"inner_{inner}-{dtype.name}", dtype)
    for dtype, shape in itertools.product(FLOATS[:2], ((9, 4, 1), (3, 4, 33), (3, 4, 300), (2, 1, 5000))):
        call = batch_norm.of_shape(OP, NAMES, shape, f"wide_statistics_{shape}-{dtype.name}".replace(" ", ""), dtype)
        wide = {name: call.given[name].astype(np.float32) for name in ("mean", "invstd", "weight")}
        wide["mean"] += np.float32(0.5001)  # no 16-bit number
        yield call.but(wide)
    names = ("sum_dy", "sum_dy_xmu", "grad_weight", "grad_bias")
    plain = batch_norm.of_shape(OP, NAMES, (3, 4, 5), "")
    for count in (1, 2, 3):
        for outputs in itertools.combinations(names, count):
            yield Call(OP, plain.inputs, outputs=outputs, label="+".join(outputs))
    for dtype in FLOATS[2:]:  # sums that cancel, and a mean far from 0
        call = batch_norm.of_shape(OP, NAMES, (50, 3, 40), f"cancelling-{dtype.name}", dtype)
        g = call.given["grad_out"]
        halves = np.concatenate([g[:25], -g[:25]])
        far = {"input": call.given["input"] + dtype.type(1000), "mean": call.given["mean"] + dtype.type(1000)}
        yield call.but({"grad_out": halves, **far})


def worked(dtype: DType) -> Iterator[Worked]:
    inputs: dict[str, Array | None] = {
        "grad_out": np.array([[[1.0, 2.0], [4.0, -1.0]], [[-3.0, 0.5], [2.0, 3.0]]], dtype),
        "input": np.array([[[2.0, 4.0], [1.0, 0.0]], [[3.0, -1.0], [0.5, 2.0]]], dtype),
        "mean": np.array([1.0, 0.5], dtype),
        "invstd": np.array([2.0, 0.5], dtype),
        "weight": np.array([NAN, NAN], dtype),  # sets no value
    }
    # channel 0: 1 * 1 + 2 * 3 - 3 * 2 + 0.5 * -2 = 0; channel 1: 4 * 0.5 - 1 * -0.5 + 2 * 0 + 3 * 1.5 = 7
    expected = {"sum_dy": [0.5, 8.0], "sum_dy_xmu": [0.0, 7.0], "grad_weight": [0.0, 3.5], "grad_bias": [0.5, 8.0]}
    yield Worked(Call(OP, inputs, label="weight"), expected)
    yield Worked(Call(OP, inputs | {"weight": None}, label="no_weight"), expected)
    empty = {"grad_out": np.zeros((0, 2), dtype), "input": np.zeros((0, 2), dtype)}
    yield Worked(Call(OP, inputs | empty, label="empty"), {name: [0.0, 0.0] for name in expected})


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    """A composition of tensor operations: torch has the op for GPUs only."""
    named = dict(zip(call.inputs, with_torch.tensors(torch, call), strict=True))
    grad_out, this = named["grad_out"], named["input"]
    axes = batch_norm.torch_axes(this)

    def run() -> Any:
        wide = batch_norm.torch_wide(torch, grad_out)
        sum_dy = wide.sum(axes)
        sum_dy_xmu = (wide * (this - batch_norm.column(named["mean"], this.dim()))).sum(axes)
        return sum_dy, sum_dy_xmu, sum_dy_xmu * named["invstd"], sum_dy

    return run


def benchmark(size: int | Shape, dtype: DType) -> Call:
    return Call(OP, batch_norm.benchmark_inputs(NAMES, size, dtype))


def judged(dtype: DType) -> Iterator[Call]:
    block = accuracy.CHANNELS * accuracy.COLUMNS
    shape = (accuracy.RANDOM // block, accuracy.CHANNELS, accuracy.COLUMNS)
    yield batch_norm.of_shape(OP, NAMES, shape, "", dtype)


# The sums are rounded once, and once more for a product with invstd.
ROUNDED = {"limits": limits(single=0.51, double=2), "portable_limits": limits(single=0.51, double=2)}
WIDE = {"dtypes": FLOATS[2:], "optional": True, **ROUNDED}
RECORD = Record(
    OP,
    inputs={name: Input(optional=name == "weight") for name in NAMES},
    outputs={
        "sum_dy": Output(at_least_float32("input"), **WIDE),
        "sum_dy_xmu": Output(at_least_float32("input"), **WIDE),
        "grad_weight": Output(parameter_dtype, optional=True, **ROUNDED),
        "grad_bias": Output(parameter_dtype, optional=True, **ROUNDED),
    },
    oracle=oracle,
    slack=slack,
    make=lambda choice: batch_norm.operands(NAMES, choice),
    forms=batch_norm.FORMS,
    calls=calls,
    worked=worked,
    refusals=batch_norm.refusals,
    large=lambda dtype: batch_norm.large(OP, NAMES, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "sum(grad_out)", "invstd", "(N, C, ...)"),
    benchmarks=(Benchmark(benchmark), Benchmark(benchmark, batch_norm.SMALL_PLANES, "small planes")),
    accuracies=(accuracy.Accuracy(judged),),
)
