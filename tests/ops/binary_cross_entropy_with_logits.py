"""BinaryCrossEntropyWithLogits: the loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from tests.ops._shared import accuracy, losses
from tests.ops._shared import binary_cross_entropy as bce
from tests.ops._shared.arrays import FLOATS, INF, NAN
from tests.ops._shared.losses import MEAN, NONE, REDUCTION, SUM, softplus
from tests.ops._shared.numbers import Array, Reals
from tests.ops._shared.record import Benchmark, Call, DType, Record, Worked, like, limits

OP = "BinaryCrossEntropyWithLogits"


def _parts(*inputs: Any, dtype: Reals) -> tuple[Array, Array, Array]:
    """weight, (1 - y) * softplus(x) and p * y * softplus(-x), a term of weight 0 being 0; self's shape."""
    x, y, w, p = bce.widened(*inputs, dtype=dtype)
    wrong, right = 1 - y, np.broadcast_to(p * y, x.shape)
    first = np.where(wrong == 0, 0, wrong * softplus(x))
    second = np.where(right == 0, 0, right * softplus(-x))
    return np.broadcast_to(w, x.shape), first, second


def oracle(*inputs: Any, reduction: int = 1, dtype: Reals = np.float64) -> Array:
    """w * ((1 - y) * softplus(x) + p * y * softplus(-x)); self's shape, or a scalar."""
    with np.errstate(all="ignore"):
        w, first, second = _parts(*inputs, dtype=dtype)
        return losses.reduced(np.asarray(w * (first + second), dtype), reduction)


def terms(*inputs: Any, reduction: int = 1, dtype: Reals = np.float64) -> Array:
    """The larger of the two products; of a sum the sum itself, which is what is rounded."""
    if reduction != NONE:
        return np.abs(oracle(*inputs, reduction=reduction, dtype=dtype))
    with np.errstate(all="ignore"):
        w, first, second = _parts(*inputs, dtype=dtype)
        return np.abs(w) * np.maximum(np.abs(first), np.abs(second))


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """What float64 sums may be off by, and what vanishes below the smallest normal number.

    That may be a softplus, in a function body or in double; and in double a product that has yet to be multiplied by
    the weight and a softplus, which is at most 1 + |x|.
    """
    inputs = [call.inputs.get(name) for name in RECORD.inputs]
    reduction = call.attributes.get("reduction", MEAN)
    with np.errstate(all="ignore"):
        if reduction != NONE:
            w, first, second = _parts(*inputs, dtype=np.float64)
            return losses.of_sums(np.abs(w) * (np.abs(first) + np.abs(second)), reduction)
        x, y, w, p = bce.widened(*inputs, dtype=np.float64)
        factors = np.maximum(np.abs(1 - y), np.abs(p * y))
        if any(array.dtype == np.float64 for array in call.given.values()):
            scale = np.abs(w) * np.maximum(factors, 1 + np.abs(x)) * float(np.finfo(np.float64).smallest_normal)
        elif portable:
            scale = np.abs(w) * factors * float(np.finfo(np.float32).smallest_normal)
        else:
            return 0.0
        return np.asarray(np.broadcast_to(np.where(np.isfinite(scale), scale, 0.0), x.shape))


def calls() -> Iterator[Call]:
    yield from bce.shapes(OP, gradient=False)
    yield from (c for c in bce.special_values(OP, gradient=False) if "weight" not in c.label or "nan" in c.label)
    for dtype in FLOATS:
        # Between the labels 0 and 1 a term that is as large as the dtype allows meets one that is 0, and no other.
        yield from bce.extreme_logits(OP, dtype, gradient=False)
        yield special_targets(dtype)
        yield from long_sums(dtype)


def special_targets(dtype: DType) -> Call:
    pairs = itertools.product([-90.0, -7.0, 0.0, 2.0, 90.0, INF, -INF, NAN], [0.0, 0.5, 1.0, 3.0, INF, -INF, NAN])
    x, y = (np.array(v, dtype) for v in zip(*pairs, strict=True))
    return Call(OP, {"self": x, "target": y}, {"reduction": NONE}, label=f"special_targets-{dtype.name}")


def long_sums(dtype: DType) -> Iterator[Call]:
    """Of logits that are all alike, whose roundings add up: 0, right by far, and one that is infinite among others."""
    count = 2500
    target = np.tile(np.array([0.0, 1.0], dtype), count // 2)
    side = np.where(target == 0, -1.0, 1.0).astype(dtype)
    infinite = (0.3 * side).astype(dtype)
    infinite[count // 2] = INF * side[count // 2]
    logits = {"0": 0 * side, "0.3": (0.3 * side).astype(dtype), "9": 9 * side, "infinite": infinite}
    if dtype.itemsize > 2:
        logits |= {"30": 30 * side, "80": 80 * side}
    for (label, x), weighted in itertools.product(logits.items(), (False, True)):
        inputs = {"self": x.astype(dtype), "target": target}
        inputs |= {"weight": np.array(0.75, dtype), "pos_weight": np.array(3.0, dtype)} if weighted else {}
        yield Call(OP, inputs, {"reduction": MEAN}, label=f"long-{dtype.name}-{label}{'-weighted' * weighted}")


def worked(dtype: DType) -> Iterator[Worked]:
    def call(label: str, own: object, target: object, reduction: int, **weights: object) -> Call:
        values = {"self": own, "target": target, **weights}
        return Call(OP, {n: np.array(v, dtype) for n, v in values.items()}, {"reduction": reduction}, label=label)

    # An infinite logit that is right has loss 0, one that is wrong an infinite one.
    yield Worked(call("infinite", [INF, -INF, INF, -INF], [1.0, 0.0, 0.0, 1.0], NONE), {"out": [0.0, 0.0, INF, INF]})
    yield Worked(call("pos_weight_0", [-INF, 0.0], [1.0, 1.0], SUM, pos_weight=0.0), {"out": 0.0})
    yield Worked(call("nan", [NAN, INF], [1.0, 1.0], NONE), {"out": [NAN, 0.0]})
    half = math.log(2)
    small = {2: 4e-3, 4: 1e-7, 8: 1e-15}[dtype.itemsize]
    yield Worked(call("zero", [0.0, 0.0], [0.0, 1.0], NONE), {"out": [half, half]}, small)
    yield Worked(call("mean", np.zeros((3, 5)), np.full((3, 5), 0.5), MEAN), {"out": half}, small)
    weights = {"weight": [2.0, 0.5], "pos_weight": 3.0}
    yield Worked(call("weights", [0.0, 0.0], [0.0, 1.0], SUM, **weights), {"out": 3.5 * half}, small)
    for reduction, expected in ((MEAN, NAN), (SUM, 0.0)):
        yield Worked(call(f"empty_{reduction}", np.zeros((2, 0)), np.zeros((2, 0)), reduction), {"out": expected})
    # right by far: no digit is lost
    if dtype.itemsize > 2:
        tail = call("tail", [-34.0, 34.0, -60.0], [0.0, 1.0, 0.0], NONE)
        exact = [math.log1p(math.exp(-34)), math.log1p(math.exp(-34)), math.exp(-60)]
        yield Worked(tail, {"out": exact}, rtol=3e-7 if dtype.itemsize == 4 else 1e-15)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    arguments = bce.torch_arguments(torch, call)
    reduction = losses.NAMES[call.attributes.get("reduction", MEAN)]
    return lambda: bce.torch_loss(torch, call, arguments, reduction)


def reduced_benchmark(reduction: int) -> Callable[[int, DType], Call]:
    make = bce.benchmark(OP, gradient=False)
    return lambda elements, dtype: Call(OP, make(elements, dtype).inputs, {"reduction": reduction})


RECORD = Record(
    OP,
    inputs=bce.INPUTS,
    # A handful of roundings, each at most 0.5; one more for exp and for log1p. Sums are rounded once.
    outputs={"out": like("target", limits=limits(single=4, double=8))},
    attributes={"reduction": REDUCTION},
    oracle=oracle,
    terms=terms,
    slack=slack,
    limit_of=losses.limit_of,
    make=lambda choice: bce.operands(choice.form, choice),
    forms=bce.FORMS,
    calls=calls,
    worked=worked,
    refusals=lambda plain: bce.refusals(plain, gradient=False),
    large=lambda dtype: bce.large(OP, False, dtype),
    torch=torch_call,
    documented=("softplus", "log1p(exp(-|x|))", "NaN"),
    benchmarks=(
        Benchmark(bce.benchmark(OP, gradient=False)),
        Benchmark(bce.benchmark(OP, gradient=False, weighted=True), note="pos_weight"),
        Benchmark(reduced_benchmark(NONE), note="none"),
    ),
    accuracies=(
        accuracy.pointwise(OP, bce.OPERANDS, exponent=bce.minus_magnitude),
        accuracy.pointwise(OP, bce.OPERANDS | bce.WEIGHTS, note="weighted", exponent=bce.minus_magnitude),
    ),
)
