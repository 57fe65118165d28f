"""KlDivBackward: the gradient of the Kullback-Leibler divergence by its first argument."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, kl_div
from tests.ops._shared.arrays import FLOAT64, FLOATS, INF, NAN, normal, uniform
from tests.ops._shared.losses import (
    BATCHMEAN,
    LOG_TARGET,
    MEAN,
    NAMES,
    NONE,
    REDUCTION_WITH_BATCHMEAN,
    SUM,
    divisor,
    largest_to,
    summed_to,
)
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Record, Worked, like, limits

OP = "KlDivBackward"


def _over_space(
    grad_output: ArrayLike, self: ArrayLike, target: ArrayLike, reduction: int = 1, log_target: int = 0, *, dtype: Reals
) -> Array:
    """The terms, over S = broadcast(self, target)."""
    shape = np.broadcast_shapes(np.shape(self), np.shape(target))
    grad_output, target = real(grad_output, dtype), real(target, dtype)
    d = -np.exp(target) * grad_output if log_target else -target * grad_output
    return np.broadcast_to(d, shape) / np.asarray(divisor(reduction, shape), dtype)


def oracle(*inputs: Any, dtype: Reals = np.float64, **settings: Any) -> Array:
    """-target * grad_output or -exp(target) * grad_output, divided, summed to the shape of self."""
    with np.errstate(all="ignore"):
        return summed_to(_over_space(*inputs, dtype=dtype, **settings), np.shape(inputs[1]))


def terms(*inputs: Any, dtype: Reals = np.float64, **settings: Any) -> Array:
    """The largest |term| of each sum, 0 for an empty one."""
    with np.errstate(all="ignore"):
        return largest_to(_over_space(*inputs, dtype=dtype, **settings), np.shape(inputs[1]))


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """A float64 sum of n terms, one after another, is off by up to n/2 units; 1e-12 of the largest term."""
    own, target = call.given["self"].shape, call.given["target"].shape
    if dtype != FLOAT64 or np.broadcast_shapes(own, target) == own:
        return 0.0
    with np.errstate(all="ignore"):
        sizes = terms(*call.given.values(), **call.attributes)
        return np.asarray(np.where(np.isfinite(sizes), 1e-12 * sizes, 0.0))


def calls() -> Iterator[Call]:
    yield from kl_div.shapes(OP, gradient=True)
    yield from kl_div.one_extreme(OP, True, 1, (88.5, -90.0, INF, -INF, NAN))
    for dtype, log_target in itertools.product(FLOATS, (0, 1)):
        g, q = kl_div.special_pairs(dtype, 6e-8, 3e4)
        inputs = {"grad_output": g, "self": np.full(g.shape, NAN, dtype), "target": q}
        label = f"special-{dtype.name}-{log_target}"
        yield Call(OP, inputs, {"reduction": NONE, "log_target": log_target}, label=label)
    # Targets of which each fills a long row, beside a grad_output of one value.
    for dtype, length in itertools.product(FLOATS[1:3], (40, 500, 3000)):
        inputs = {
            "grad_output": np.full((), 2.0, dtype),
            "self": np.zeros((3, length), dtype),
            "target": uniform((3, 1), dtype, "column", low=0.01),
        }
        yield Call(OP, inputs, {"reduction": SUM}, label=f"rows_of_{length}-{dtype.name}")
    for value in (NAN, INF):  # only the sum that the value enters sees it
        q = uniform((40, 70), np.float32)
        q[7, 69] = value
        inputs = {"grad_output": np.ones((), np.float32), "self": np.zeros((40, 1), np.float32), "target": q}
        yield Call(OP, inputs, {"reduction": SUM}, label=f"{value}_in_one_sum")


def worked(dtype: DType) -> Iterator[Worked]:
    def call(label: str, grad: object, own: object, target: object, **attributes: int) -> Call:
        values = {"grad_output": grad, "self": own, "target": target}
        return Call(OP, {n: np.array(v, dtype) for n, v in values.items()}, attributes, label=label)

    target = [[1.0, 2.0], [0.0, -4.0], [0.5, 8.0]]
    whole = np.array([[-2.0, -4.0], [-0.0, 8.0], [-1.0, -16.0], [-2.0, -2.0]])
    for reduction, by in ((NONE, 1), (MEAN, 8), (SUM, 1), (BATCHMEAN, 4)):
        own = np.full((4, 2), NAN)
        yield Worked(call(NAMES[reduction], 2.0, own, [*target, [1.0, 1.0]], reduction=reduction), {"out": whole / by})
    column = [[1.0], [2.0], [-1.0]]
    for label, grad, shape, reduction, expected in (
        ("rows", 1.0, (1, 2), SUM, [[-1.5, -6.0]]),
        ("columns", 1.0, (3, 1), SUM, [[-3.0], [4.0], [-8.5]]),
        ("leading", 1.0, (2,), SUM, [-1.5, -6.0]),
        ("mean_of_leading", 6.0, (2,), MEAN, [-1.5, -6.0]),
        ("scalar_batchmean", 3.0, (), BATCHMEAN, -7.5),
        ("rank_3", 1.0, (1, 1, 1), NONE, [[[-7.5]]]),
        ("grad_column", column, (3, 1), NONE, [[-3.0], [8.0], [8.5]]),
        ("scalar_grad_column", column, (), NONE, 13.5),
    ):
        yield Worked(call(label, grad, np.zeros(shape), target, reduction=reduction), {"out": expected})
    for reduction in range(4):  # a scalar counts as a batch of 1; a sum of no terms is 0, whatever it is divided by
        yield Worked(call(f"scalars_{reduction}", 3.0, 0.0, 2.0, reduction=reduction), {"out": -6.0})
        for own, other in (((1, 2), (0, 2)), ((2,), (0, 2)), ((), (0,)), ((0, 1), (3,)), ((3, 1), (3, 0))):
            empty = call(f"empty_{reduction}_{own}", NAN, np.zeros(own), np.zeros(other), reduction=reduction)
            yield Worked(empty, {"out": np.zeros(own)})
    yield Worked(call("default_is_mean", 4.0, [0.0, 0.0], [1.0, 3.0]), {"out": [-2.0, -6.0]})


def benchmark(log_target: int) -> Callable[[int, DType], Call]:
    def make(elements: int, dtype: DType) -> Call:
        matrix = (elements // 100, 100)
        target = uniform(matrix, dtype, "target")
        inputs = {
            "grad_output": np.ones((), dtype),
            "self": normal(matrix, dtype, "self"),
            "target": -target if log_target else target,
        }
        return Call(OP, inputs, {"reduction": BATCHMEAN, "log_target": log_target})

    return make


def summed(dtype: DType) -> Iterator[Call]:
    """Terms summed over each of two axes along which self was broadcast."""
    random = np.random.default_rng(accuracy.SEED)
    shape = (accuracy.RANDOM // accuracy.COLUMNS, accuracy.COLUMNS)
    for own in ((1, shape[1]), (shape[0], 1)):
        factor, probability = accuracy.factors, accuracy.probabilities
        inputs = {
            "grad_output": factor(random, math.prod(shape), accuracy.OTHERS).astype(dtype).reshape(shape),
            "self": np.zeros(own, dtype),
            "target": probability(random, math.prod(shape), accuracy.OTHERS).astype(dtype).reshape(shape),
        }
        yield Call(OP, inputs, {"reduction": NONE})


RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input(), "target": Input()},
    # A handful of roundings, each at most 0.5; one more for exp.
    outputs={"out": like("self", limits=limits(single=4, double=8))},
    attributes={"reduction": REDUCTION_WITH_BATCHMEAN, "log_target": LOG_TARGET},
    oracle=oracle,
    terms=terms,
    slack=slack,
    make=lambda choice: kl_div.operands(choice.form, choice),
    forms=kl_div.FORMS,
    calls=calls,
    worked=worked,
    refusals=lambda plain: kl_div.refusals(plain, gradient=True),
    large=lambda dtype: kl_div.large(OP, True, dtype, "self"),
    torch=lambda torch, call: kl_div.torch_backward(torch, call, "self"),
    documented=(
        f"aclnn{OP}",
        "-target * grad_output",
        "batchmean",
        "numel(S)",
        "exp(target)",
        "summed over the axes",
        "NaN",
    ),
    unread=("self",),
    benchmarks=(Benchmark(benchmark(0)), Benchmark(benchmark(1), note="log_target")),
    accuracies=(
        accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "target": accuracy.FACTOR}, unread="self"),
        accuracy.pointwise(
            OP,
            {"grad_output": accuracy.FACTOR, "target": accuracy.LOG_PROBABILITY},
            {"log_target": 1},
            note="log_target",
            unread="self",
            exponent=lambda call, dtype: real(call.given["target"], dtype),
        ),
        accuracy.Accuracy(summed, "summed"),
    ),
)
