"""SoftmaxV2: the share of each exponential in their sum along an axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, along_axis, with_torch
from tests.ops._shared.arrays import FLOAT64, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
    SUM_LIMITS,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    like,
)

OP = "SoftmaxV2"
WIDE = np.longdouble


def _wide(self: ArrayLike, dim: int) -> tuple[Array, Array]:
    """How far the elements are below the largest one along the axis, and the softmax."""
    x = np.asarray(real(self, WIDE))
    with np.errstate(all="ignore"):
        below = x.max(axis=dim, keepdims=True, initial=-np.inf) - x
        terms = np.exp(-below)
        return below, terms / terms.sum(axis=dim, keepdims=True)


def oracle(self: ArrayLike, *, dim: int = -1, dtype: Reals = np.float64) -> Array:
    """exp(-below), divided by the sum of these."""
    return _wide(self, dim)[1].astype(dtype)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """A rounding of the difference, of the exponential (2 units), of each addition and of the quotient; and what counts
    as 0, or as 0 in the exponential function of a runtime."""
    below, share = _wide(call.given["self"], dim := call.attributes.get("dim", -1))
    in_double = call.dtype("self") == FLOAT64
    far, smallest = (708, np.finfo(np.float64).tiny) if in_double else (87, np.finfo(np.float32).tiny)
    added = call.given["self"].shape[dim]
    most = np.where(np.isfinite(below), below, 0) + 8 + added
    zero = np.where(below > far - 1, np.exp(WIDE(1 - far)), 2 * smallest)
    return np.asarray(share * most * 2.0 ** (-53 if in_double else -24) + zero).astype(np.float64)


def make(choice: Choice) -> dict[str, Array | None]:
    return {"self": 4 * normal(choice.form, choice.dtype("self"), "x")}


def calls() -> Iterator[Call]:
    for label, (shape, dim) in along_axis.SHAPES.items():
        x = normal(shape, np.dtype(np.float32), "x")
        yield Call(OP, {"self": x}, {"dim": dim}, label=label, static=label == "long")
    for dtype in FLOATS:
        plain = [0.5, -1.0, 2.0, -3.0]
        rows = [plain]
        for value in (NAN, INF, -INF, -200.0, 60000.0, -60000.0):
            rows += [[value, *plain[1:]], [*plain[:2], value, plain[3]]]
        rows += [[-INF] * 4, [INF, -INF, 0.0, 0.0], [INF] * 4, [-0.0, 0.0, -0.0, 0.0]]
        special = np.array(rows, dtype)
        yield Call(OP, {"self": special}, label=f"special-{dtype.name}")
        yield Call(OP, {"self": special.T.copy()}, {"dim": 0}, label=f"special_columns-{dtype.name}")
    # Exponentials from the largest one to those that count as 0.
    falling = np.linspace(0, -120, 481).astype(np.float32)
    yield Call(OP, {"self": falling}, label="falling")
    yield Call(OP, {"self": np.linspace(0, -800, 801)}, label="falling_in_double")


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.array([[0, 0, -INF], [5, 5, 5]], dtype)
    yield Worked(Call(OP, {"self": x[:1]}, label="halves"), {"out": [[0.5, 0.5, 0]]})
    yield Worked(Call(OP, {"self": x}, {"dim": 0}, label="columns"), {"out": [[0, 0, 0], [1, 1, 1]]}, atol=0.01)
    # log 3 : log 1 : log 4
    logarithms = np.array([math.log(3), 0, math.log(4)]).astype(dtype)
    precision = 8 * float(np.finfo(np.float32).eps) if dtype.itemsize > 2 else 0.02
    yield Worked(Call(OP, {"self": logarithms}, label="log"), {"out": [3 / 8, 1 / 8, 1 / 2]}, rtol=precision)
    equal = np.full((2, 8), 7, dtype)
    yield Worked(Call(OP, {"self": equal}, {"dim": 1}, label="equal"), {"out": np.full((2, 8), 1 / 8)})


def refusals(plain: Call) -> Iterator[Refusal]:
    scalar = {"self": np.zeros((), np.float32)}
    yield Refusal("scalar", ("'self'", "()", "at least 1 dimension"), scalar, by_rank=True)
    yield from along_axis.wrong_axes()


def large(dtype: DType) -> Iterator[Call]:
    for label, (shape, dim) in along_axis.LARGE.items():
        yield Call(OP, {"self": normal(shape, dtype, "x")}, {"dim": dim}, label=label)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    (x,) = with_torch.tensors(torch, call)
    return functools.partial(torch.softmax, x, call.attributes.get("dim", -1))


def benchmark(shape: Shape, dtype: DType) -> Call:
    return Call(OP, {"self": normal(shape, dtype, "x")})


def columns(shape: Shape, dtype: DType) -> Call:
    return Call(OP, {"self": normal(shape, dtype, "x")}, {"dim": 1})


RECORD = Record(
    OP,
    inputs={"self": Input()},
    outputs={"out": like("self", limits=SUM_LIMITS, portable_limits=SUM_LIMITS)},
    attributes={"dim": along_axis.AXES},
    oracle=oracle,
    slack=slack,
    make=make,
    forms=along_axis.FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=("aclnnSoftmax", "exp(self - max)", "minus infinity", "NaN", "counts as 0"),
    benchmarks=(
        Benchmark(benchmark, along_axis.SIZES),
        Benchmark(columns, {"4x21x64x64": (4, 21, 64, 64)}, "along axis 1"),
    ),
    accuracies=(accuracy.of_calls(benchmark, (64, 128), (16, 1000)),),
)
