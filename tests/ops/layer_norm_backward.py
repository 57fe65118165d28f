"""LayerNormBackward: the gradients of layer normalization with respect to its input, weight and bias."""

from __future__ import annotations

import functools
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
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Output,
    Record,
    Refusal,
    Worked,
    kept_by_call,
    like,
    with_value,
)

OP = "LayerNormBackward"
GRADIENTS = ("grad_input", "grad_weight", "grad_bias")
WIDE = np.longdouble


def _parts(
    grad_out: ArrayLike, input: ArrayLike, mean: ArrayLike, rstd: ArrayLike, weight: ArrayLike | None
) -> tuple[Array, Array, Array, Array]:
    """The gradient, that times the weight, the normalized elements and rstd."""
    grad, inverse = real(grad_out, WIDE), real(rstd, WIDE)
    scaled = grad if weight is None else grad * real(weight, WIDE)
    return grad, scaled, (real(input, WIDE) - real(mean, WIDE)) * inverse, inverse


def oracle(
    grad_out: ArrayLike,
    input: ArrayLike,
    mean: ArrayLike,
    rstd: ArrayLike,
    weight: ArrayLike | None = None,
    normalized_shape: tuple[int, ...] = (),
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    """By the chain rule, with d normal / d input = (1 - 1/n - normal normal^T / n) * rstd."""
    grad, scaled, hat, inverse = _parts(grad_out, input, mean, rstd, weight)
    within, between = axes(grad.ndim, normalized_shape)
    n = WIDE(max(math.prod(normalized_shape), 1))
    with np.errstate(all="ignore"):
        along = (hat * scaled).sum(axis=within, keepdims=True) / n
        centred = scaled - scaled.sum(axis=within, keepdims=True) / n
        by_input = (centred - along * hat) * inverse
        by_weight, by_bias = exact_sum(grad * hat, between), exact_sum(grad, between)
    return tuple(a.astype(dtype) for a in (by_input, by_weight, by_bias))


def largest_terms(
    grad_out: ArrayLike,
    input: ArrayLike,
    mean: ArrayLike,
    rstd: ArrayLike,
    weight: ArrayLike | None = None,
    normalized_shape: tuple[int, ...] = (),
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    grad, scaled, hat, inverse = map(np.abs, _parts(grad_out, input, mean, rstd, weight))
    within, between = axes(grad.ndim, normalized_shape)
    n = WIDE(max(math.prod(normalized_shape), 1))
    with np.errstate(all="ignore"):
        average = scaled.max(axis=within, keepdims=True, initial=0) / n
        slope = (scaled * hat).max(axis=within, keepdims=True, initial=0) / n
        by_input = np.maximum(np.maximum(scaled, average), hat * slope) * inverse
        by_weight = (grad * hat).max(axis=between, initial=0)
        by_bias = grad.max(axis=between, initial=0)
    return tuple(a.astype(dtype) for a in (by_input, by_weight, by_bias))


@kept_by_call
def _sizes(call: Call) -> tuple[Array, ...]:
    """The sums of the sizes of all terms."""
    given = {name: np.nan_to_num(real(a), posinf=0.0, neginf=0.0) for name, a in call.given.items()}
    weight = given.get("weight")
    parts = _parts(*(given[name] for name in ("grad_out", "input", "mean", "rstd")), weight)
    grad, scaled, hat, inverse = map(np.abs, parts)
    within, between = axes(grad.ndim, call.attributes["normalized_shape"])
    n = max(math.prod(call.attributes["normalized_shape"]), 1)
    with np.errstate(all="ignore"):
        average = scaled.sum(axis=within, keepdims=True) / n
        slope = (scaled * hat).sum(axis=within, keepdims=True) / n
        by_input = (scaled + average + hat * slope) * inverse
        sums = by_input, (grad * hat).sum(axis=between), grad.sum(axis=between)
    return tuple(a.astype(np.float64) for a in sums)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """A rounding for each term of a sum, and five for the products, of a size up to that of the whole sum.

    Sums over rows are in float64, but for those of ROWS_IN_FLOAT rows.
    """
    in_double = FLOAT64 in {array.dtype for array in call.given.values()}
    shape = call.attributes["normalized_shape"]
    rows = math.prod(call.given["grad_out"].shape[: call.given["grad_out"].ndim - len(shape)])
    terms = math.prod(shape) if output == "grad_input" else rows
    if output != "grad_input" and not portable and not in_double:
        terms = ROWS_IN_FLOAT
    return np.asarray(_sizes(call)[GRADIENTS.index(output)] * (terms + 5) * 2.0 ** (-53 if in_double else -24))


def operands(
    leading: Shape,
    normalized_shape: Shape,
    dtype: DType,
    statistics: DType | None = None,
    weight: DType | None = None,
) -> dict[str, Array | None]:
    """Operands whose mean and deviation are those of the input, as far as the dtypes allow."""
    shape = (*leading, *normalized_shape)
    within, _ = axes(len(shape), normalized_shape)
    x = (3 * normal(shape, FLOAT64, "x") + 1).astype(dtype)
    exact = real(x)
    with np.errstate(all="ignore"):
        n = max(math.prod(normalized_shape), 1)
        mean = exact.sum(axis=within, keepdims=True) / n
        rstd = 1 / np.sqrt(((exact - mean) ** 2).sum(axis=within, keepdims=True) / n + 1e-5)
    own = dtype if statistics is None else statistics
    return {
        "grad_out": normal(shape, dtype, "g"),
        "input": x,
        "mean": mean.astype(own),
        "rstd": rstd.astype(own),
        "weight": None if weight is None else normal(normalized_shape, weight, "w"),
    }


def of_shape(leading: Shape, normalized_shape: Shape, dtype: DType, label: str = "", **rest: Any) -> Call:
    given = operands(leading, normalized_shape, dtype, weight=dtype)
    return Call(OP, given, {"normalized_shape": normalized_shape}, label=label, **rest)


def make(choice: Choice) -> dict[str, Array | None]:
    wanted = choice.attributes["normalized_shape"]
    return operands(choice.form, wanted, choice.dtype("grad_out"), choice.dtype("mean"), choice.dtypes["weight"])


def parameter_dtype(call: Call) -> DType:
    return call.dtype("weight" if "weight" in call.given else "grad_out")


NAMES = ("grad_out", "input", "mean", "rstd", "weight")


def calls() -> Iterator[Call]:
    for label, (leading, normalized_shape) in SHAPES.items():
        yield of_shape(leading, normalized_shape, FLOAT32, label, static=label == "wide")
    for dtype, width, rows in itertools.product(FLOATS, (1, 15, 16, 17, 33, 100), (3, 9)):
        yield of_shape((rows,), (width,), dtype, f"{rows}x{width}-{dtype.name}")
    for dtype, name, value in itertools.product(FLOATS, NAMES, (NAN, INF, -INF)):
        plain = of_shape((6,), (5,), dtype, f"{value}_in_{name}-{dtype.name}")
        place = {"mean": (2, 0), "rstd": (2, 0), "weight": 3}.get(name, (2, 3))
        yield plain.but(with_value(plain.inputs, name, place, value))
    for dtype in FLOATS[2:]:  # a mean far from 0, and sums that cancel
        plain = of_shape((40,), (33,), dtype, f"far-{dtype.name}")
        halves = np.concatenate([plain.given["grad_out"][:20], -plain.given["grad_out"][:20]])
        shifted = {n: plain.given[n] + dtype.type(1000) for n in ("input", "mean")}
        yield plain.but({"grad_out": halves, **shifted})
    plain = of_shape((3, 2), (4, 5), FLOAT32)
    for count in (1, 2):
        for outputs in itertools.combinations(GRADIENTS, count):
            yield Call(OP, plain.inputs, plain.attributes, outputs=outputs, label="+".join(outputs))


def worked(dtype: DType) -> Iterator[Worked]:
    given: dict[str, Array | None] = {
        "grad_out": np.array([[1, 3, 2, 2], [0, 4, 0, 0]], dtype),
        "input": np.array([[2, 6, 6, 2], [1, 3, 1, 3]], dtype),
        "mean": np.array([[4], [2]], dtype),
        "rstd": np.array([[0.5], [1]], dtype),
        "weight": np.array([2, 1, 1, 2], dtype),
    }
    # Normalized rows -1 1 1 -1 and -1 1 -1 1. Scaled gradients 2 3 2 4, of average 2.75 and slope -0.25, and 0 4 0 0,
    # of average 1 and slope 1.
    sums = {"grad_weight": [-1, 7, 2, -2], "grad_bias": [1, 7, 2, 2]}
    call = Call(OP, given, {"normalized_shape": (4,)}, label="rows")
    yield Worked(call, {"grad_input": [[-0.5, 0.25, -0.25, 0.5], [0, 2, 0, -2]], **sums})
    # Without a weight the first row has average 2 and slope 0.5.
    plain = {"grad_input": [[-0.25, 0.25, -0.25, 0.25], [0, 2, 0, -2]], **sums}
    yield Worked(call.but({"weight": None}, "no_weight"), plain)
    # All of it is one row, of a mean and a deviation that are not its own.
    whole = {**given, "mean": np.array([[2]], dtype), "rstd": np.array([[1]], dtype), "weight": None}
    whole = {**whole, "input": np.array([[2, 3], [1, 2]], dtype), "grad_out": np.array([[4, 0], [8, 4]], dtype)}
    # Normalized 0 1 -1 0, average 4, slope -2.
    matrix = {"grad_input": [[0, -2], [2, 0]], "grad_weight": [[0, 0], [-8, 0]], "grad_bias": [[4, 0], [8, 4]]}
    yield Worked(Call(OP, whole, {"normalized_shape": (2, 2)}, label="matrix"), matrix)
    empty = {"grad_out": np.zeros((0, 2), dtype), "input": np.zeros((0, 2), dtype)}
    none = {"mean": np.zeros((0, 1), dtype), "rstd": np.zeros((0, 1), dtype), "weight": np.ones(2, dtype)}
    nothing = Call(OP, {**empty, **none}, {"normalized_shape": (2,)}, label="empty")
    yield Worked(nothing, {"grad_input": np.zeros((0, 2)), "grad_weight": [0, 0], "grad_bias": [0, 0]})


def refusals(plain: Call) -> Iterator[Refusal]:
    """The plain call: two by three rows of seven by five."""
    given = plain.given
    yield Refusal("grad_out", ("'grad_out'", "(2, 3, 7, 1)", "'input'"), {"grad_out": given["grad_out"][..., :1]})
    for name in ("mean", "rstd"):
        words = (f"'{name}'", "(2, 3)", "(2, 3, 1, 1)", "normalized axes")
        yield Refusal(f"{name}_without_axes", words, {name: given[name][..., 0, 0]}, by_rank=True)
        words = (f"'{name}'", "(2, 1, 1, 1)", "(2, 3, 1, 1)")
        yield Refusal(f"{name}_of_fewer_rows", words, {name: given[name][:, :1]})
    words = ("'weight'", "(5,)", "(7, 5)", "'normalized_shape'")
    yield Refusal("weight", words, {"weight": given["weight"][0]}, by_rank=True)
    for wrong in ((5,), (7, 6), (5, 7), (2, 2, 3, 7, 5)):
        expected = (*(2, 3, 7, 5)[: max(4 - len(wrong), 0)], *wrong)
        words = ("'input'", "(2, 3, 7, 5)", str(expected), "'normalized_shape'")
        if len(wrong) == 1:
            words = ("'mean'", "(2, 3, 1, 1)", "(2, 3, 7, 1)")
        yield Refusal(f"normalized_{wrong}".replace(" ", ""), words, attributes={"normalized_shape": wrong})


def large(dtype: DType) -> Iterator[Call]:
    """Of several tasks."""
    yield of_shape((7, 150), (70,), dtype, "rows")
    yield of_shape((50,), (3, 1025), dtype, "wide")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    grad, x, mean, rstd, weight = with_torch.tensors(torch, call)
    if not (x.dtype == mean.dtype and (weight is None or weight.dtype == x.dtype)) or x.numel() == 0:
        return None
    mask = [name in (call.outputs or GRADIENTS) for name in GRADIENTS]
    shape = call.attributes["normalized_shape"]
    filled = torch.ones(shape, dtype=x.dtype) if weight is None else weight
    backward = functools.partial(
        torch.ops.aten.native_layer_norm_backward, grad, x, shape, mean, rstd, filled, filled, mask
    )
    return lambda: tuple(result for result in backward() if result is not None)


def benchmark(shape: Shape, dtype: DType) -> Call:
    return of_shape(shape[:-1], shape[-1:], dtype)


def frozen(shape: Shape, dtype: DType) -> Call:
    call = benchmark(shape, dtype)
    return Call(OP, call.inputs, call.attributes, outputs=("grad_input",))


RECORD = Record(
    OP,
    inputs={
        "grad_out": Input(variable="T"),
        "input": Input(variable="T"),
        "mean": Input(variable="U"),
        "rstd": Input(variable="U"),
        "weight": Input(optional=True),
    },
    outputs={
        "grad_input": like("grad_out", optional=True, portable_limits=SUM_LIMITS),
        "grad_weight": Output(parameter_dtype, optional=True, portable_limits=SUM_LIMITS),
        "grad_bias": Output(parameter_dtype, optional=True, portable_limits=SUM_LIMITS),
    },
    attributes={
        "normalized_shape": Attribute(
            NORMALIZED, (NORMALIZED, (4,), (33,)), ((), (1,) * 9, (7, -5), (7, 2**31)), ("expected",), required=True
        )
    },
    joint={
        ("grad_out", "input"): [(dtype, dtype) for dtype in FLOATS],
        ("mean", "rstd"): [(dtype, dtype) for dtype in FLOATS],
    },
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
    documented=(f"aclnn{OP}", "(input - mean) * rstd", "(A1, ..., Ai, 1, ..., 1)", "NaN", "InvStdDev"),
    benchmarks=(Benchmark(benchmark, SIZES), Benchmark(frozen, {"8x197x768": (8, 197, 768)}, "frozen weights")),
    accuracies=(accuracy.of_calls(benchmark, (64, 128), (16, 1000)),),
)
