"""RotaryPositionEmbeddingGrad: gradients of rotary position embedding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, exact_sum, real
from tests.ops._shared.record import (
    MISSING,
    SUM_LIMITS,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    kept_by_call,
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

OP = "RotaryPositionEmbeddingGrad"
GRADIENTS = ("dx", "dcos", "dsin")
WIDE = np.longdouble
Shapes = tuple[Shape, Shape]


def _terms(dy: ArrayLike, cos: ArrayLike, sin: ArrayLike, x: ArrayLike | None, mode: int) -> tuple[Array, ...]:
    """The terms of dx with cosines and with sines, and those of dcos and dsin before sums, pair by pair."""
    grad = np.asarray(real(dy, WIDE))
    features = np.full_like(grad, np.nan) if x is None else np.asarray(real(x, WIDE))
    c, s = (np.broadcast_to(real(a, WIDE), grad.shape) for a in (cos, sin))
    by_cos, by_sin, of_cos, of_sin = (np.zeros_like(grad) for _ in range(4))
    with np.errstate(all="ignore"):
        for a, b, first, second in zip(*pairs(grad.shape[-1], mode), strict=True):
            # y[first] = x[a] cos[first] - x[b] sin[first], y[second] = x[b] cos[second] + x[a] sin[second].
            u, v = grad[..., first], grad[..., second]
            by_cos[..., a], by_sin[..., a] = u * c[..., first], v * s[..., second]
            by_cos[..., b], by_sin[..., b] = v * c[..., second], -u * s[..., first]
            of_cos[..., first], of_cos[..., second] = u * features[..., a], v * features[..., b]
            of_sin[..., first], of_sin[..., second] = -u * features[..., b], v * features[..., a]
    return by_cos, by_sin, of_cos, of_sin


def _summed(whole: Shape, angles: Shape) -> tuple[int, ...]:
    lead = len(whole) - len(angles)
    return tuple(axis for axis in range(len(whole)) if axis < lead or angles[axis - lead] == 1)


def oracle(
    dy: ArrayLike,
    cos: ArrayLike,
    sin: ArrayLike,
    x: ArrayLike | None = None,
    mode: int = 0,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    """By the chain rule; NaN for gradients that there are not without x."""
    by_cos, by_sin, *products = _terms(dy, cos, sin, x, mode)
    with np.errstate(all="ignore"):
        sums = [exact_sum(p, _summed(p.shape, np.shape(cos))).reshape(np.shape(cos)) for p in products]
        return tuple(np.asarray(a.astype(dtype)) for a in (by_cos + by_sin, *sums))


def largest_terms(
    dy: ArrayLike,
    cos: ArrayLike,
    sin: ArrayLike,
    x: ArrayLike | None = None,
    mode: int = 0,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    by_cos, by_sin, *products = map(np.abs, _terms(dy, cos, sin, x, mode))
    sums = [p.max(axis=_summed(p.shape, np.shape(cos)), initial=0).reshape(np.shape(cos)) for p in products]
    return tuple(np.asarray(a.astype(dtype)) for a in (np.maximum(by_cos, by_sin), *sums))


@kept_by_call
def _sizes(call: Call) -> tuple[Array, ...]:
    """The sums of the sizes of the terms of dcos and dsin."""
    given = {name: np.nan_to_num(real(a), posinf=0.0, neginf=0.0) for name, a in call.given.items()}
    terms = _terms(given["dy"], given["cos"], given["sin"], given.get("x"), call.attributes.get("mode", 0))[2:]
    shape = given["cos"].shape
    return tuple(np.abs(p).sum(axis=_summed(p.shape, shape)).reshape(shape).astype(np.float64) for p in terms)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """Of sums: a rounding for each term and its product, of a size up to that of the whole sum."""
    if output == "dx":
        return 0.0
    in_double = not portable or FLOAT64 in {array.dtype for array in call.given.values()}
    count = math.prod(call.given["dy"].shape) / max(math.prod(call.given["cos"].shape), 1)
    size = np.nan_to_num(_sizes(call)[GRADIENTS.index(output) - 1])
    return np.asarray(size * (count + 2) * 2.0 ** (-53 if in_double else -24))


def operands(shapes: Shapes, dtype: DType, cos: DType | None = None, sin: DType | None = None) -> dict[str, Any]:
    whole, angles = shapes
    return {
        "dy": normal(whole, dtype, "g"),
        "cos": normal(angles, dtype if cos is None else cos, "cos"),
        "sin": normal(angles, dtype if sin is None else sin, "sin"),
        "x": normal(whole, dtype, "x"),
    }


def of_shapes(shapes: Shapes, dtype: DType, label: str = "", mode: int = 0, **rest: Any) -> Call:
    return Call(OP, operands(shapes, dtype), {"mode": mode} if mode else {}, label=label, **rest)


def make(choice: Choice) -> dict[str, Array | None]:
    given = operands(choice.form, choice.dtype("dy"), choice.dtype("cos"), choice.dtype("sin"))
    return given if choice.dtypes["x"] is not None else {**given, "x": None}


def calls() -> Iterator[Call]:
    for (label, shapes), mode in itertools.product(MORE_SHAPES.items(), MODE.values):
        yield of_shapes(shapes, FLOAT32, f"{label}-{mode}", mode, static=label == "wide")
    for dtype, half in itertools.product(FLOATS, (1, 7, 8, 17, 33)):
        yield of_shapes(((3, 5, 2 * half), (5, 2 * half)), dtype, f"{2 * half}-{dtype.name}")
    for dtype, name, value in itertools.product(FLOATS, ("dy", "cos", "sin", "x"), (NAN, INF, -INF, 0.0)):
        plain = of_shapes(((2, 6, 4), (6, 4)), dtype, f"{value}_in_{name}-{dtype.name}")
        yield plain.but(with_value(plain.inputs, name, (2, 3) if name in ("cos", "sin") else (1, 2, 3), value))
    for dtype in FLOATS[2:]:  # sums that cancel
        plain = of_shapes(((40, 8), (8,)), dtype, f"halves-{dtype.name}")
        yield plain.but({"dy": np.concatenate([plain.given["dy"][:20], -plain.given["dy"][:20]])})
    plain = of_shapes(FORMS["heads"], FLOAT32)
    for outputs in (("dx",), ("dx", "dcos"), ("dx", "dsin")):
        yield Call(OP, plain.inputs, outputs=outputs, label="_".join(outputs))
    yield Call(OP, {**plain.inputs, "x": None}, outputs=("dx",), label="without_x")


def worked(dtype: DType) -> Iterator[Worked]:
    # Quarter turns, undone.
    turned = {0: [3, 4, -1, -2], INTERLEAVE: [2, -1, 4, -3], QUARTER: [2, -1, 4, -3], INTERLEAVE_HALF: [3, -1, 4, -2]}
    for mode, row in turned.items():
        given: dict[str, Array | None] = {"dy": np.array([[1, 2, 3, 4]], dtype)}
        given |= {"cos": np.zeros(4, dtype), "sin": np.ones(4, dtype), "x": None}
        yield Worked(Call(OP, given, {"mode": mode}, ("dx",), label=f"turns_{mode}"), {"dx": [row]})
    given = {
        "dy": np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype),
        "cos": np.array([0, 0.5, 0, 0.5], dtype),
        "sin": np.array([1, 0.5, 1, 0.5], dtype),
        "x": np.array([[1, 0, 2, 1], [0, 1, 1, 0]], dtype),
    }
    sums = {"dcos": [1, 6, 13, 4], "dsin": [-7, -2, 3, 8]}
    yield Worked(Call(OP, given, label="by_hand"), {"dx": [[3, 3, -1, 1], [7, 7, -5, 1]], **sums})
    # In pairs: dy (1, 2), (3, 4) and x (1, 0), (2, 1); then (5, 6), (7, 8) and (0, 1), (1, 0).
    interleaved = {"dcos": [1, 6, 13, 4], "dsin": [-5, 2, -3, 16]}
    dx = [[1, 0, 2, -1], [3, -2, 4, -3]]
    yield Worked(Call(OP, given, {"mode": INTERLEAVE}, label="interleaved"), {"dx": dx, **interleaved})
    empty = {"dy": np.zeros((0, 4), dtype), "cos": np.ones(4, dtype), "sin": np.ones(4, dtype)}
    nothing = Call(OP, {**empty, "x": np.zeros((0, 4), dtype)}, label="empty")
    yield Worked(nothing, {"dx": np.zeros((0, 4)), "dcos": [0] * 4, "dsin": [0] * 4})


def refusals(plain: Call) -> Iterator[Refusal]:
    yield from wrong_angles("dy", plain.given)
    yield Refusal("scalar", ("'dy'", "()", "at least one"), {"dy": np.array(1, FLOAT32)}, by_rank=True)
    yield Refusal("x", ("'x'", "(2, 3, 1, 8)", "(2, 3, 5, 8)", "'dy'"), {"x": plain.given["x"][:, :, :1]})
    yield Refusal("sums_without_x", ("'dcos'", "'x'", "missing"), {"x": None}, status=MISSING)


def large(dtype: DType) -> Iterator[Call]:
    for (label, shapes), mode in itertools.product(LARGE.items(), MODE.values):
        yield of_shapes(shapes, dtype, f"{label}-{mode}", mode)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    """Differentiation of torch's elementary operators."""
    grad, *rest = with_torch.tensors(torch, call)
    if rest[2] is None:
        rest[2] = torch.zeros_like(grad)
    if not all(t.dtype == grad.dtype for t in rest) or grad.numel() == 0:
        return None
    cos, sin, x = (t.detach().requires_grad_() for t in rest)
    wanted = [{"dx": x, "dcos": cos, "dsin": sin}[name] for name in call.outputs or GRADIENTS]
    y = in_torch(torch, x, cos, sin, call.attributes.get("mode", 0))
    return lambda: torch.autograd.grad(y, wanted, grad, retain_graph=True)


def benchmark(shapes: Shapes, dtype: DType) -> Call:
    given = {**operands(shapes, dtype), "x": None}
    return Call(OP, given, outputs=("dx",))


def torch_timed(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    """As for a model, whose cosines and sines need no gradients."""
    grad, cos, sin, x = with_torch.tensors(torch, call)
    x = (torch.zeros_like(grad) if x is None else x.detach()).requires_grad_()
    y = in_torch(torch, x, cos, sin, call.attributes.get("mode", 0))
    return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)


# Half a unit for each of two products and their sum.
ROUNDED = limits(single=1.51, double=1.51)
RECORD = Record(
    OP,
    inputs={
        "dy": Input(variable="T"),
        "cos": Input(),
        "sin": Input(),
        "x": Input(variable="T", optional=True),
    },
    outputs={
        "dx": like("dy", limits=ROUNDED, portable_limits=ROUNDED),
        "dcos": like("cos", optional=True, needs="x", portable_limits=SUM_LIMITS),
        "dsin": like("sin", optional=True, needs="x", portable_limits=SUM_LIMITS),
    },
    attributes={"mode": MODE},
    joint={("dy", "x"): [(dtype, other) for dtype in FLOATS for other in (dtype, None)]},
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "sum of dy * x", "reordered", "NaN"),
    benchmarks=(
        Benchmark(benchmark, SIZES, torch=torch_timed),
        Benchmark(benchmark, BY_POSITION, "heads after positions", torch=torch_timed),
        Benchmark(
            lambda shapes, dtype: of_shapes(shapes, dtype),
            {"8x12x128x64": SIZES["8x12x128x64"]},
            "all gradients",
            torch=torch_call,
        ),
    ),
    accuracies=(
        accuracy.of_calls(
            lambda shapes, dtype: of_shapes(shapes, dtype), ((3, 50, 64), (50, 64)), ((4, 16, 64), (4, 1, 64))
        ),
    ),
)
