"""RotaryPositionEmbedding: pairs of features, rotated by angles that depend on their position."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
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
    with_value,
)
from tests.ops._shared.rotary_position_embedding import (
    BY_POSITION,
    FORMS,
    INTERLEAVE,
    INTERLEAVE_HALF,
    LARGE,
    MODE,
    MORE_SHAPES,
    QUARTER,
    SIZES,
    in_torch,
    pairs,
    wrong_angles,
)

OP = "RotaryPositionEmbedding"
WIDE = np.longdouble
Shapes = tuple[Shape, Shape]


def _terms(x: ArrayLike, cos: ArrayLike, sin: ArrayLike, mode: int) -> tuple[Array, Array]:
    """The terms with cosines and with sines, pair by pair."""
    features = np.asarray(real(x, WIDE))
    c, s = (np.broadcast_to(real(a, WIDE), features.shape) for a in (cos, sin))
    by_cos, by_sin = np.zeros_like(features), np.zeros_like(features)
    with np.errstate(all="ignore"):
        for a, b, first, second in zip(*pairs(features.shape[-1], mode), strict=True):
            by_cos[..., first], by_sin[..., first] = features[..., a] * c[..., first], -features[..., b] * s[..., first]
            by_cos[..., second] = features[..., b] * c[..., second]
            by_sin[..., second] = features[..., a] * s[..., second]
    return by_cos, by_sin


def oracle(x: ArrayLike, cos: ArrayLike, sin: ArrayLike, mode: int = 0, *, dtype: Reals = np.float64) -> Array:
    """(a cos - b sin, b cos + a sin) of each pair (a, b)."""
    by_cos, by_sin = _terms(x, cos, sin, mode)
    with np.errstate(all="ignore"):
        return np.asarray((by_cos + by_sin).astype(dtype))


def largest_terms(x: ArrayLike, cos: ArrayLike, sin: ArrayLike, mode: int = 0, *, dtype: Reals = np.float64) -> Array:
    return np.asarray(np.maximum(*map(np.abs, _terms(x, cos, sin, mode))).astype(dtype))


def of_shapes(shapes: Shapes, dtype: DType, label: str = "", mode: int = 0, **rest: Any) -> Call:
    x, angles = shapes
    given: dict[str, Array | None] = {"x": normal(x, dtype, "x")}
    given |= {name: normal(angles, dtype, name) for name in ("cos", "sin")}
    return Call(OP, given, {"mode": mode} if mode else {}, label=label, **rest)


def make(choice: Choice) -> dict[str, Array | None]:
    x, angles = choice.form
    return {"x": normal(x, choice.dtype("x"), "x")} | {
        name: normal(angles, choice.dtype(name), name) for name in ("cos", "sin")
    }


def calls() -> Iterator[Call]:
    for (label, shapes), mode in itertools.product(MORE_SHAPES.items(), MODE.values):
        yield of_shapes(shapes, FLOAT32, f"{label}-{mode}", mode, static=label == "wide")
    for dtype, half in itertools.product(FLOATS, (1, 7, 8, 17, 33)):
        yield of_shapes(((3, 5, 2 * half), (5, 2 * half)), dtype, f"{2 * half}-{dtype.name}")
    for dtype, name, value in itertools.product(FLOATS, ("x", "cos", "sin"), (NAN, INF, -INF, 0.0)):
        plain = of_shapes(((6, 4), (6, 4)), dtype, f"{value}_in_{name}-{dtype.name}")
        yield plain.but(with_value(plain.inputs, name, (2, 3), value))


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype)
    # No turn, then a quarter turn.
    cos, sin = np.array([[1] * 4, [0] * 4], dtype), np.array([[0] * 4, [1] * 4], dtype)
    turned = {0: [-7, -8, 5, 6], INTERLEAVE: [-6, 5, -8, 7], QUARTER: [-6, 5, -8, 7], INTERLEAVE_HALF: [-6, -8, 5, 7]}
    for mode, row in turned.items():
        first = [1, 3, 2, 4] if mode == INTERLEAVE_HALF else [1, 2, 3, 4]
        given: dict[str, Array | None] = {"x": x, "cos": cos, "sin": sin}
        yield Worked(Call(OP, given, {"mode": mode}, label=f"turns_{mode}"), {"y": [first, row]})
    # Factors that are no cosines and sines of one angle.
    own: dict[str, Array | None] = {"x": x, "cos": np.array([2, 1, 0, 1], dtype), "sin": np.array([1, 0, 1, 2], dtype)}
    yield Worked(Call(OP, own, label="factors"), {"y": [[-1, 2, 1, 8], [3, 6, 5, 20]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    yield from wrong_angles("x", plain.given)
    yield Refusal("scalar", ("'x'", "()", "at least one"), {"x": np.array(1, FLOAT32)}, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    for (label, shapes), mode in itertools.product(LARGE.items(), MODE.values):
        yield of_shapes(shapes, dtype, f"{label}-{mode}", mode)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    x, cos, sin = with_torch.tensors(torch, call)
    if not x.dtype == cos.dtype == sin.dtype:
        return None
    return lambda: in_torch(torch, x, cos, sin, call.attributes.get("mode", 0))


def benchmark(shapes: Shapes, dtype: DType) -> Call:
    return of_shapes(shapes, dtype)


def interleaved(shapes: Shapes, dtype: DType) -> Call:
    return of_shapes(shapes, dtype, mode=INTERLEAVE)


# Half a unit for each of two products and their sum.
ROUNDED = limits(single=1.51, double=1.51)
RECORD = Record(
    OP,
    inputs={"x": Input(), "cos": Input(), "sin": Input()},
    outputs={"y": like("x", limits=ROUNDED, portable_limits=ROUNDED)},
    attributes={"mode": MODE},
    oracle=oracle,
    terms=largest_terms,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "equation 34", "x * cos + rotated * sin", "NaN"),
    benchmarks=(
        Benchmark(benchmark, SIZES),
        Benchmark(benchmark, BY_POSITION, "heads after positions"),
        Benchmark(interleaved, {"8x12x128x64": SIZES["8x12x128x64"]}, "interleaved"),
    ),
    accuracies=(accuracy.of_calls(benchmark, ((3, 50, 64), (50, 64)), ((4, 16, 64), (4, 1, 64))),),
)
