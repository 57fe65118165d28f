"""BinaryCrossEntropyWithLogitsBackward: the gradient of binary cross-entropy by the logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy
from tests.ops._shared import binary_cross_entropy as bce
from tests.ops._shared.arrays import FLOAT64, FLOATS, INF, normal
from tests.ops._shared.losses import MEAN, NONE, REDUCTION, divisor, sigmoid
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Record, Worked, like, limits

OP = "BinaryCrossEntropyWithLogitsBackward"


def formula(grad_output: ArrayLike, *inputs: Any, reduction: int = 1, dtype: Reals = np.float64) -> Array:
    """grad_output * w * ((p * y + 1 - y) * sigmoid(x) - p * y), divided by numel(self) for mean; self's shape.

    inputs: x = self, y = target, w = weight, p = pos_weight. The difference cancels where sigmoid(x) is near 1.
    """
    x, y, w, p = bce.widened(*inputs, dtype=dtype)
    with np.errstate(all="ignore"):
        out = real(grad_output, dtype) * w * ((p * y + 1 - y) * sigmoid(x) - p * y)
        return np.broadcast_to(out, x.shape) / np.asarray(divisor(reduction, x.shape), dtype)


def split(grad_output: ArrayLike, *inputs: Any, reduction: int = 1, dtype: Reals = np.float64) -> Array:
    """The same gradient as grad_output * w * ((1 - y) * sigmoid(x) - p * y * sigmoid(-x)); for finite inputs.

    Equal in exact arithmetic, with full relative accuracy for y = 0 and y = 1 at any x. Infinite weights or targets
    meet different indeterminate forms here, so it does not stand in for the formula there.
    """
    x, y, w, p = bce.widened(*inputs, dtype=dtype)
    with np.errstate(all="ignore"):
        out = real(grad_output, dtype) * w * ((1 - y) * sigmoid(x) - p * y * sigmoid(-x))
        return np.broadcast_to(out, x.shape) / np.asarray(divisor(reduction, x.shape), dtype)


def exact(grad_output: ArrayLike, *inputs: Any, reduction: int = 1, dtype: Reals = np.float64) -> Array:
    """The split form where both are finite, else the formula as it is written."""
    written, accurate = (f(grad_output, *inputs, reduction=reduction, dtype=dtype) for f in (formula, split))
    return np.where(np.isfinite(written) & np.isfinite(accurate), accurate, written)


def terms(grad_output: ArrayLike, *inputs: Any, reduction: int = 1, dtype: Reals = np.float64) -> Array:
    """|grad_output * w / n| * max(|(p * y + 1 - y) * sigmoid(x)|, |p * y|), self's shape."""
    x, y, w, p = bce.widened(*inputs, dtype=dtype)
    with np.errstate(all="ignore"):
        sizes = np.maximum(np.abs((p * y + 1 - y) * sigmoid(x)), np.abs(p * y))
        return _scaled(sizes, grad_output, w, reduction, x.shape)


def factor(grad_output: ArrayLike, *inputs: Any, reduction: int = 1) -> Array:
    """|grad_output * w / n| * max(|1 - y|, |p * y|): what sigmoid(x) and sigmoid(-x) are multiplied by, at most."""
    x, y, w, p = bce.widened(*inputs, dtype=np.float64)
    with np.errstate(all="ignore"):
        return _scaled(np.maximum(np.abs(1 - y), np.abs(p * y)), grad_output, w, reduction, x.shape)


def _scaled(sizes: Array, grad_output: ArrayLike, w: Array, reduction: int, shape: tuple[int, ...]) -> Array:
    scale = np.abs(real(grad_output, np.float64) * w) / divisor(reduction, shape)
    return np.broadcast_to(scale * sizes, shape)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """In a function body a sigmoid below the smallest normal number may count as 0."""
    if not portable:
        return 0.0
    wide = any(array.dtype == FLOAT64 for array in call.given.values())
    least = float(np.finfo(np.float64 if wide else np.float32).smallest_normal)
    scale = factor(*(call.inputs.get(name) for name in RECORD.inputs), **call.attributes)  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        return np.asarray(np.where(np.isfinite(scale), scale * least, 0.0))


def calls() -> Iterator[Call]:
    yield from bce.shapes(OP, gradient=True)
    yield from bce.special_values(OP, gradient=True)
    for dtype in FLOATS:
        yield from bce.extreme_logits(OP, dtype, gradient=True)
    x, y, w, p = normal((4, 500), np.float32, scale=5.0) * np.float32([[1], [1], [1], [3]])
    inputs = {"grad_output": np.float32([1.5]), "self": x, "target": y, "weight": w, "pos_weight": p}
    yield Call(OP, inputs, {"reduction": NONE}, label="labels_outside_0_and_1_and_negative_weights")


def worked(dtype: DType) -> Iterator[Worked]:
    """Where sigmoid(x) is 0.5, 0 or 1."""
    x = np.array([0.0, 0.0, 0.0, 0.0, INF, INF, -INF, -INF], dtype)
    y = np.array([0.0, 1.0, 0.5, 2.0, 0.0, 1.0, 0.0, 1.0], dtype)
    for number in range(12):
        reduction, weighted, pos_weighted = number % 3, number // 3 % 2, number // 6
        expected = np.array([4.0, -4.0, 0.0, -12.0, 8.0, 0.0, 0.0, -8.0])
        if pos_weighted:
            expected = np.array([4.0, -8.0, -2.0, -20.0, 8.0, 0.0, 0.0, -16.0])
        expected = expected * (4.0 if weighted else 1.0) / (8.0 if reduction == MEAN else 1.0)
        inputs = {"grad_output": np.array(8.0, dtype), "self": x, "target": y}
        inputs |= {"weight": np.array(4.0, dtype)} if weighted else {}
        inputs |= {"pos_weight": np.array(2.0, dtype)} if pos_weighted else {}
        yield Worked(Call(OP, inputs, {"reduction": reduction}, label=f"case_{number}"), {"out": expected})
    inputs = {"grad_output": np.array([8.0]), "self": np.zeros(2), "target": np.array([0.0, 1.0])}
    call = Call(OP, {n: a.astype(dtype) for n, a in inputs.items()}, label="default_is_mean")
    yield Worked(call, {"out": [2.0, -2.0]})


GRADIENT = {"grad_output": accuracy.FACTOR}
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), **bce.INPUTS},
    # A handful of roundings, each at most 0.5; one more for exp and for the division by a sum.
    outputs={"out": like("target", limits=limits(single=3.5, double=8))},
    attributes={"reduction": REDUCTION},
    oracle=exact,
    terms=terms,
    slack=slack,
    make=lambda choice: bce.operands(choice.form, choice),
    forms=bce.FORMS,
    calls=calls,
    worked=worked,
    refusals=lambda plain: bce.refusals(plain, gradient=True),
    large=lambda dtype: bce.large(OP, True, dtype),
    torch=lambda torch, call: bce.torch_backward(torch, call, "self"),
    documented=(f"aclnn{OP}", "(p*y + 1 - y) * s - p*y", "numel(x)", "overflows", "NaN"),
    benchmarks=(
        Benchmark(bce.benchmark(OP, gradient=True)),
        Benchmark(bce.benchmark(OP, gradient=True, weighted=True), note="pos_weight"),
    ),
    accuracies=(
        accuracy.pointwise(OP, bce.OPERANDS | GRADIENT, exponent=bce.minus_magnitude),
        accuracy.pointwise(OP, bce.OPERANDS | GRADIENT | bce.WEIGHTS, note="weighted", exponent=bce.minus_magnitude),
    ),
)
