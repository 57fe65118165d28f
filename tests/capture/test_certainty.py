"""Conditions on sizes that are proved to hold for all sizes, compared with their values at many."""

from __future__ import annotations

import itertools
import sys

import pytest
import sympy
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    ToFloat,
)
from torch.utils._sympy.value_ranges import ValueRanges

from onnx_ops.torch.tracing.certainty import certain_sizes, is_certain
from onnx_ops.torch.tracing.sizes import is_of_0_or_1

S, B = (sympy.Symbol(name, integer=True, positive=True) for name in "sb")
PADDED = S + Mod(4 - Mod(S, 4), 4)
CHUNKS = FloorDiv(PADDED, 4)
RANGES = {S: ValueRanges(2, 64), B: ValueRanges(2, 2**48)}

CERTAIN = [
    sympy.Eq(4 * CHUNKS, PADDED),
    sympy.Eq(Mod(S + PythonMod(-S, 4), 4), 0),
    sympy.Or(sympy.Eq(1 + CHUNKS, 1), sympy.Eq(1 + CHUNKS, CHUNKS + Min(1, CHUNKS))),
    sympy.Eq(Mod(4 * B * PADDED, 16 * B), 0),
    sympy.Eq(B * S * FloorDiv(64 * Min(S, 4 * CHUNKS), S), 64 * B * S),
    sympy.Ne(CHUNKS, 0),
    sympy.Eq(FloorDiv(3 * B - 1, B), 2),
    sympy.Eq(FloorDiv(S - 1 + FloorDiv(S + 1, 2), FloorDiv(S + 1, 2)), 2),
    sympy.Lt(4 * CHUNKS - S, 4),
    sympy.Le(Min(3, S), S),
    sympy.Lt(Min(3, S) - 2 * Max(S, B), 0),
    sympy.Gt(Max(3, B) - Min(S, 2), 0),
    sympy.Le(Max(1, FloorToInt(0.3 * ToFloat(B))), B),  # topk of a share of the losses
    sympy.Ge(B - 1, Max(1, FloorToInt(0.5 * ToFloat(B)))),
    sympy.Le(CeilToInt(0.3 * ToFloat(B)), B),
    sympy.Le(CeilToInt(IntTrueDiv(S, 2)), S),
    sympy.Eq(Min(B, 4 * CeilToInt(IntTrueDiv(B, 4))), B),
    sympy.Lt(3 * CeilToInt(IntTrueDiv(B + 1, 3)) - B, 4),
    sympy.Eq(FloorToInt(IntTrueDiv(B - 1, 3)), CeilToInt(IntTrueDiv(B, 3)) - 1),
    sympy.Le(Max(1, CeilToInt(FloatTrueDiv(ToFloat(S), sympy.Float(1.5)))), S),
    sympy.Eq(8 * CeilToInt(FloatTrueDiv(ToFloat(-5 - S), sympy.Float(-1.0))), 40 + 8 * S),
]
UNCERTAIN = [
    sympy.Gt(Mod(4 - Mod(S, 4), 4), 0),  # not of multiples of 4
    sympy.Ne(CHUNKS, 1),  # not of sizes up to 4
    sympy.Eq(4 * CHUNKS, S),
    sympy.Eq(FloorDiv(3 * B + 2, B), 4),  # of the size 2 alone
    sympy.Eq(FloorDiv(S - 1 + FloorDiv(S + 2, 3), FloorDiv(S + 2, 3)), 3),  # three chunks of 4 are two
    sympy.Ge(CHUNKS, 2),
    sympy.Ge(S, 4),
    sympy.Le(Max(3, S), S),
    sympy.Lt(Min(3, S), S),
    sympy.Ge(Min(3, S), 3),
    sympy.Le(Max(3, FloorToInt(0.5 * ToFloat(B))), B),
    sympy.Lt(Max(2, FloorToInt(0.5 * ToFloat(B))), B),
    sympy.Gt(2 * Min(3, S) - Max(2, B), 0),
    sympy.Eq(2 * CeilToInt(FloatTrueDiv(ToFloat(S), sympy.Float(2.0))), S),
    sympy.Le(2 * CeilToInt(0.5 * ToFloat(S)), S),  # not of odd sizes
    sympy.Eq(4 * CeilToInt(IntTrueDiv(B, 4)), B),
    sympy.Lt(3 * CeilToInt(IntTrueDiv(B + 1, 3)) - B, 3),
    sympy.Lt(CeilToInt(0.7 * ToFloat(S)), S),  # not of 2
    sympy.Le(CeilToInt(1.1 * ToFloat(B)), B),
    sympy.Ne(64 * Max(1, 4 * CHUNKS), 64 * Min(S, 4 * CHUNKS)),
    sympy.Eq(Mod(S, 3), Mod(S, 4)),  # of the sizes 12, 13, 14 as of 0, 1, 2
]


@pytest.mark.parametrize("condition", [*CERTAIN, *UNCERTAIN], ids=str)
def test_conditions(condition: sympy.Basic) -> None:
    sizes = itertools.product(range(2, 40), (2, 3, 7))
    holds = all(condition.subs({S: s, B: b}) == sympy.true for s, b in sizes)
    assert is_certain(condition, RANGES) == holds == (condition in CERTAIN)


def test_the_least_size() -> None:
    assert is_certain(sympy.Ge(CHUNKS, 2), {S: ValueRanges(5, 64)})
    assert not is_certain(sympy.Ge(CHUNKS, 2), {S: ValueRanges(4, 64)})
    assert not is_certain(sympy.Ge(CHUNKS, 2), {})


@pytest.mark.parametrize(
    ("condition", "least", "most"),
    [
        (sympy.Ge(S, 5), 5, None),
        (sympy.Ge(Min(S, 3 * FloorDiv(S, 3)), 7), 9, None),
        (sympy.Gt(FloorDiv(S - 3, 2) * FloorDiv(S, 2), 20), 12, None),
        (sympy.Ge(S, 20), 20, None),
        (sympy.Le(S, 20), 2, 20),
        (sympy.Lt(768 * S, 4194304), 2, 5461),
        (sympy.Le(S * FloorDiv(S, 2), 3000), 2, 77),
        (sympy.Eq(FloorDiv(S, 15), 1), 15, 29),
        (sympy.Ge(Mod(S, 3), 1), 19, 20),
    ],
)
def test_the_sizes_for_which_conditions_hold(condition: sympy.Basic, least: int, most: int | None) -> None:
    sizes = certain_sizes(condition, S, ValueRanges(2, 2**48), 20)
    assert sizes is not None
    assert sizes.start == least
    assert (None if sizes.stop == sys.maxsize else sizes.stop - 1) == most
    assert all(condition.subs(S, size) for size in range(least, min(sizes.stop, 99)))
    assert least == 2 or not condition.subs(S, least - 1)
    assert most is None or not condition.subs(S, most + 1)


def test_no_sizes_for_which_a_condition_holds() -> None:
    assert certain_sizes(sympy.Ge(S, 21), S, ValueRanges(2, 64), 20) is None


def test_the_largest_size() -> None:
    """As a loop over the chunks of a sequence computes their number."""
    assert is_certain(sympy.Eq(CHUNKS, 3), {S: ValueRanges(9, 12)})
    assert not is_certain(sympy.Eq(CHUNKS, 3), {S: ValueRanges(9, 13)})
    assert not is_certain(sympy.Eq(CHUNKS, 3), {S: ValueRanges(8, 12)})
    assert is_certain(sympy.Le(CHUNKS * FloorDiv(B, 2), 48), {S: ValueRanges(2, 64), B: ValueRanges(2, 7)})
    assert not is_certain(sympy.Le(CHUNKS * FloorDiv(B, 2), 47), {S: ValueRanges(2, 64), B: ValueRanges(2, 7)})


def test_no_largest_size() -> None:
    """Of a number of pairs, which may be above 2**63."""
    for upper in (2**64, sympy.oo):
        assert is_certain(sympy.Ge(B * B, 4), {B: ValueRanges(2, upper)})
        assert not is_certain(sympy.Ge(B * B, 9), {B: ValueRanges(2, upper)})


@pytest.mark.parametrize(
    ("stride", "other", "expected"),
    [
        (B, 1, True),
        (8 * B, 8, True),
        (PADDED, 4, True),  # of one chunk
        (3 * PADDED * B, 12, True),
        (PADDED, 8, False),
        (S, 4, False),
        (8 * B + 4, 8, False),
        (PADDED, B, False),
    ],
)
def test_strides_that_are_equal_where_a_size_is_1(stride: sympy.Expr, other: sympy.Expr | int, expected: bool) -> None:
    assert is_of_0_or_1(sympy.Ne(stride, other, evaluate=False), RANGES) is expected
