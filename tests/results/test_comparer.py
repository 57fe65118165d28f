"""`backends.check_call`, which compares all results, finds faults of every kind in every output of every op.

What the oracle gives, rounded, passes; with one fault in one output it does not, whatever lies beside it: numbers, or
NaN and infinities that an input brings in or that are planted in the oracle's own results.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backends import BFLOAT16, FLOAT64, FLOATS, Array, Backend, check_call

from tests.ops import RECORDS
from tests.ops._shared.arrays import rng
from tests.ops._shared.record import Call, Record

SPECIAL = (math.nan, math.inf, -math.inf)


@dataclass(frozen=True)
class Output:
    """A right output of a call.

    Attributes:
        actual: rounded to its dtype.
        expected: the same before that.
        beyond: by what an element has to be off to be wrong clearly.
    """

    actual: Array
    expected: Array
    beyond: Array

    @classmethod
    def of(cls, record: Record, call: Call, name: str, portable: bool) -> Output:
        expected, dtype = record.expected(call, np.longdouble)[name], record.output_dtype(call, name)
        with np.errstate(over="ignore"):
            actual = np.asarray(expected.astype(np.float64 if dtype == BFLOAT16 else dtype).astype(dtype))
        if dtype not in FLOATS:
            return cls(actual, expected, np.full(expected.shape, 0.25))
        sizes = (np.abs(array) for array in (expected, record.largest_terms(call).get(name, expected)))
        size = np.maximum(*(np.where(np.isfinite(size), size, 0.0) for size in sizes))
        form = ml_dtypes.finfo(dtype)
        unit = np.maximum(2.0 ** (np.frexp(size)[1] - 1.0), float(form.smallest_normal)) * float(form.eps)
        slack = np.asarray(record.slack(call, name, dtype, portable))
        slack = np.where(np.isfinite(slack), slack, 0.0)
        return cls(actual, expected, slack + (record.limit(call, name, dtype, portable=portable) + 4) * unit)

    @property
    def numbers(self) -> Array:
        """The flat places of numbers of which half is clearly too far off, by size."""
        size = np.abs(self.expected).ravel()
        found = np.flatnonzero(np.isfinite(self.actual.ravel()) & (size / 2 > self.beyond.ravel()))
        return found[np.argsort(size[found])]

    def with_value(self, place: int, value: float) -> Array:
        result = self.actual.copy()
        with np.errstate(over="ignore"):
            result.flat[place] = value
        return result


Fault = Callable[[Output], Array | None]
"""The output with a fault; None if there is no place for it."""


def put(value: float, where: Callable[[Array], Array]) -> Fault:
    """A value in the first of the places that are of a kind."""

    def fault(right: Output) -> Array | None:
        found = np.flatnonzero(where(right.actual))
        return right.with_value(int(found[0]), value) if found.size else None

    return fault


def changed(change: Callable[[float], float]) -> Fault:
    """Another value in place of the largest number."""

    def fault(right: Output) -> Array | None:
        found = right.numbers
        return right.with_value(found[-1], change(float(right.actual.flat[found[-1]]))) if found.size else None

    return fault


def units(sign: int) -> Fault:
    """The smallest number that can be, a few units in the last place beyond what is allowed."""

    def fault(right: Output) -> Array | None:
        if not right.numbers.size:
            return None
        place = int(right.numbers[0])
        return right.with_value(place, float(right.expected.flat[place] + sign * right.beyond.flat[place]))

    return fault


def swapped(right: Output) -> Array | None:
    """The smallest and the largest number."""
    if not right.numbers.size:
        return None
    first, last = right.numbers[[0, -1]]
    if not abs(right.expected.flat[first] - right.expected.flat[last]) > right.beyond.flat[first]:
        return None
    result = right.actual.copy()
    result.flat[[first, last]] = result.flat[[last, first]]
    return result


def row_of_zeros(right: Output) -> Array | None:
    if not right.numbers.size:
        return None
    place = np.unravel_index(right.numbers[-1], right.actual.shape)
    result = right.actual.copy()
    result[place[:-1]] = 0
    return result


def other_dtype(right: Output) -> Array:
    return right.actual.astype(np.longdouble if right.actual.dtype == FLOAT64 else FLOAT64)


ANYWHERE: dict[str, Fault] = {
    "zero for a number": changed(lambda value: 0.0),
    "a row of zeros": row_of_zeros,
    "another dtype": other_dtype,
    "another rank": lambda right: right.actual[None],
    "another size": lambda right: np.concatenate([right.actual, right.actual[:1]]) if right.actual.size > 1 else None,
}
AMONG_NUMBERS: dict[str, Fault] = {
    "half as much again": changed(lambda value: 1.5 * value),
    "the other sign": changed(lambda value: -value),
    "units above": units(1),
    "units below": units(-1),
    "two numbers swapped": swapped,
    "NaN for a number": put(math.nan, np.isfinite),
    "infinity for a number": put(math.inf, np.isfinite),
    "negative infinity for a number": put(-math.inf, np.isfinite),
}
AMONG_SPECIAL: dict[str, Fault] = {
    "a number for NaN": put(1.0, np.isnan),
    "infinity for NaN": put(math.inf, np.isnan),
    "a number for infinity": put(1e4, np.isposinf),
    "a number for negative infinity": put(-1e4, np.isneginf),
    "NaN for infinity": put(math.nan, np.isposinf),
    "NaN for negative infinity": put(math.nan, np.isneginf),
    "the negative infinity": put(-math.inf, np.isposinf),
    "the positive infinity": put(math.inf, np.isneginf),
}
FAULTS = ANYWHERE | AMONG_NUMBERS | AMONG_SPECIAL


def situations(record: Record) -> Iterator[tuple[Record, Call]]:
    """Calls of every dtype and attribute, as they are, with special values in an input, and in the oracle's results."""
    taking = [name for name, given in record.inputs.items() if set(given.dtypes) <= set(FLOATS)]
    for turn, call in enumerate(record.combinations(1)):
        specials = np.roll(SPECIAL, turn)
        yield computed_once(record, call), call
        for name, value in zip(taking, itertools.cycle(specials), strict=False):
            array = call.inputs[name]
            if array is not None and array.size:
                array = array.copy()
                array.flat[rng(str(call), name).integers(array.size)] = value
                changed = call.but({name: array})
                yield computed_once(record, changed), changed
        yield computed_once(replace(record, oracle=with_special_values(record, call, specials)), call), call


def with_special_values(record: Record, call: Call, specials: Array) -> Callable[..., Any]:
    """The oracle with NaN and infinities in place of the first elements of its floating results."""

    def oracle(*inputs: Any, **settings: Any) -> Any:
        results = record.oracle(*inputs, **settings)
        results = tuple(map(np.copy, results if isinstance(results, tuple) else (results,)))
        for name, result in zip(record.outputs, results, strict=True):
            count = min(result.size, max(result.size - 2, 1))
            if name in record.wanted(call) and record.output_dtype(call, name) in FLOATS:
                result.flat[:count] = specials[:count]
        return results

    return oracle


def computed_once(record: Record, call: Call) -> Record:
    """The record for one call alone, whose tolerances are not computed again for each fault."""
    slack = functools.cache(lambda output, dtype, portable: record.slack(call, output, dtype, portable))
    return replace(record, slack=lambda call, output, dtype, portable: slack(output, dtype, portable))


def passes(call: Call, outputs: dict[str, Array], portable: bool) -> bool:
    try:
        check_call(Backend("oracle", lambda call: outputs, portable), call)
    except (AssertionError, pytest.fail.Exception):
        return False
    return True


EVERY_FOURTH = [
    pytest.param(record, marks=() if number % 4 == 0 else pytest.mark.full)
    for number, record in enumerate(RECORDS.values())
]
"""Of the records, for `make test`: they share the comparison."""


@pytest.mark.parametrize("record", EVERY_FOURTH, ids=str)
def test_every_fault_is_found(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: set[tuple[str, str, str]] = set()
    tried_in: set[tuple[str, str, str, np.dtype[Any], bool]] = set()
    for (judged, call), portable in zip(situations(record), itertools.cycle((False, True)), strict=False):
        monkeypatch.setitem(RECORDS, record.op, judged)
        right = {name: Output.of(judged, call, name, portable) for name in judged.wanted(call)}
        outputs = {name: output.actual for name, output in right.items()}
        assert passes(call, outputs, portable), call
        for name, output in right.items():
            beside = "numbers" if np.isfinite(output.actual).all() else "special values"
            for kind, fault in FAULTS.items() if output.actual.dtype in FLOATS else ANYWHERE.items():
                place = (name, kind, beside, output.actual.dtype, portable)
                wrong = None if place in tried_in else fault(output)
                if wrong is not None:
                    assert not passes(call, outputs | {name: wrong}, portable), f"{call}: {kind} in {name}"
                    tried.add((name, kind, beside))
                    tried_in.add(place)
    for name, output in record.outputs.items():
        wanted = set(itertools.product([name], ANYWHERE, ["numbers"]))
        if set(output.dtypes) & set(FLOATS):
            wanted |= set(itertools.product([name], AMONG_NUMBERS, ["numbers"]))
            wanted |= set(itertools.product([name], FAULTS, ["special values"]))
        if name == "log_alpha":  # states that no path reaches are -inf
            wanted = {(name, kind, beside) for name, kind, beside in wanted if beside != "numbers"}
        assert wanted <= tried
