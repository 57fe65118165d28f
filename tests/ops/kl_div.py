"""KlDiv: the Kullback-Leibler divergence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, kl_div, losses, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN, normal, uniform
from tests.ops._shared.losses import BATCHMEAN, MEAN, NAMES, NONE, SUM
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Record, Worked, like, limits

OP = "KlDiv"


def _parts(self: ArrayLike, target: ArrayLike, log_target: int, dtype: Reals) -> tuple[Array, Array, Array]:
    """Weight, logarithm of the target, and self, each over S."""
    x, t = real(self, dtype), real(target, dtype)
    weight, logarithm = (np.exp(t), t) if log_target else (t, np.log(t))
    none = (t == -math.inf) if log_target else (t == 0)
    return tuple(np.broadcast_arrays(np.where(none, 0, weight), np.where(none, 0, logarithm), x))  # type: ignore[return-value]


def oracle(
    self: ArrayLike, target: ArrayLike, reduction: int = 1, log_target: int = 0, *, dtype: Reals = np.float64
) -> Array:
    """target * (log(target) - self), or exp(target) * (target - self); a target of weight 0 gives 0."""
    with np.errstate(all="ignore"):
        weight, logarithm, x = _parts(self, target, log_target, dtype)
        terms = np.where((weight == 0) & (logarithm == 0), 0, weight * (logarithm - x))
        return losses.reduced(np.asarray(terms, dtype), reduction)


def terms(
    self: ArrayLike, target: ArrayLike, reduction: int = 1, log_target: int = 0, *, dtype: Reals = np.float64
) -> Array:
    """weight * max(|log(target)|, |self|); of a sum the sum itself, which is what is rounded."""
    if reduction != NONE:
        return np.abs(oracle(self, target, reduction, log_target, dtype=dtype))
    return _sizes(self, target, log_target, dtype)


def _sizes(self: ArrayLike, target: ArrayLike, log_target: int, dtype: Reals = np.float64) -> Array:
    with np.errstate(all="ignore"):
        weight, logarithm, x = _parts(self, target, log_target, dtype)
        sizes = np.abs(weight) * np.maximum(np.abs(logarithm), np.abs(x))
        return np.where((weight == 0) & (logarithm == 0), 0, sizes)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> float:
    reduction = call.attributes.get("reduction", MEAN)
    if reduction == NONE:
        return 0.0
    sizes = _sizes(call.given["self"], call.given["target"], call.attributes.get("log_target", 0))
    return losses.of_sums(sizes, reduction)


def calls() -> Iterator[Call]:
    yield from kl_div.shapes(OP, gradient=False)
    yield from kl_div.one_extreme(OP, False, 0, (0.0, 1e-40, INF, NAN, -1.0))
    for dtype, log_target in itertools.product(FLOATS, (0, 1)):
        x, t = kl_div.special_pairs(dtype, 6e-8, 80.0 if log_target else 3e4)
        for reduction in (NONE, SUM):
            label = f"special-{dtype.name}-{log_target}-{reduction}"
            inputs = {"self": x, "target": t}
            if reduction == NONE:
                yield Call(OP, inputs, {"reduction": NONE, "log_target": log_target}, label=label)
            else:  # targets of weight 0 beside self of any kind: nothing but 0 is added up
                none = np.full(x.shape, -INF if log_target else 0.0, dtype)
                yield Call(OP, {"self": x, "target": none}, {"reduction": SUM, "log_target": log_target}, label=label)
        t = uniform((300,), dtype, "near", low=-4.0 if log_target else 0.01)
        near = t if log_target else np.log(t.astype(np.float64)).astype(dtype)  # the terms all but cancel
        for reduction in (NONE, MEAN):
            settings = {"reduction": reduction, "log_target": log_target}
            yield Call(OP, {"self": near, "target": t}, settings, label=f"near-{dtype.name}-{log_target}-{reduction}")


def worked(dtype: DType) -> Iterator[Worked]:
    def call(label: str, own: object, target: object, **attributes: int) -> Call:
        return Call(OP, {"self": np.array(own, dtype), "target": np.array(target, dtype)}, attributes, label=label)

    # log(1) = 0, and a target of 0 gives 0 whatever self is
    own, target = [[1.0, NAN], [-2.0, 4.0]], [[1.0, 0.0], [1.0, 1.0]]
    for reduction, expected in ((NONE, [[-1.0, 0.0], [2.0, -4.0]]), (MEAN, -0.75), (SUM, -3.0), (BATCHMEAN, -1.5)):
        yield Worked(call(NAMES[reduction], own, target, reduction=reduction), {"out": expected})
        logarithms = call(f"log_{NAMES[reduction]}", own, [[0.0, -INF], [0.0, 0.0]], reduction=reduction, log_target=1)
        yield Worked(logarithms, {"out": expected})
        # a scalar counts as a batch of 1
        yield Worked(call(f"scalar_{NAMES[reduction]}", -3.0, 1.0, reduction=reduction), {"out": 3.0})
    for shape, expected_ in (((0,), (NAN, 0.0, NAN)), ((2, 0), (NAN, 0.0, 0.0)), ((0, 2), (NAN, 0.0, NAN))):
        for reduction, expected in zip((MEAN, SUM, BATCHMEAN), expected_, strict=True):
            label = f"empty_{shape}_{reduction}"
            yield Worked(call(label, np.zeros(shape), np.zeros(shape), reduction=reduction), {"out": expected})
    yield Worked(call("negative", [0.0, 1.0], [-1.0, 1.0], reduction=NONE), {"out": [NAN, -1.0]})
    entropy = 0.5 * math.log(0.5)
    small = {2: 1e-2, 4: 1e-6, 8: 1e-15}[dtype.itemsize]
    yield Worked(call("logarithm", [0.0, 0.5], [0.5, 0.5], reduction=NONE), {"out": [entropy, entropy - 0.25]}, small)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    this, target = with_torch.tensors(torch, call)
    reduction = NAMES[call.attributes.get("reduction", MEAN)]
    return lambda: kl_div.torch_loss(torch, call, this, target, reduction)


def benchmark(reduction: int, log_target: int = 0) -> Callable[[int, DType], Call]:
    def make(elements: int, dtype: DType) -> Call:
        matrix = (elements // 100, 100)
        target = uniform(matrix, dtype, "target")
        inputs = {"self": normal(matrix, dtype, "self"), "target": -target if log_target else target}
        return Call(OP, inputs, {"reduction": reduction, "log_target": log_target})

    return make


OPERANDS = {"self": accuracy.FACTOR, "target": accuracy.POSITIVE}
RECORD = Record(
    OP,
    inputs={"self": Input(), "target": Input()},
    # A handful of roundings, each at most 0.5, of terms as large as the logarithm and self; sums are rounded once.
    outputs={"out": like("self", limits=limits(single=4, double=8))},
    attributes={"reduction": losses.REDUCTION_WITH_BATCHMEAN, "log_target": losses.LOG_TARGET},
    oracle=oracle,
    terms=terms,
    slack=slack,
    limit_of=losses.limit_of,
    make=lambda choice: kl_div.operands(choice.form, choice),
    forms=kl_div.FORMS,
    calls=calls,
    worked=worked,
    refusals=lambda plain: kl_div.refusals(plain, gradient=False),
    large=lambda dtype: kl_div.large(OP, False, dtype, ""),
    torch=torch_call,
    documented=("batchmean", "numel(S)", "exp(target)", "NaN"),
    benchmarks=(
        Benchmark(benchmark(BATCHMEAN)),
        Benchmark(benchmark(BATCHMEAN, 1), note="log_target"),
        Benchmark(benchmark(NONE), note="none"),
    ),
    accuracies=(
        accuracy.pointwise(OP, OPERANDS),
        accuracy.pointwise(
            OP,
            {"self": accuracy.FACTOR, "target": accuracy.LOG_PROBABILITY},
            {"log_target": 1},
            note="log_target",
            exponent=lambda call, dtype: real(call.given["target"], dtype),
        ),
    ),
)
