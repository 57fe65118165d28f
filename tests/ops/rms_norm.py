"""RmsNorm: normalization by the root mean square."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.layer_norm import LEADING, NORMALIZED, SHAPES, SIZES, axes
from tests.ops._shared.numbers import Array, Reals, attribute, exact_sum, real
from tests.ops._shared.record import Attribute, Benchmark, Call, Choice, DType, Input, Output, Record, Refusal, Worked
from tests.ops._shared.record import like as of_input

OP = "RmsNorm"
WIDE = np.longdouble


def oracle(x: ArrayLike, gamma: ArrayLike, epsilon: float = 1e-6, *, dtype: Reals = np.float64) -> tuple[Array, ...]:
    """x over the root of the mean of its squares, times gamma."""
    values, scale = real(x, WIDE), real(gamma, WIDE)
    within, _ = axes(values.ndim, scale.shape)
    with np.errstate(all="ignore"):
        squares = exact_sum(values * values, within).reshape(statistic(values.shape, scale.ndim))
        root = np.sqrt(squares / WIDE(max(scale.size, 1)) + attribute(epsilon, WIDE))
        return (values * (1 / root) * scale).astype(dtype), (1 / root).astype(dtype)


def statistic(shape: Shape, normalized: int) -> Shape:
    return (*shape[: len(shape) - normalized], *[1] * normalized)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """Roundings: of y three for its factors, and one of each square where these are added in the computing dtype.

    Those of the squares count for more where a negative epsilon cancels their mean.
    """
    in_double = FLOAT64 in {dtype, *(array.dtype for array in call.given.values())}
    epsilon = call.attributes.get("epsilon", 1e-6)
    y, inverse = oracle(call.given["x"], call.given["gamma"], epsilon)
    with np.errstate(all="ignore"):
        cancelled = np.nan_to_num(np.abs(1 - attribute(epsilon, np.float64) * inverse**2), nan=1, posinf=1)
    sums = (0.5 * call.given["gamma"].size + 3) * cancelled if portable or in_double else 0
    size = np.abs(y) * (sums + 3) if output == "y" else np.abs(inverse) * sums
    return np.asarray(size * 2.0 ** (-53 if in_double else -24))


def of_shape(leading: Shape, normalized_shape: Shape, dtype: DType, label: str = "", **rest: Any) -> Call:
    given: dict[str, Array | None] = {
        "x": (3 * normal((*leading, *normalized_shape), FLOAT64, "x") + 1).astype(dtype),
        "gamma": normal(normalized_shape, dtype, "w"),
    }
    return Call(OP, given, label=label, **rest)


def make(choice: Choice) -> dict[str, Array | None]:
    x = normal((*choice.form, *NORMALIZED), choice.dtype("x"), "x")
    return {"x": x, "gamma": normal(NORMALIZED, choice.dtype("gamma"), "w")}


def calls() -> Iterator[Call]:
    for label, (leading, normalized_shape) in SHAPES.items():
        yield of_shape(leading, normalized_shape, FLOAT32, label, static=label == "wide")
    for dtype, width, rows in itertools.product(FLOATS, (1, 15, 16, 17, 33, 100), (3, 19)):
        yield of_shape((rows,), (width,), dtype, f"{rows}x{width}-{dtype.name}")
    for dtype, name, value in itertools.product(FLOATS, ("x", "gamma"), (NAN, INF, -INF)):
        plain = of_shape((6,), (5,), dtype, f"{value}_in_{name}-{dtype.name}")
        place = 3 if name == "gamma" else (2, 3)
        array = np.array(plain.given[name])
        array[place] = value
        yield plain.but({name: array})
    plain = of_shape((3, 2), (4, 5), FLOAT32)
    yield Call(OP, plain.inputs, outputs=("y",), label="y")
    for power in (-30, -10, 15):  # squares far below epsilon, beside it, and above it
        yield plain.but({"x": plain.given["x"] * np.float32(10.0**power)}, f"e{power}")


def worked(dtype: DType) -> Iterator[Worked]:
    # Means of squares 3 and 51, with epsilon the squares of 4 and 8.
    x = np.array([[1, -1, 1, 3], [10, -10, 2, 0]], dtype)
    given: dict[str, Array | None] = {"x": x, "gamma": np.array([2, 1, 1, 4], dtype)}
    expected = {"y": [[0.5, -0.25, 0.25, 3], [2.5, -1.25, 0.25, 0]], "rstd": [[0.25], [0.125]]}
    yield Worked(Call(OP, given, {"epsilon": 13.0}, label="rows"), expected)
    # All of it as one row: the mean of 12 and 204 eighths, 27.
    whole = {"x": x, "gamma": np.full((2, 4), 2, dtype)}
    halves = {"y": x.astype(np.float64) / 4, "rstd": [[0.125]]}
    yield Worked(Call(OP, whole, {"epsilon": 37.0}, label="matrix"), halves)
    zeros = {"x": np.zeros((2, 3), dtype), "gamma": np.ones(3, dtype)}
    yield Worked(Call(OP, zeros, {"epsilon": 0.25}, label="zeros"), {"y": np.zeros((2, 3)), "rstd": [[2], [2]]})
    nothing = {"y": np.full((2, 3), NAN), "rstd": [[INF], [INF]]}
    yield Worked(Call(OP, zeros, {"epsilon": 0.0}, label="no_epsilon"), nothing)
    empty = {"x": np.zeros((2, 0), dtype), "gamma": np.zeros(0, dtype)}
    yield Worked(Call(OP, empty, {"epsilon": 0.25}, label="empty"), {"y": np.zeros((2, 0)), "rstd": [[2], [2]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    """The plain call: two by three rows of seven by five."""
    for gamma, expected in (((5, 7), (2, 3, 5, 7)), ((7, 1), (2, 3, 7, 1)), ((2, 2, 3, 7, 5), (2, 2, 3, 7, 5))):
        words = ("'x'", "(2, 3, 7, 5)", str(expected), "'gamma'")
        label = f"gamma_{gamma}".replace(" ", "")
        yield Refusal(label, words, {"gamma": np.ones(gamma, FLOAT32)}, by_rank=len(gamma) > 4)
    yield Refusal("scalar_gamma", ("'gamma'", "()", "at least one"), {"gamma": np.array(1, FLOAT32)}, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    """Of several tasks."""
    yield of_shape((7, 150), (70,), dtype, "rows")
    yield of_shape((50,), (3, 1025), dtype, "wide")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    """torch.rms_norm, which returns `y` alone."""
    x, gamma = with_torch.tensors(torch, call)
    if x.dtype != gamma.dtype or x.numel() == 0:
        return None
    epsilon = float(np.float32(call.attributes.get("epsilon", 1e-6)))
    return lambda: torch.rms_norm(x, gamma.shape, gamma, epsilon)


def benchmark(shape: Shape, dtype: DType) -> Call:
    return of_shape(shape[:-1], shape[-1:], dtype, outputs=("y",))


def statistic_dtype(call: Call) -> DType:
    return FLOAT64 if FLOAT64 in (call.dtype("x"), call.dtype("gamma")) else FLOAT32


RECORD = Record(
    OP,
    inputs={"x": Input(), "gamma": Input()},
    outputs={"y": of_input("x"), "rstd": Output(statistic_dtype, dtypes=FLOATS[2:], optional=True)},
    attributes={"epsilon": Attribute(1e-6, (1e-6, 0.25))},
    oracle=oracle,
    slack=slack,
    make=make,
    forms=LEADING,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "1 / sqrt(mean of x^2 + epsilon)", "(A1, ..., Ai, 1, ..., 1)", "NaN"),
    benchmarks=(Benchmark(benchmark, SIZES),),
    accuracies=(accuracy.of_calls(benchmark, (64, 128), (16, 1000)),),
)
