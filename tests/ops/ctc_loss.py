"""CtcLoss: the loss, and the forward variables that its gradient needs. Letters as in `_shared/ctc.py`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, ctc, with_torch
from tests.ops._shared.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INF, NAN
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
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
    like,
    limits,
)

OP = "CtcLoss"
LOG_PROBS, FLOAT, DOUBLE = 0, 1, 11
STASHED = {FLOAT: FLOAT32, DOUBLE: FLOAT64}


def oracle(
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    blank: int = 0,
    zero_infinity: int = 0,
    stash_type: int = 0,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, Array, Array]:
    """neg_log_likelihood (N), log_alpha (N, T, A), and the loss (N): the first, or 0 for +inf with zero_infinity."""
    del stash_type
    loss, log_alpha = ctc.forward(log_probs, targets, input_lengths, target_lengths, blank, dtype=dtype)
    return loss, log_alpha, np.where(np.isposinf(loss) & bool(zero_infinity), 0, loss)


def stash_dtype(call: Call) -> DType:
    """The dtype of neg_log_likelihood and log_alpha."""
    return STASHED.get(call.attributes.get("stash_type", LOG_PROBS), call.dtype("log_probs"))


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """A logarithm of a probability near 1 is as good as the exponents it is a sum of: a few roundings of each step."""
    steps = call.given["log_probs"].shape[0]
    sizes = np.abs(real(call.given["log_probs"]))
    largest = float(sizes.max(initial=1.0, where=np.isfinite(sizes)))
    return 2.0**-50 * max(steps, 1) * largest


def make(choice: Choice) -> dict[str, Array | None]:
    return dict(ctc.inputs_of(choice))


def calls() -> Iterator[Call]:
    def call(label: str, inputs: dict[str, Array], **attributes: int) -> Call:
        return Call(OP, dict(inputs), attributes, label=label)

    for (steps, number), flat in itertools.product([(0, 0), (0, 3), (5, 0), (0, 1)], (False, True)):
        inputs = ctc.forward_inputs([[]] * number, [0] * number, steps=steps, flat=flat)
        yield call(f"empty_T{steps}_N{number}_{flat:d}", inputs)
    for zero_infinity in (0, 1):
        no_time = ctc.forward_inputs([[1, 2], [3], []], [0, 0, 0], steps=0)
        yield call(f"no_time_with_targets_{zero_infinity}", no_time, zero_infinity=zero_infinity)
        inputs = ctc.forward_inputs([[1], [2]], [4, 4])
        inputs["log_probs"][:, 0, 1] = -INF
        yield call(f"no_probability_{zero_infinity}", inputs, zero_infinity=zero_infinity)
    yield call("one_class", ctc.forward_inputs([[]], [4], 1))
    for samples in ([[0, 1]], [[1, 0]], [[1, 0, 1], [0]], [[0, 0], [2, 0, 2]]):
        label = f"blank_in_target_{samples}".replace(" ", "")
        yield call(label, ctc.forward_inputs(samples, [6] * len(samples)))
    logits = np.array(real(ctc.forward_inputs([[1]] * 2, [8, 8], 5)["log_probs"]))
    logits[:, :, 4], logits[:3, 0, 2], logits[2, 1, 0], logits[5, 1, 1] = -INF, -INF, -INF, -INF
    masked = ctc.forward_inputs([[1, 2], [1, 3, 1]], [8, 8], 5, log_probs=ctc.log_softmax(logits))
    yield call("masked_classes", masked)
    for step, label, value in itertools.product((0, 3, 6), (0, 3, 4), (NAN, -INF)):  # class 4 is in no target
        inputs = ctc.forward_inputs([[1, 2], [3], [2, 2]], [7, 7, 7], 5)
        inputs["log_probs"][step, 1, label] = value
        yield call(f"{value}_{step}_{label}", inputs)
    inputs = ctc.forward_inputs([[1, 2], [3], []], [6, 4, 0], steps=6)
    for n, length in enumerate(inputs["input_lengths"]):  # what lies beyond the lengths is not used
        inputs["log_probs"][length:, n] = NAN
    inputs["targets"][1:, 1:] = 10**9
    yield call("beyond_the_lengths", inputs)
    for level in (-1000.0, -300.0, 300.0):  # products of rows like these leave float64 after a few steps
        logits = ctc.forward_inputs([[1]] * 2, [12, 12])["log_probs"] * 3 + level
        yield call(f"level_{level}", ctc.forward_inputs([[1, 2, 1], [3]], [12, 9], log_probs=logits))
    logits = ctc.forward_inputs([[1]] * 2, [30, 30])["log_probs"]
    logits[15, 0] -= 1000  # a step that every path goes through
    logits[:, 1, 1:] -= np.array([0.0, 500.0, 1000.0])
    yield call("unlikely_step", ctc.forward_inputs([[1, 2], [1, 3, 2]], [30, 30], log_probs=logits))


def worked(dtype: DType) -> Iterator[Worked]:
    def call(label: str, inputs: dict[str, Array], **attributes: int) -> Call:
        return Call(OP, dict(inputs), attributes, label=label)

    # T = 2, target 1 of the classes 0 and 1, equal probabilities: the paths 01, 10 and 11.
    half = math.log(0.5)
    inputs = ctc.forward_inputs([[1]], [2], 2, dtype=dtype, log_probs=np.full((2, 1, 2), half))
    rounded = float(np.array(half, dtype))
    alpha = np.array([[[rounded, rounded, -INF], [2 * rounded, math.log(3) + 2 * rounded, 2 * rounded]]])
    alpha[0, 1, 1] = math.log(2) + 2 * rounded  # from the blank and from the label itself
    expected = {"neg_log_likelihood": [-2 * rounded - math.log(3)], "log_alpha": alpha}
    exact = {**expected, "loss": expected["neg_log_likelihood"]}
    small = {2: 8e-3, 4: 3e-7, 8: 1e-14}[dtype.itemsize]
    yield Worked(call("halves", inputs), exact, rtol=small)
    # No time: 0 for an empty target, +inf for any other; the loss of which zero_infinity makes 0.
    inputs = ctc.forward_inputs([[], [1]], [0, 0], 2, steps=1, dtype=dtype)
    for zero_infinity, loss in ((0, [0.0, INF]), (1, [0.0, 0.0])):
        outputs = {"neg_log_likelihood": [0.0, INF], "log_alpha": np.full((2, 1, 3), -INF), "loss": loss}
        yield Worked(call(f"no_time_{zero_infinity}", inputs, zero_infinity=zero_infinity), outputs)


def refusals(plain: Call) -> Iterator[Refusal]:
    yield from ctc.refusals(plain, ("input_lengths", "target_lengths"))
    for stash_type in (-1, 2, 10, 16):
        words = ("'stash_type'", f" {stash_type},", "expected")
        yield Refusal(f"stash_type_{stash_type}", words, attributes={"stash_type": stash_type})
    double = {"log_probs": plain.given["log_probs"].astype(np.float64)}
    yield Refusal("narrower_stash", ("'stash_type'", "double"), double, {"stash_type": FLOAT})


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    if call.dtype("targets").kind != "i":
        return None
    log_probs, targets, input_lengths, target_lengths = with_torch.tensors(torch, call)
    lengths = (input_lengths.tolist(), target_lengths.tolist())
    blank, zero_infinity = call.attributes.get("blank", 0), bool(call.attributes.get("zero_infinity", 0))
    return lambda: torch.ops.aten._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)


def random_call(size: tuple[int, int, int, int], dtype: DType, spread: float = 1.0) -> Call:
    inputs = ctc.random_inputs(size, dtype, np.random.default_rng(accuracy.SEED), spread)
    return Call(OP, dict(inputs), outputs=("neg_log_likelihood", "log_alpha"))


def judged(dtype: DType) -> Iterator[Call]:
    """Sequences of several lengths."""
    for steps in (100, 500, 1000):
        yield replace(random_call((steps, 4, 40, steps // 5), dtype, spread=2.0), label=str(steps))


# Computed in double and rounded once.
ROUNDED = limits(single=0.51, double=1)
STASH = Output(stash_dtype, limits=ROUNDED, portable_limits=ROUNDED)
RECORD = Record(
    OP,
    inputs={"log_probs": Input(), **ctc.INPUTS},
    outputs={
        "neg_log_likelihood": STASH,
        "log_alpha": STASH,
        "loss": like("log_probs", optional=True, limits=ROUNDED, portable_limits=ROUNDED),
    },
    attributes={**ctc.ATTRIBUTES, "stash_type": Attribute(LOG_PROBS, (LOG_PROBS, FLOAT, DOUBLE))},
    joint={
        ("log_probs", "stash_type"): [
            (dtype, stash)
            for dtype in (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
            for stash in (LOG_PROBS, FLOAT, DOUBLE)
            if dtype != FLOAT64 or stash != FLOAT
        ]
    },
    oracle=oracle,
    slack=slack,
    make=make,
    forms=ctc.FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=lambda dtype: (Call(OP, dict(ctc.large_batch(dtype)), {"stash_type": DOUBLE}, label="batch"),),
    torch=torch_call,
    documented=("log_alpha", "Graves", "(N, T, A)", "zero_infinity", "blank", "-inf", "stash_type"),
    benchmarks=(Benchmark(random_call, ctc.SIZES, of_torch=ctc.OF_TORCH),),
    accuracies=(accuracy.Accuracy(judged),),
)
