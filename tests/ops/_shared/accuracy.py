"""Inputs by which the tables of accuracy judge an op: magnitudes of all sizes, and every value of the 16-bit dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ops._shared.losses import MEAN, NONE
from tests.ops._shared.numbers import Array, Reals
from tests.ops._shared.record import Accuracy, Call, DType

SEED = 0
RANDOM = 300_000
# How many random sets of the other operands each value of a 16-bit operand is tried with.
MEETINGS = 6
COLUMNS = 96
CHANNELS = 64

Range = tuple[float, float]
Sampler = Callable[[np.random.Generator, int, Range], Array]

# Exponents of 2 of the factors: three of them multiply without leaving the range of the dtype that is computed in,
# float32 for the 16-bit ones. Where one operand takes all values, the others lie between the exponents in OTHERS.
FACTORS = {"float16": (-24, 15), "bfloat16": (-40, 40), "float32": (-40, 40), "float64": (-300, 300)}
OTHERS = (-4, 0)
# The same of logits and log-probabilities x. Near the upper end exp(-x) is subnormal.
LOGITS = {"float16": (-20, 15), "bfloat16": (-20, 6.6), "float32": (-20, 6.6), "float64": (-20, 9.5)}
# The same of x where exp(x) is normal: in float32 down to -87, in float64 to -708.
EXPONENTS = {"float16": (-20, 15), "bfloat16": (-20, 6.4), "float32": (-20, 6.4), "float64": (-20, 9.4)}
STATISTICS = (-4, 4)
LARGEST_LOG_PROBABILITY = 8.0
SMALLEST_PROBABILITY = -20


def factors(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    """Numbers of both signs, their magnitudes between two powers of 2, evenly on a logarithmic scale."""
    return np.asarray(rng.choice([-1.0, 1.0], count) * positive(rng, count, exponents))


def positive(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    return np.asarray(np.exp2(rng.uniform(*exponents, count)))


def log_probabilities(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    """Logarithms of numbers down to very small ones; some exceed 0."""
    return np.minimum(factors(rng, count, exponents), LARGEST_LOG_PROBABILITY)


def probabilities(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    """A quarter zeros, a quarter ones, and in between small ones as well as evenly spread ones."""
    kinds = [np.zeros(count), np.ones(count), positive(rng, count, (SMALLEST_PROBABILITY, 0)), rng.random(count)]
    return np.choose(rng.integers(4, size=count), kinds)


def around_threshold(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    """One in eight numbers is the threshold of hardshrink, 0.5, or its negative."""
    return np.where(rng.random(count) < 1 / 8, rng.choice([-0.5, 0.5], count), factors(rng, count, exponents))


@dataclass(frozen=True)
class Operand:
    """How numbers for an input are drawn; `exponents` by dtype."""

    draw: Sampler
    exponents: Mapping[str, Range]


FACTOR = Operand(factors, FACTORS)
POSITIVE = Operand(positive, FACTORS)
LOGIT = Operand(factors, LOGITS)
EXPONENT = Operand(factors, EXPONENTS)
LOG_PROBABILITY = Operand(log_probabilities, LOGITS)
PROBABILITY = Operand(probabilities, FACTORS)
HARDSHRINK_INPUT = Operand(around_threshold, FACTORS)


def of_calls(make: Callable[[Any, DType], Call], *sizes: Any) -> Accuracy:
    """A row by the calls that `make`, that of a benchmark say, makes of these sizes."""
    return Accuracy(lambda dtype: (make(size, dtype) for size in sizes))


def draws(operands: Sequence[Operand], dtype: DType) -> Iterator[list[Array]]:
    """Values of the operands: random ones, and for the 16-bit dtypes all of one operand after the other."""
    rng = np.random.default_rng(SEED)
    with np.errstate(over="ignore"):
        yield [operand.draw(rng, RANDOM, operand.exponents[dtype.name]).astype(dtype) for operand in operands]
        if dtype.itemsize == 2:
            everything = np.tile(np.arange(2**16, dtype=np.uint16).view(dtype), MEETINGS)
            for i in range(len(operands)):
                values = [operand.draw(rng, everything.size, OTHERS).astype(dtype) for operand in operands]
                values[i] = everything
                yield values


def pointwise(
    op: str,
    operands: Mapping[str, Operand],
    attributes: Mapping[str, Any] | None = None,
    *,
    loss: bool = True,
    note: str = "",
    unread: str = "",
    exponent: Callable[[Call, Reals], Array] | None = None,
) -> Accuracy:
    """An op whose inputs have the shape of the output; what is not in `operands` is left out.

    Losses are judged without a reduction, and once more as a mean, whose gradient is one number.

    Args:
        op: the op_type.
        operands: by name, in the op's order but for `unread`.
        attributes: those that are not left to their defaults.
        loss: whether the op has the attribute `reduction`.
        note: what tells this row from others of the op.
        unread: an input, the second one, whose values are not looked at.
        exponent: the logarithm of the exponential in the formula; where that is not a normal number is a table of its
            own.
    """

    def call(values: Sequence[Array], reduction: int) -> Call:
        given: dict[str, Array | None] = {n: v.reshape(-1, COLUMNS) for n, v in zip(operands, values, strict=True)}
        if reduction == MEAN and "grad_output" in given:
            given["grad_output"] = np.ones((), values[0].dtype)
        if unread:
            first, *others = given.items()
            given = dict([first, (unread, np.zeros((values[0].size // COLUMNS, COLUMNS), values[0].dtype)), *others])
        return Call(op, given, {**(attributes or {}), **({"reduction": reduction} if loss else {})})

    def calls(dtype: DType) -> Iterator[Call]:
        for number, values in enumerate(draws(list(operands.values()), dtype)):
            yield call(values, NONE)
            if loss and number == 0:
                yield call(values, MEAN)

    def tail(call: Call, dtype: Reals) -> Array:
        assert exponent is not None
        computing = np.promote_types(next(iter(call.given.values())).dtype, np.float32)
        exponential = np.exp(exponent(call, dtype))
        return np.asarray((exponential > 0) & (exponential < np.finfo(computing).smallest_normal))

    return Accuracy(calls, note, tail if exponent else None)
