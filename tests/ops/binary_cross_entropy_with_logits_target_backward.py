"""BinaryCrossEntropyWithLogitsTargetBackward: the gradient of binary cross-entropy by the target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, losses
from tests.ops._shared import binary_cross_entropy as bce
from tests.ops._shared.arrays import FLOATS, INF, NAN
from tests.ops._shared.losses import MEAN, NONE, REDUCTION, SUM, softplus
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Record, Worked, like, limits

OP = "BinaryCrossEntropyWithLogitsTargetBackward"


def _parts(grad_output: ArrayLike, inputs: tuple[Any, ...], reduction: int, dtype: Reals) -> tuple[Array, Array, Array]:
    """The factor of the difference, p * softplus(-x) and softplus(x); self's shape."""
    x, _, w, p = bce.widened(*inputs, dtype=dtype)
    factor = real(grad_output, dtype) * w / dtype(losses.divisor(reduction, x.shape))
    return np.broadcast_to(factor, x.shape), p * softplus(-x), softplus(x)


def oracle(grad_output: ArrayLike, *inputs: Any, reduction: int = 1, dtype: Reals = np.float64) -> Array:
    """grad_output * w * (p * softplus(-x) - softplus(x)), divided by numel(self) for mean; self's shape.

    As (p - 1) * softplus(-x) - x where p is near 1, for that does not cancel there.
    """
    x, _, _, p = bce.widened(*inputs, dtype=dtype)
    with np.errstate(all="ignore"):
        factor, first, second = _parts(grad_output, inputs, reduction, dtype)
        written, accurate = first - second, np.where(p == 1, 0, (p - 1) * softplus(-x)) - x
        cancels = np.isfinite(written) & np.isfinite(accurate) & (np.abs(p - 1) < 0.5)
        return np.asarray(factor * np.where(cancels, accurate, written), dtype)


def terms(grad_output: ArrayLike, *inputs: Any, reduction: int = 1, dtype: Reals = np.float64) -> Array:
    """The larger of the two terms of the difference, times its factor."""
    with np.errstate(all="ignore"):
        factor, first, second = _parts(grad_output, inputs, reduction, dtype)
        return np.asarray(np.abs(factor) * np.maximum(np.abs(first), np.abs(second)))


def calls() -> Iterator[Call]:
    yield from bce.shapes(OP, gradient=True)
    yield from bce.special_values(OP, gradient=True)
    for dtype in FLOATS:
        yield from bce.extreme_logits(OP, dtype, gradient=True)


def worked(dtype: DType) -> Iterator[Worked]:
    def call(label: str, grad: object, own: object, reduction: int | None, **weights: object) -> Call:
        values = {"grad_output": grad, "self": own, "target": np.full(np.shape(own), NAN), **weights}
        attributes = {} if reduction is None else {"reduction": reduction}
        return Call(OP, {n: np.array(v, dtype) for n, v in values.items()}, attributes, label=label)

    own = np.array([-4.0, -0.5, 0.0, 2.0, INF, -INF])
    expected = np.array([4.0, 0.5, 0.0, -2.0, -INF, INF])  # -x
    for reduction in (NONE, SUM):
        yield Worked(call(f"minus_x_{reduction}", 1.0, own, reduction), {"grad_target": expected})
    yield Worked(call("mean", 4.0, own[:4], None), {"grad_target": expected[:4]})
    yield Worked(
        call("weight", 2.0, own[:4], NONE, weight=[0.5, 1.0, 4.0, -1.0]), {"grad_target": [4.0, 1.0, 0.0, 4.0]}
    )
    small = {2: 8e-3, 4: 3e-7, 8: 1e-15}[dtype.itemsize]
    zero = call("pos_weight", 1.0, [0.0], NONE, pos_weight=3.0)
    yield Worked(zero, {"grad_target": [2 * math.log(2)]}, small)
    yield Worked(call("empty", 1.0, np.zeros((0, 3)), MEAN), {"grad_target": np.zeros((0, 3))})


GRADIENT = {"grad_output": accuracy.FACTOR}
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), **bce.INPUTS},
    # A handful of roundings, each at most 0.5; one more for exp and for log1p.
    outputs={"grad_target": like("target", limits=limits(single=4, double=8))},
    attributes={"reduction": REDUCTION},
    oracle=oracle,
    terms=terms,
    make=lambda choice: bce.operands(choice.form, choice),
    forms=bce.FORMS,
    calls=calls,
    worked=worked,
    refusals=lambda plain: bce.refusals(plain, gradient=True),
    large=lambda dtype: bce.large(OP, True, dtype),
    torch=lambda torch, call: bce.torch_backward(torch, call, "target"),
    documented=("softplus", "NaN"),
    unread=("target",),
    benchmarks=(
        Benchmark(bce.benchmark(OP, gradient=True)),
        Benchmark(bce.benchmark(OP, gradient=True, weighted=True), note="pos_weight"),
    ),
    accuracies=(
        accuracy.pointwise(OP, bce.OPERANDS | GRADIENT),
        accuracy.pointwise(OP, bce.OPERANDS | GRADIENT | bce.WEIGHTS, note="weighted"),
    ),
)
