"""RmsNormGrad: the gradients of normalization by the root mean square."""

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
from tests.ops._shared.layer_norm import LEADING, NORMALIZED, ROWS_IN_FLOAT, SHAPES, SIZES, axes
from tests.ops._shared.numbers import Array, Reals, exact_sum, real
from tests.ops._shared.record import (
    SUM_LIMITS,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Output,
    Record,
    Refusal,
    Worked,
    at_least_float32,
    kept_by_call,
    like,
    with_value,
)

OP = "RmsNormGrad"
GRADIENTS = ("dx", "dgamma")
WIDE = np.longdouble


def _parts(dy: ArrayLike, x: ArrayLike, rstd: ArrayLike, gamma: ArrayLike) -> tuple[Array, Array, Array, Array]:
    """The gradient, that times gamma, the normalized elements and rstd."""
    grad, inverse = real(dy, WIDE), real(rstd, WIDE)
    return grad, grad * real(gamma, WIDE), real(x, WIDE) * inverse, inverse


def oracle(
    dy: ArrayLike, x: ArrayLike, rstd: ArrayLike, gamma: ArrayLike, *, dtype: Reals = np.float64
) -> tuple[Array, ...]:
    """By the chain rule, with d normal / d x = (1 - normal normal^T / n) * rstd."""
    shape = np.shape(gamma)
    with np.errstate(all="ignore"):
        grad, scaled, hat, inverse = _parts(dy, x, rstd, gamma)
        within, between = axes(grad.ndim, shape)
        along = (hat * scaled).sum(axis=within, keepdims=True) / WIDE(max(math.prod(shape), 1))
        found = (scaled - along * hat) * inverse, exact_sum(grad * hat, between)
    return tuple(a.astype(dtype) for a in found)


def largest_terms(
    dy: ArrayLike, x: ArrayLike, rstd: ArrayLike, gamma: ArrayLike, *, dtype: Reals = np.float64
) -> tuple[Array, ...]:
    shape = np.shape(gamma)
    with np.errstate(all="ignore"):
        grad, scaled, hat, inverse = map(np.abs, _parts(dy, x, rstd, gamma))
        within, between = axes(grad.ndim, shape)
        slope = (scaled * hat).max(axis=within, keepdims=True, initial=0) / WIDE(max(math.prod(shape), 1))
        found = np.maximum(scaled, hat * slope) * inverse, (grad * hat).max(axis=between, initial=0)
    return tuple(a.astype(dtype) for a in found)


@kept_by_call
def _sizes(call: Call) -> tuple[Array, ...]:
    """The sums of the sizes of all terms."""
    given = {name: np.nan_to_num(real(a), posinf=0.0, neginf=0.0) for name, a in call.given.items()}
    shape = given["gamma"].shape
    with np.errstate(all="ignore"):
        grad, scaled, hat, inverse = map(np.abs, _parts(*(given[name] for name in NAMES)))
        within, between = axes(grad.ndim, shape)
        slope = (scaled * hat).sum(axis=within, keepdims=True) / max(math.prod(shape), 1)
        sums = (scaled + hat * slope) * inverse, (grad * hat).sum(axis=between)
    return tuple(a.astype(np.float64) for a in sums)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """A rounding for each term of a sum, and five for the products, of a size up to that of the whole sum.

    Sums over rows are in float64, but for those of ROWS_IN_FLOAT rows.
    """
    in_double = FLOAT64 in {array.dtype for array in call.given.values()}
    shape = call.given["gamma"].shape
    rows = math.prod(call.given["dy"].shape[: call.given["dy"].ndim - len(shape)])
    terms = math.prod(shape) if output == "dx" else rows
    if output == "dgamma" and not portable and not in_double:
        terms = ROWS_IN_FLOAT
    return np.asarray(_sizes(call)[GRADIENTS.index(output)] * (terms + 5) * 2.0 ** (-53 if in_double else -24))


def operands(
    leading: Shape, normalized_shape: Shape, dtype: DType, rstd: DType | None = None, gamma: DType | None = None
) -> dict[str, Array | None]:
    """Operands whose root mean square is that of the input, as far as the dtypes allow."""
    shape = (*leading, *normalized_shape)
    within, _ = axes(len(shape), normalized_shape)
    x = (3 * normal(shape, FLOAT64, "x") + 1).astype(dtype)
    squares = (real(x) ** 2).sum(axis=within, keepdims=True) / max(math.prod(normalized_shape), 1)
    return {
        "dy": normal(shape, dtype, "g"),
        "x": x,
        "rstd": (1 / np.sqrt(squares + 1e-6)).astype(dtype if rstd is None else rstd),
        "gamma": normal(normalized_shape, dtype if gamma is None else gamma, "w"),
    }


def of_shape(leading: Shape, normalized_shape: Shape, dtype: DType, label: str = "", **rest: Any) -> Call:
    return Call(OP, operands(leading, normalized_shape, dtype), label=label, **rest)


def make(choice: Choice) -> dict[str, Array | None]:
    return operands(choice.form, NORMALIZED, choice.dtype("dy"), choice.dtype("rstd"), choice.dtype("gamma"))


NAMES = ("dy", "x", "rstd", "gamma")


def calls() -> Iterator[Call]:
    for label, (leading, normalized_shape) in SHAPES.items():
        yield of_shape(leading, normalized_shape, FLOAT32, label, static=label == "wide")
    for dtype, width, rows in itertools.product(FLOATS, (1, 15, 16, 17, 33, 100), (3, 9)):
        yield of_shape((rows,), (width,), dtype, f"{rows}x{width}-{dtype.name}")
    for dtype, name, value in itertools.product(FLOATS, NAMES, (NAN, INF, -INF)):
        plain = of_shape((6,), (5,), dtype, f"{value}_in_{name}-{dtype.name}")
        place = {"rstd": (2, 0), "gamma": 3}.get(name, (2, 3))
        yield plain.but(with_value(plain.inputs, name, place, value))
    for dtype in FLOATS[2:]:  # sums that cancel
        plain = of_shape((40,), (33,), dtype, f"halves-{dtype.name}")
        yield plain.but({"dy": np.concatenate([plain.given["dy"][:20], -plain.given["dy"][:20]])})
    plain = of_shape((3, 2), (4, 5), FLOAT32)
    for output in GRADIENTS:
        yield Call(OP, plain.inputs, outputs=(output,), label=output)


def worked(dtype: DType) -> Iterator[Worked]:
    given: dict[str, Array | None] = {
        "dy": np.array([[2, 4, 0, 2], [0, 0, 4, 0]], dtype),
        "x": np.array([[2, -2, 2, 6], [1, 3, -1, 3]], dtype),
        "rstd": np.array([[0.5], [1]], dtype),
        "gamma": np.array([2, 1, 1, 0.5], dtype),
    }
    # Normalized rows 1 -1 1 3 and 1 3 -1 3. Scaled gradients 4 4 0 1, of slope 0.75, and 0 0 4 0, of slope -1.
    by_hand = {"dx": [[1.625, 2.375, -0.375, -0.625], [1, 3, 3, 3]], "dgamma": [2, -4, -4, 6]}
    yield Worked(Call(OP, given, label="rows"), by_hand)
    whole = {
        "dy": np.array([[4, 0], [8, 4]], dtype),
        "x": np.array([[0, 1], [-1, 0]], dtype),
        "rstd": np.array([[2]], dtype),
        "gamma": np.array([[1, 1], [0.5, 1]], dtype),
    }
    # Normalized 0 2 -2 0, scaled gradients 4 0 4 4, slope -2.
    matrix = {"dx": [[8, 8], [0, 8]], "dgamma": [[0, 0], [-16, 0]]}
    yield Worked(Call(OP, whole, label="matrix"), matrix)
    empty = {"dy": np.zeros((0, 2), dtype), "x": np.zeros((0, 2), dtype), "rstd": np.zeros((0, 1), dtype)}
    nothing = Call(OP, {**empty, "gamma": np.ones(2, dtype)}, label="empty")
    yield Worked(nothing, {"dx": np.zeros((0, 2)), "dgamma": [0, 0]})


def refusals(plain: Call) -> Iterator[Refusal]:
    """The plain call: two by three rows of seven by five."""
    given = plain.given
    yield Refusal("dy", ("'dy'", "(2, 3, 7, 1)", "'x'"), {"dy": given["dy"][..., :1]})
    words = ("'rstd'", "(2, 3)", "(2, 3, 1, 1)", "normalized axes")
    yield Refusal("rstd_without_axes", words, {"rstd": given["rstd"][..., 0, 0]}, by_rank=True)
    words = ("'rstd'", "(2, 1, 1, 1)", "(2, 3, 1, 1)")
    yield Refusal("rstd_of_fewer_rows", words, {"rstd": given["rstd"][:, :1]})
    yield Refusal("gamma", ("'x'", "(2, 3, 7, 5)", "(2, 3, 5, 7)", "'gamma'"), {"gamma": given["gamma"].T})
    words = ("'rstd'", "(2, 3, 1, 1)", "(2, 3, 7, 1)")
    yield Refusal("gamma_of_fewer_axes", words, {"gamma": given["gamma"][0]})
    words = ("'x'", "(2, 3, 7, 5)", "(2, 2, 3, 7, 5)", "'gamma'")
    yield Refusal("gamma_of_more_axes", words, {"gamma": np.ones((2, 2, 3, 7, 5), FLOAT32)}, by_rank=True)
    yield Refusal("scalar_gamma", ("'gamma'", "()", "at least one"), {"gamma": np.array(1, FLOAT32)}, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    """Of several tasks."""
    yield of_shape((7, 150), (70,), dtype, "rows")
    yield of_shape((50,), (3, 1025), dtype, "wide")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    """Differentiation of torch's elementary operators, with the epsilon of each row that makes its `rstd`."""
    _, x, rstd, gamma = with_torch.tensors(torch, call)
    if not x.dtype == rstd.dtype == gamma.dtype or x.numel() == 0:
        return None
    x, gamma = x.detach().requires_grad_(), gamma.detach().requires_grad_()
    within, _ = axes(x.ndim, tuple(gamma.shape))
    epsilon = rstd**-2 - x.detach().square().mean(within, keepdim=True)
    return _differentiated(
        torch, call, x * torch.rsqrt(x.square().mean(within, keepdim=True) + epsilon) * gamma, x, gamma
    )


def torch_timed(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    """Differentiation of torch.rms_norm."""
    _, x, _, gamma = (t.detach().requires_grad_() for t in with_torch.tensors(torch, call))
    return _differentiated(torch, call, torch.rms_norm(x, gamma.shape, gamma, 1e-6), x, gamma)


def _differentiated(torch: ModuleType, call: Call, y: Any, x: Any, gamma: Any) -> Callable[[], Any]:
    grad = with_torch.tensors(torch, call)[0]
    wanted = [t for t, name in zip((x, gamma), GRADIENTS, strict=True) if name in (call.outputs or GRADIENTS)]
    return lambda: torch.autograd.grad(y, wanted, grad, retain_graph=True)


def benchmark(shape: Shape, dtype: DType) -> Call:
    return of_shape(shape[:-1], shape[-1:], dtype)


def frozen(shape: Shape, dtype: DType) -> Call:
    return Call(OP, benchmark(shape, dtype).inputs, outputs=("dx",))


RECORD = Record(
    OP,
    inputs={"dy": Input(variable="T"), "x": Input(variable="T"), "rstd": Input(), "gamma": Input()},
    outputs={
        "dx": like("dy", optional=True, portable_limits=SUM_LIMITS),
        "dgamma": Output(at_least_float32("gamma"), dtypes=FLOATS[2:], optional=True, portable_limits=SUM_LIMITS),
    },
    joint={("dy", "x"): [(dtype, dtype) for dtype in FLOATS]},
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=LEADING,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "x * rstd", "(A1, ..., Ai, 1, ..., 1)", "NaN"),
    benchmarks=(
        Benchmark(benchmark, SIZES, torch=torch_timed),
        Benchmark(frozen, {"8x197x768": (8, 197, 768)}, "frozen weights", torch=torch_timed),
    ),
    accuracies=(accuracy.of_calls(benchmark, (64, 128), (16, 1000)),),
)
