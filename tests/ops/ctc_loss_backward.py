"""CtcLossBackward: the gradient of the CTC loss. Letters as in `_shared/ctc.py`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, ctc, with_torch
from tests.ops._shared.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INF, NAN, normal, uniform
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    like,
    limits,
    onnx_name,
)

OP = "CtcLossBackward"


def oracle(
    grad_out: ArrayLike,
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    neg_log_likelihood: ArrayLike,
    log_alpha: ArrayLike,
    blank: int = 0,
    zero_infinity: int = 0,
    through_log_softmax: int = 1,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """Gradient (T, N, C) of the loss, times grad_out (N,); Graves et al. 2006, eq. 14-16.

    grad_out[n] * (exp(log_probs) - exp(logsum_{s: l'_s = c}(log_alpha + log_beta) + neg_log_likelihood - log_probs)),
    the first exp left out unless through_log_softmax. log_alpha (N, T, >= A) and neg_log_likelihood are used as given.
    A state has a term unless its log_alpha or its log_beta is -inf; a class without terms contributes 0 to the second
    exp. 0 for t >= input_length. A loss of +inf gives NaN for t < input_length, or 0 with zero_infinity; NaN gives NaN.
    """
    loss = real(neg_log_likelihood, dtype)
    given = (log_probs, targets, input_lengths, target_lengths, loss, log_alpha, blank)
    first, posterior = ctc.terms_of_gradient(*given, dtype)
    with np.errstate(all="ignore"):
        out = real(grad_out, dtype)[:, None] * ((first if through_log_softmax else 0) - posterior)
    lost = np.where((loss == math.inf) & bool(zero_infinity), 0, math.nan)[:, None]
    out = np.where((loss < math.inf)[:, None], out, lost)
    return np.where(ctc.inside(out, input_lengths), out, 0)


def terms(
    grad_out: ArrayLike,
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    neg_log_likelihood: ArrayLike,
    log_alpha: ArrayLike,
    blank: int = 0,
    zero_infinity: int = 0,
    through_log_softmax: int = 1,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """The larger of the two terms of the difference of `oracle`, times |grad_out| (T, N, C)."""
    del zero_infinity
    loss = real(neg_log_likelihood, dtype)
    given = (log_probs, targets, input_lengths, target_lengths, loss, log_alpha, blank)
    first, posterior = ctc.terms_of_gradient(*given, dtype)
    with np.errstate(all="ignore"):
        return np.abs(real(grad_out, dtype))[:, None] * np.maximum(first if through_log_softmax else 0, posterior)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> float:
    """Absolute, per unit of grad_out, beyond the rounding.

    All is computed in float64, from exponents as large as the loss, so a loss of 1000 leaves 1000 * 2**-52; 1e-6 is
    what is promised for float32.
    """
    sizes = np.abs(real(call.given["grad_out"]))
    return (1e-12 if dtype == FLOAT64 else 1e-9) * float(sizes.max(initial=1.0, where=np.isfinite(sizes)))


def with_results(
    inputs: dict[str, Array], dtype: npt.DTypeLike, wide: npt.DTypeLike, blank: int, grad_out: Array
) -> dict[str, Array | None]:
    """All inputs of the op, the forward op's results worked out from log_probs as `inputs` hold them.

    wide: the dtype, or dtypes, of neg_log_likelihood and log_alpha.
    """
    loss, log_alpha = ctc.forward(*inputs.values(), blank)  # type: ignore[arg-type]
    kinds = wide if isinstance(wide, tuple) else (wide, wide)
    with np.errstate(over="ignore"):
        results = {"neg_log_likelihood": loss.astype(kinds[0]), "log_alpha": log_alpha.astype(kinds[1])}
    return {"grad_out": grad_out.astype(dtype), **inputs, **results}


def make(choice: Choice) -> dict[str, Array | None]:
    inputs = ctc.inputs_of(choice)
    wide = (choice.dtype("neg_log_likelihood"), choice.dtype("log_alpha"))
    grad_out = uniform((len(choice.form.samples),), FLOAT64, "grad", low=-1.0, high=2.0)
    return with_results(inputs, choice.dtype("grad_out"), wide, choice.attributes["blank"], grad_out)


def batch(label: str, inputs: dict[str, Array], grad_out: Array | None = None, **attributes: int) -> Call:
    """A call in float64 of given forward inputs."""
    grad = np.ones(len(inputs["input_lengths"])) if grad_out is None else grad_out
    return Call(OP, with_results(inputs, FLOAT64, FLOAT64, attributes.get("blank", 0), grad), attributes, label=label)


def calls() -> Iterator[Call]:
    for (steps, number), flat in itertools.product([(0, 0), (0, 3), (5, 0), (0, 1)], (False, True)):
        inputs = ctc.forward_inputs([[]] * number, [0] * number, steps=steps, flat=flat)
        yield batch(f"empty_T{steps}_N{number}_{flat:d}", inputs)
    yield batch("no_time_with_targets", ctc.forward_inputs([[1, 2], [3]], [0, 0], steps=0))
    yield batch("one_class", ctc.forward_inputs([[]], [4], 1))
    for through in (0, 1):
        for samples in ([[0, 1]], [[1, 0]], [[1, 0, 1], [0]], [[0, 0], [2, 0, 2]]):
            inputs = ctc.forward_inputs(samples, [6] * len(samples))
            yield batch(f"blank_in_target_{samples}_{through}".replace(" ", ""), inputs, through_log_softmax=through)
        for zero_infinity in (0, 1):  # a sample that would fit, but every path through its label has probability 0
            inputs = ctc.forward_inputs([[1], [2]], [4, 4])
            inputs["log_probs"][:, 0, 1] = -INF
            settings = {"zero_infinity": zero_infinity, "through_log_softmax": through}
            yield batch(f"no_probability_{zero_infinity}_{through}", inputs, **settings)
        logits = normal((8, 2, 5), FLOAT64, "masked", scale=2.0)
        logits[:, :, 4] = -INF  # in no target
        logits[:3, 0, 2] = -INF  # the last label, where it cannot be yet
        logits[2, 1, 0] = -INF  # a blank in the middle
        logits[5, 1, 1] = -INF
        inputs = ctc.forward_inputs([[1, 2], [1, 3, 1]], [8, 8], 5, log_probs=ctc.log_softmax(logits))
        yield batch(f"masked_classes_{through}", inputs, through_log_softmax=through)
        for step, label in [(0, 3), (3, 3), (6, 0), (3, 4)]:  # class 4 is in no target
            inputs = ctc.forward_inputs([[1, 2], [3], [2, 2]], [7, 7, 7], 5)
            inputs["log_probs"][step, 1, label] = NAN
            yield batch(f"nan_{step}_{label}_{through}", inputs, through_log_softmax=through)
    for value in (NAN, INF, -INF, 0.0, -3.0):
        inputs = ctc.forward_inputs([[1, 2], [3]], [6, 5])
        yield batch(f"grad_out_{value}", inputs, np.array([value, 1.0]))


def worked(dtype: DType) -> Iterator[Worked]:
    """T = 2, classes blank and 1, target 1, all probabilities 1/2: paths 01, 10, 11, so P(1 at t) = 2/3."""
    inputs = ctc.forward_inputs([[1]], [2], 2, dtype=dtype, log_probs=np.full((2, 1, 2), math.log(0.5)))
    call = Call(OP, with_results(inputs, dtype, FLOAT64, 0, np.ones(1)), label="halves")
    expected = np.broadcast_to([0.5 - 1 / 3, 0.5 - 2 / 3], (2, 1, 2))
    # A half of ln(2) has few digits left.
    yield Worked(call, {"out": expected}, rtol=0.02 if dtype.itemsize == 2 else 1e-6)


def refusals(plain: Call) -> Iterator[Refusal]:
    yield from ctc.refusals(plain, ("grad_out", "neg_log_likelihood", "input_lengths", "target_lengths"))
    for shape, words in (
        ((3, 5, 5), ("(2, 5, 5)", "'log_probs'")),
        ((2, 4, 5), ("(2, 5, 5)", "'log_probs'")),
        ((2, 5), ("'log_probs'",)),
        ((2, 5, 0), ("state",)),
    ):
        change = {"log_alpha": np.zeros(shape, np.float32)}
        label = f"log_alpha_of_{'x'.join(map(str, shape))}"
        expected = ("'log_alpha'", str(shape), "expected", *words)
        yield Refusal(label, expected, change, by_rank=len(shape) == 2)
    narrow = {"log_alpha": np.zeros((2, 5, 4), np.float32)}
    yield Refusal("log_alpha_too_narrow", ("'log_alpha'", "4", "5", "target length 2"), narrow, by_values=True)
    for name, kinds in {
        "grad_out": (FLOAT16, FLOAT64),
        "neg_log_likelihood": (FLOAT16, BFLOAT16),
        "log_alpha": (FLOAT16, BFLOAT16),
    }.items():
        for kind in kinds:
            words = (f"'{name}'", onnx_name(kind), "'log_probs'", "float")
            yield Refusal(f"{name}_of_{kind.name}", words, {name: plain.given[name].astype(kind)})
    half = {"grad_out": np.zeros(2, FLOAT16), "log_probs": np.zeros((5, 2, 4), FLOAT16)}
    # Neither of the 16-bit types is the wider one.
    mixed = {**half, "neg_log_likelihood": np.zeros(2, BFLOAT16)}
    yield Refusal("bfloat16_beside_float16", ("'neg_log_likelihood'", "bfloat16", "float16"), mixed)


def large(dtype: DType) -> Iterator[Call]:
    inputs = dict(ctc.large_batch(dtype))
    grad_out = uniform((40,), FLOAT64, "grad", low=-1.0, high=2.0)
    yield Call(OP, with_results(inputs, dtype, FLOAT64, 0, grad_out), label="batch")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    if not call.attributes.get("through_log_softmax", 1) or call.dtype("targets").kind != "i":
        return None
    named = dict(zip(call.inputs, with_torch.tensors(torch, call), strict=True))
    settings = (call.attributes.get("blank", 0), bool(call.attributes.get("zero_infinity", 0)))
    lengths = (named["input_lengths"].tolist(), named["target_lengths"].tolist())
    results = (named["neg_log_likelihood"], named["log_alpha"])
    arguments = (named["grad_out"], named["log_probs"], named["targets"], *lengths, *results, *settings)
    return lambda: torch.ops.aten._ctc_loss_backward(*arguments)


def random_call(size: tuple[int, int, int, int], dtype: DType, spread: float = 1.0) -> Call:
    """Loss and forward variables in float32 for the 16-bit dtypes."""
    random = np.random.default_rng(accuracy.SEED)
    inputs = ctc.random_inputs(size, dtype, random, spread)
    grad_out = random.uniform(0.5, 1.5, size=size[1])
    return Call(OP, with_results(inputs, dtype, np.promote_types(dtype, np.float32), 0, grad_out))


def judged(dtype: DType) -> Iterator[Call]:
    """Sequences of several lengths."""
    for steps in (100, 500, 1000):
        yield replace(random_call((steps, 4, 40, steps // 5), dtype, spread=2.0), label=str(steps))


# (grad_out, log_probs; neg_log_likelihood; log_alpha): the same, or wider
WIDENINGS = [
    (own, own, loss, alpha)
    for own, *wider in ((FLOAT16, FLOAT32, FLOAT64), (BFLOAT16, FLOAT32, FLOAT64), (FLOAT32, FLOAT64), (FLOAT64,))
    for loss, alpha in itertools.product([own, *wider], repeat=2)
]
RECORD = Record(
    OP,
    inputs={
        "grad_out": Input(variable="T"),
        "log_probs": Input(variable="T"),
        **ctc.INPUTS,
        "neg_log_likelihood": Input(),
        "log_alpha": Input(),
    },
    outputs={
        "out": like("log_probs", limits=limits(single=2, double=0.51), portable_limits=limits(single=8, double=8))
    },
    attributes={**ctc.ATTRIBUTES, "through_log_softmax": Attribute(1, (0, 1), (-1, 2))},
    joint={("grad_out", "log_probs", "neg_log_likelihood", "log_alpha"): WIDENINGS},
    oracle=oracle,
    terms=terms,
    slack=slack,
    make=make,
    forms=ctc.FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "log_alpha", "log_beta", "Graves", "(T, N, C)", "zero_infinity", "blank", "-inf"),
    benchmarks=(Benchmark(random_call, ctc.SIZES, of_torch={**ctc.OF_TORCH, "200x8x5000x30": 5.0}),),
    accuracies=(accuracy.Accuracy(judged, absolute=True),),
)
