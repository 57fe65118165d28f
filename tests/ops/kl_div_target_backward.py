"""KlDivTargetBackward: the gradient of the Kullback-Leibler divergence by the target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, kl_div, losses
from tests.ops._shared.arrays import FLOATS, INF, NAN, normal, uniform
from tests.ops._shared.losses import BATCHMEAN, MEAN, NAMES, NONE, SUM
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Record, Worked, like, limits

OP = "KlDivTargetBackward"


def _over_space(
    grad_output: ArrayLike, self: ArrayLike, target: ArrayLike, reduction: int = 1, log_target: int = 0, *, dtype: Reals
) -> tuple[Array, Array]:
    """The terms over S, and the largest of the three numbers that each is a sum of, times its factor."""
    shape = np.broadcast_shapes(np.shape(self), np.shape(target))
    g, x, t = real(grad_output, dtype), real(self, dtype), real(target, dtype)
    logarithm = t if log_target else np.log(t)
    factor = g * np.exp(t) if log_target else g
    none = (t == -math.inf) & bool(log_target)
    d = np.where(none, 0, factor * (logarithm - x + 1))
    sizes = np.where(none, 0, np.abs(factor) * np.maximum(np.maximum(np.abs(logarithm), np.abs(x)), 1))
    count = dtype(losses.divisor(reduction, shape))
    return np.broadcast_to(d, shape) / count, np.broadcast_to(sizes, shape) / count


def oracle(*inputs: Any, dtype: Reals = np.float64, **settings: Any) -> Array:
    """grad_output * (log(target) - self + 1), or grad_output * exp(target) * (target - self + 1), summed to target.

    A log target of -inf gives 0.
    """
    with np.errstate(all="ignore"):
        d, _ = _over_space(*inputs, dtype=dtype, **settings)
        return losses.summed_to(np.asarray(d, dtype), np.shape(inputs[2]))


def terms(*inputs: Any, dtype: Reals = np.float64, **settings: Any) -> Array:
    """The largest of all numbers that are added up for an element."""
    with np.errstate(all="ignore"):
        _, sizes = _over_space(*inputs, dtype=dtype, **settings)
        return losses.largest_to(sizes, np.shape(inputs[2]))


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """What the float64 sums may be off by; nothing where there is no sum."""
    own, target = call.given["self"].shape, call.given["target"].shape
    if np.broadcast_shapes(own, target) == target:
        return 0.0
    with np.errstate(all="ignore"):
        _, sizes = _over_space(*call.given.values(), dtype=np.float64, **call.attributes)
        total = losses.summed_to(np.array(sizes), target)
        return np.asarray(np.where(np.isfinite(total), 1e-13 * total, 0.0))


def calls() -> Iterator[Call]:
    yield from kl_div.shapes(OP, gradient=True)
    yield from kl_div.one_extreme(OP, True, 0, (0.0, 1e-40, INF, NAN, -1.0))
    for dtype, log_target in itertools.product(FLOATS, (0, 1)):
        x, t = kl_div.special_pairs(dtype, 6e-8, 80.0 if log_target else 3e4)
        for value in (1.0, -0.5, 0.0, INF, NAN):
            inputs = {"grad_output": np.full(x.shape, value, dtype), "self": x, "target": t}
            settings = {"reduction": NONE, "log_target": log_target}
            yield Call(OP, inputs, settings, label=f"special-{dtype.name}-{log_target}-{value}")


def worked(dtype: DType) -> Iterator[Worked]:
    def call(label: str, grad: object, own: object, target: object, **attributes: int) -> Call:
        values = {"grad_output": grad, "self": own, "target": target}
        return Call(OP, {n: np.array(v, dtype) for n, v in values.items()}, attributes, label=label)

    own, ones = [[1.0, 3.0], [-2.0, 0.5]], np.ones((2, 2))
    whole = np.array([[0.0, -4.0], [6.0, 1.0]])  # 2 * (0 - self + 1)
    for reduction, by in ((NONE, 1), (MEAN, 4), (SUM, 1), (BATCHMEAN, 2)):
        name = NAMES[reduction]
        yield Worked(call(name, 2.0, own, ones, reduction=reduction), {"grad_target": whole / by})
        logarithms = call(f"log_{name}", 2.0, own, np.zeros((2, 2)), reduction=reduction, log_target=1)
        yield Worked(logarithms, {"grad_target": whole / by})
        row = call(f"row_{name}", 2.0, own, np.ones(2), reduction=reduction)
        yield Worked(row, {"grad_target": whole.sum(axis=0) / by})
        scalar = call(f"scalar_{name}", 1.0, own, 1.0, reduction=reduction)
        yield Worked(scalar, {"grad_target": whole.sum() / 2 / by})
        empty = call(f"empty_{name}", NAN, np.zeros((0, 2)), np.zeros(2), reduction=reduction)
        yield Worked(empty, {"grad_target": [0.0, 0.0]})
    edges = call("zero_and_negative", [1.0, -1.0, 1.0], [0.0] * 3, [0.0, 0.0, -1.0], reduction=NONE)
    yield Worked(edges, {"grad_target": [-INF, INF, NAN]})
    edges = call("log_of_zero", [1.0, 1.0], [0.0, -INF], [-INF, -INF], reduction=NONE, log_target=1)
    yield Worked(edges, {"grad_target": [0.0, 0.0]})


def benchmark(log_target: int) -> Callable[[int, DType], Call]:
    def make(elements: int, dtype: DType) -> Call:
        matrix = (elements // 100, 100)
        target = uniform(matrix, dtype, "target", low=0.001)
        inputs = {
            "grad_output": np.ones((), dtype),
            "self": normal(matrix, dtype, "self"),
            "target": -target if log_target else target,
        }
        return Call(OP, inputs, {"reduction": BATCHMEAN, "log_target": log_target})

    return make


OPERANDS = {"grad_output": accuracy.FACTOR, "self": accuracy.FACTOR}
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input(), "target": Input()},
    # A handful of roundings, each at most 0.5, of numbers as large as the logarithm, self and 1.
    outputs={"grad_target": like("target", limits=limits(single=4, double=8))},
    attributes={"reduction": losses.REDUCTION_WITH_BATCHMEAN, "log_target": losses.LOG_TARGET},
    oracle=oracle,
    terms=terms,
    slack=slack,
    make=lambda choice: kl_div.operands(choice.form, choice),
    forms=kl_div.FORMS,
    calls=calls,
    worked=worked,
    refusals=lambda plain: kl_div.refusals(plain, gradient=True),
    large=lambda dtype: kl_div.large(OP, True, dtype, "target"),
    torch=lambda torch, call: kl_div.torch_backward(torch, call, "target"),
    documented=("batchmean", "numel(S)", "exp(target)", "summed over the axes", "NaN"),
    benchmarks=(Benchmark(benchmark(0)), Benchmark(benchmark(1), note="log_target")),
    accuracies=(
        accuracy.pointwise(OP, {**OPERANDS, "target": accuracy.POSITIVE}),
        accuracy.pointwise(
            OP,
            {**OPERANDS, "target": accuracy.LOG_PROBABILITY},
            {"log_target": 1},
            note="log_target",
            exponent=lambda call, dtype: real(call.given["target"], dtype),
        ),
    ),
)
