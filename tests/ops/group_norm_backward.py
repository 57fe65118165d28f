"""GroupNormBackward: the gradients of group normalization with respect to its input, weight and bias."""

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

OP = "GroupNormBackward"
GRADIENTS = ("grad_input", "grad_gamma", "grad_beta")
NAMES = ("grad_out", "input", "mean", "rstd", "gamma")
WIDE = np.longdouble
FORMS: dict[str, Shape] = {"image": (2, 12, 3, 5), "no_space": (3, 12), "line": (1, 12, 35), "one_place": (4, 12, 1, 1)}
WITHIN, BETWEEN = (2, 3), (0, 3)
"""Axes of (N, group, C / group, elements of a channel) of which there are means and sums."""


def _split(array: ArrayLike, group: int) -> Array:
    """(N, group, C / group, elements of a channel)."""
    whole = real(array, WIDE)
    samples, channels, *space = whole.shape
    return whole.reshape(samples, group, channels // group, math.prod(space))


def _parts(
    grad_out: ArrayLike, input: ArrayLike, mean: ArrayLike, rstd: ArrayLike, gamma: ArrayLike | None, group: int
) -> tuple[Array, Array, Array, Array]:
    """The gradient, that times gamma, the normalized elements and rstd."""
    grad, inverse = _split(grad_out, group), real(rstd, WIDE)[..., None, None]
    scale = WIDE(1) if gamma is None else real(gamma, WIDE).reshape(group, grad.shape[2], 1)
    return grad, grad * scale, (_split(input, group) - real(mean, WIDE)[..., None, None]) * inverse, inverse


def _results(shape: Shape, *gradients: Array, dtype: Reals) -> tuple[Array, ...]:
    shapes = shape, shape[1:2], shape[1:2]
    return tuple(a.reshape(own).astype(dtype) for a, own in zip(gradients, shapes, strict=True))


def oracle(
    grad_out: ArrayLike,
    input: ArrayLike,
    mean: ArrayLike,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    group: int = 1,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    """By the chain rule, with d normal / d input = (1 - 1/n - normal normal^T / n) * rstd."""
    with np.errstate(all="ignore"):
        grad, scaled, hat, inverse = _parts(grad_out, input, mean, rstd, gamma, group)
        n = WIDE(max(grad.shape[2] * grad.shape[3], 1))
        along = exact_sum(hat * scaled, WITHIN)[:, :, None, None] / n
        centred = scaled - exact_sum(scaled, WITHIN)[:, :, None, None] / n
        by_input = (centred - along * hat) * inverse
        by_gamma, by_beta = exact_sum(grad * hat, BETWEEN), exact_sum(grad, BETWEEN)
    return _results(np.shape(input), by_input, by_gamma, by_beta, dtype=dtype)


def largest_terms(
    grad_out: ArrayLike,
    input: ArrayLike,
    mean: ArrayLike,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    group: int = 1,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        grad, scaled, hat, inverse = map(np.abs, _parts(grad_out, input, mean, rstd, gamma, group))
        n = WIDE(max(grad.shape[2] * grad.shape[3], 1))
        average = scaled.max(axis=WITHIN, keepdims=True, initial=0) / n
        slope = (scaled * hat).max(axis=WITHIN, keepdims=True, initial=0) / n
        by_input = np.maximum(np.maximum(scaled, average), hat * slope) * inverse
        by_gamma, by_beta = (a.max(axis=BETWEEN, initial=0) for a in (grad * hat, grad))
    return _results(np.shape(input), by_input, by_gamma, by_beta, dtype=dtype)


@kept_by_call
def _sizes(call: Call) -> tuple[Array, ...]:
    """The sums of the sizes of all terms."""
    given = {name: np.nan_to_num(real(a), posinf=0.0, neginf=0.0) for name, a in call.given.items()}
    parts = _parts(*(given[name] for name in NAMES[:4]), given.get("gamma"), call.attributes["group"])
    grad, scaled, hat, inverse = map(np.abs, parts)
    n = max(grad.shape[2] * grad.shape[3], 1)
    with np.errstate(all="ignore"):
        average = scaled.sum(axis=WITHIN, keepdims=True) / n
        slope = (scaled * hat).sum(axis=WITHIN, keepdims=True) / n
        by_input = (scaled + average + hat * slope) * inverse
        sums = by_input, (grad * hat).sum(axis=BETWEEN), grad.sum(axis=BETWEEN)
    return _results(call.given["input"].shape, *sums, dtype=np.float64)


IN_FLOAT = 2048
"""Elements of a channel whose sum is in float32; sums of these are in float64."""


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """A rounding for each term of a sum, and five for the products, of a size up to that of the whole sum."""
    in_double = FLOAT64 in {array.dtype for array in call.given.values()}
    samples, channels, *space = call.given["input"].shape
    places = math.prod(space)
    terms = min(places, IN_FLOAT)
    if portable or in_double:
        others = channels // call.attributes["group"] if output == "grad_input" else samples
        terms = places * others
    return np.asarray(_sizes(call)[GRADIENTS.index(output)] * (terms + 5) * 2.0 ** (-53 if in_double else -24))


def operands(
    shape: Shape, group: int, dtype: DType, statistics: DType | None = None, gamma: DType | None = None
) -> dict[str, Array | None]:
    """Operands whose mean and deviation are those of the input, as far as the dtypes allow."""
    x = (3 * normal(shape, FLOAT64, "x") + 1).astype(dtype)
    exact = real(x).reshape(shape[0], group, math.prod(shape[1:]) // group)
    n = max(exact.shape[2], 1)
    mean = exact.sum(axis=2) / n
    rstd = 1 / np.sqrt(((exact - mean[..., None]) ** 2).sum(axis=2) / n + 1e-5)
    own = dtype if statistics is None else statistics
    return {
        "grad_out": normal(shape, dtype, "g"),
        "input": x,
        "mean": mean.astype(own),
        "rstd": rstd.astype(own),
        "gamma": None if gamma is None else normal(shape[1:2], gamma, "w"),
    }


def of_shape(shape: Shape, group: int, dtype: DType, label: str = "", **rest: Any) -> Call:
    return Call(OP, operands(shape, group, dtype, gamma=dtype), {"group": group}, label=label, **rest)


def make(choice: Choice) -> dict[str, Array | None]:
    dtypes = choice.dtype("grad_out"), choice.dtype("mean"), choice.dtypes["gamma"]
    return operands(choice.form, choice.attributes["group"], *dtypes)


def parameter_dtype(call: Call) -> DType:
    return call.dtype("gamma" if "gamma" in call.given else "grad_out")


SHAPES: dict[str, tuple[Shape, int]] = {
    "instances": ((2, 5, 7), 5),
    "one_group": ((2, 5, 7), 1),
    "rank_8": ((1, 4, 1, 3, 1, 2, 5, 2), 2),
    "long_channels": ((1, 2, 5000), 1),
    "long_rows": ((2, 6, 40000), 2),
    "long_row_of_many_channels": ((1, 70, 1100), 1),
    "no_samples": ((0, 4, 3), 2),
    "no_channels": ((2, 0, 3), 2),
    "no_places": ((2, 4, 0), 2),
}


def calls() -> Iterator[Call]:
    for label, (shape, group) in SHAPES.items():
        yield of_shape(shape, group, FLOAT32, label, static=label == "instances")
    for dtype, places in itertools.product(FLOATS, (1, 15, 16, 17, 33)):
        yield of_shape((3, 6, places), 3, dtype, f"{places}-{dtype.name}")
    for dtype, name, value in itertools.product(FLOATS, NAMES, (NAN, INF, -INF)):
        plain = of_shape((3, 6, 5), 3, dtype, f"{value}_in_{name}-{dtype.name}")
        place = {"mean": (1, 1), "rstd": (1, 1), "gamma": 3}.get(name, (1, 2, 3))
        yield plain.but(with_value(plain.inputs, name, place, value))
    for dtype in FLOATS[2:]:  # a mean far from 0, and sums that cancel
        plain = of_shape((4, 4, 33), 2, dtype, f"far-{dtype.name}")
        halves = np.concatenate([plain.given["grad_out"][:2], -plain.given["grad_out"][:2]])
        shifted = {n: plain.given[n] + dtype.type(1000) for n in ("input", "mean")}
        yield plain.but({"grad_out": halves, **shifted})
    # Sums of infinite terms of both signs, of which the last 2,048 elements have one.
    plain = of_shape((1, 2, 5000), 1, FLOAT32, "infinite_terms_in_long_channels")
    signs = np.where(np.arange(5000) < 2048, 1, -1) * np.ones((1, 2, 1))
    ones = {name: np.ones_like(plain.given[name]) for name in ("input", "rstd")}
    rest = {"mean": np.zeros_like(plain.given["mean"]), "gamma": np.array([INF, 1], np.float32)}
    yield plain.but({"grad_out": signs.astype(np.float32), **ones, **rest})
    plain = of_shape((3, 4, 5), 2, FLOAT32)
    for count in (1, 2):
        for outputs in itertools.combinations(GRADIENTS, count):
            yield Call(OP, plain.inputs, plain.attributes, outputs=outputs, label="+".join(outputs))


def worked(dtype: DType) -> Iterator[Worked]:
    given: dict[str, Array | None] = {
        "grad_out": np.array([[[1, 3], [2, 2]], [[0, 4], [0, 0]]], dtype),
        "input": np.array([[[2, 6], [6, 2]], [[1, 3], [1, 3]]], dtype),
        "mean": np.array([[4], [2]], dtype),
        "rstd": np.array([[0.5], [1]], dtype),
        "gamma": np.array([2, 1], dtype),
    }
    # Normalized -1 1 1 -1 and -1 1 -1 1. Scaled gradients 2 6 2 2, of average 3 and slope 1, and 0 8 0 0, of average 2
    # and slope 2.
    sums = {"grad_gamma": [6, 0], "grad_beta": [8, 4]}
    call = Call(OP, given, {"group": 1}, label="one_group")
    yield Worked(call, {"grad_input": [[[0, 1], [-1, 0]], [[0, 4], [0, -4]]], **sums})
    # Without gamma: gradients 1 3 2 2, of average 2 and slope 0.5, and 0 4 0 0, of average 1 and slope 1.
    plain = {"grad_input": [[[-0.25, 0.25], [-0.25, 0.25]], [[0, 2], [0, -2]]], **sums}
    yield Worked(call.but({"gamma": None}, "no_gamma"), plain)
    # Each channel is a group, whose mean and deviation are not its own: normalized 0 1 and -1 0.
    single = {"grad_out": np.array([[[4, 0], [8, 4]]], dtype), "input": np.array([[[2, 3], [1, 2]]], dtype)}
    rows = {"mean": np.array([[2, 2]], dtype), "rstd": np.array([[1, 1]], dtype), "gamma": np.array([1, 2], dtype)}
    # Averages 2 and 12, slopes 0 and -8.
    instances = {"grad_input": [[[2, -2], [-4, -4]]], "grad_gamma": [0, -8], "grad_beta": [4, 12]}
    yield Worked(Call(OP, {**single, **rows}, {"group": 2}, label="instances"), instances)
    empty = {"grad_out": np.zeros((0, 2), dtype), "input": np.zeros((0, 2), dtype)}
    none = {"mean": np.zeros((0, 1), dtype), "rstd": np.zeros((0, 1), dtype), "gamma": np.ones(2, dtype)}
    nothing = Call(OP, {**empty, **none}, {"group": 1}, label="empty")
    yield Worked(nothing, {"grad_input": np.zeros((0, 2)), "grad_gamma": [0, 0], "grad_beta": [0, 0]})


def refusals(plain: Call) -> Iterator[Refusal]:
    """The plain call: two samples of twelve channels of three by five, in so many groups as the attribute says."""
    given, group = plain.given, plain.attributes["group"]
    yield Refusal("grad_out", ("'grad_out'", "(2, 12, 3, 1)", "'input'"), {"grad_out": given["grad_out"][..., :1]})
    for name in ("mean", "rstd"):
        words = (f"'{name}'", "(2,)", f"(2, {group})", "'group'")
        yield Refusal(f"{name}_without_groups", words, {name: given[name][:, 0]}, by_rank=True)
        yield Refusal(f"{name}_of_fewer_samples", (f"'{name}'", f"(1, {group})"), {name: given[name][:1]})
    yield Refusal("gamma", ("'gamma'", "(11,)", "(12,)"), {"gamma": given["gamma"][1:]})
    yield Refusal("rank_of_gamma", ("'gamma'", "(12, 1)", "(12,)"), {"gamma": given["gamma"][:, None]}, by_rank=True)
    yield Refusal("groups", ("'input'", "(2, 12, 3, 5)", "multiple of the 5"), attributes={"group": 5})
    flat = {name: given[name][0, :, 0, 0] for name in ("grad_out", "input")}
    yield Refusal("rank", ("'input'", "(12,)", "2 to 8 dimensions"), flat, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    """Of several tasks."""
    yield of_shape((9, 24, 40), 6, dtype, "rows")
    yield of_shape((2, 5, 20001), 1, dtype, "long_rows")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    grad, x, mean, rstd, gamma = with_torch.tensors(torch, call)
    """PyTorch's sum of grad_out * input less the mean times that of grad_out cancels in groups of one element."""
    if not (x.dtype == mean.dtype and (gamma is None or gamma.dtype == x.dtype)) or x.numel() in (0, mean.numel()):
        return None
    mask = [name in (call.outputs or GRADIENTS) for name in GRADIENTS]
    samples, channels, *space = call.given["input"].shape
    group = call.attributes["group"]
    backward = torch.ops.aten.native_group_norm_backward
    filled = torch.ones(channels, dtype=x.dtype) if gamma is None else gamma
    arguments = grad, x, mean, rstd, filled, samples, channels, math.prod(space), group, mask
    return lambda: tuple(result for result in backward(*arguments) if result is not None)


def benchmark(form: tuple[Shape, int], dtype: DType) -> Call:
    return of_shape(*form, dtype)


LAYERS: dict[str, tuple[Shape, int]] = {
    "8x64x32x32/32": ((8, 64, 32, 32), 32),
    "4x128x3199/128": ((4, 128, 3199), 128),
    "2x320x64x64/32": ((2, 320, 64, 64), 32),
    "16x512x4x4/32": ((16, 512, 4, 4), 32),
}
"""Of UNet2DModel, Wav2Vec2 and Stable Diffusion; the number of groups follows the shape."""
RECORD = Record(
    OP,
    inputs={
        "grad_out": Input(variable="T"),
        "input": Input(variable="T"),
        "mean": Input(variable="U"),
        "rstd": Input(variable="U"),
        "gamma": Input(optional=True),
    },
    outputs={
        "grad_input": like("grad_out", optional=True, limits=SUM_LIMITS, portable_limits=SUM_LIMITS),
        "grad_gamma": Output(parameter_dtype, optional=True, portable_limits=SUM_LIMITS),
        "grad_beta": Output(parameter_dtype, optional=True, portable_limits=SUM_LIMITS),
    },
    attributes={"group": Attribute(3, (3, 1, 12), (0, -1, 2**31), ("at least 1",), required=True)},
    joint={
        ("grad_out", "input"): [(dtype, dtype) for dtype in FLOATS],
        ("mean", "rstd"): [(dtype, dtype) for dtype in FLOATS],
    },
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
    documented=(f"aclnn{OP}", "(input - mean) * rstd", "(N, group)", "NaN", "instance normalization"),
    benchmarks=(Benchmark(benchmark, LAYERS),),
    accuracies=(accuracy.of_calls(benchmark, ((2, 16, 64), 4), ((1, 8, 1000), 2)),),
)
