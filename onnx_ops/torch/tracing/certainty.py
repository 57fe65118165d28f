"""Conditions that hold for all sizes and that PyTorch's ShapeEnv cannot prove, as those of padding to a multiple."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import sys
from collections.abc import Mapping, Sequence

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

REMAINDERS = 256
"""Combinations of remainders that are tried."""
COUNTS = 64
"""Combinations of counts that are tried, of one remainder, where polynomials decide nothing."""
KEPT = 2**12
"""Conditions whose proofs are kept."""
MANY = 2**30
"""Numbers of elements which code compares with this, or more, to find out whether 32 bits index them."""


class _Ceiling(sympy.Function):
    """The least integer that is at least the float64 nearest to a number."""

    is_integer = True


def is_certain(condition: sympy.Basic, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]) -> bool:
    """Whether a condition holds for all sizes in the ranges of its symbols, as far as a proof is found.

    A size that is divided is written as `period * count + remainder`, for each remainder, with a count from the least
    one on, or up to the largest one. Quotients and remainders are then polynomials in the counts, whose coefficients
    decide the condition. Where they do not, it is computed for each count, if those are few: there is one chunk of 64
    in sizes up to 64.

    Args:
        condition: of integer symbols.
        ranges: of its symbols.
    """
    symbols = sorted(condition.free_symbols, key=str)
    if not symbols or not all(symbol in ranges and ranges[symbol].lower.is_Integer for symbol in symbols):
        return False
    return _is_certain(condition, tuple((symbol, ranges[symbol].lower, ranges[symbol].upper) for symbol in symbols))


@functools.lru_cache(KEPT)
def _is_certain(condition: sympy.Basic, bounds_of: tuple[tuple[sympy.Symbol, sympy.Expr, sympy.Expr], ...]) -> bool:
    """As `is_certain`, with the bounds of each symbol. A capture traces a step several times, with the same symbols."""
    symbols = [symbol for symbol, _, _ in bounds_of]
    ranges = {symbol: ValueRanges(lower, upper) for symbol, lower, upper in bounds_of}
    found = divisions(condition)
    exact = [division for division in found if not isinstance(division, IntTrueDiv)]
    of_all, of_exact = (
        [math.lcm(*(int(d.args[1]) for d in some if symbol in d.free_symbols)) for symbol in symbols]
        for some in (found, exact)
    )
    periods = of_all if math.prod(of_all) <= REMAINDERS else of_exact
    if math.prod(periods) > REMAINDERS:
        return False
    for remainders in itertools.product(*map(range, periods)):
        sizes, below, few = {}, {}, []
        for symbol, period, remainder in zip(symbols, periods, remainders, strict=True):
            bounds = ranges[symbol]
            least = -(-(int(bounds.lower) - remainder) // period)
            more = sympy.Symbol(f"more_{symbol}", integer=True, nonnegative=True)
            sizes[symbol] = period * (more + least) + remainder
            if bounds.upper.is_Integer:
                below[symbol] = period * ((int(bounds.upper) - remainder) // period - more) + remainder
            few.append(_few(remainder, period, bounds))
        ways = [sizes, below] if len(below) == len(sizes) else [sizes]
        if any(_evaluated(condition, way) is sympy.true for way in ways) or _holds(condition, symbols, few):
            continue
        return False
    return True


def divisions(condition: sympy.Basic) -> list[sympy.Expr]:
    """Quotients and remainders of integers by positive numbers in a condition: those that are rounded too."""
    rounded = {term.args[0] for term in condition.atoms(CeilToInt, FloorToInt)}
    found = condition.atoms(FloorDiv, Mod, PythonMod) | {term for term in rounded if isinstance(term, IntTrueDiv)}
    return [division for division in found if division.args[1].is_Integer and division.args[1] > 0]


def linear(term: sympy.Expr, symbol: sympy.Symbol) -> tuple[int, int] | None:
    """Factor and offset of a linear function of a symbol with integer coefficients; None for any other term."""
    expanded = sympy.expand(term)
    factor, offset = expanded.coeff(symbol), expanded.xreplace({symbol: sympy.S.Zero})
    if not (factor.is_Integer and offset.is_Integer) or expanded != factor * symbol + offset:
        return None
    return int(factor), int(offset)


def certain_sizes(
    condition: sympy.Basic, symbol: sympy.Symbol, allowed: ValueRanges[sympy.Expr], example: int
) -> range | None:
    """The allowed sizes around that of the example in all of which a condition holds; None if it has no such range.

    Their end is infinite, `sys.maxsize`, if the condition holds for all sizes from the least one on.
    """

    def holds(least: int, most: int | sympy.Expr) -> bool:
        return is_certain(condition, {symbol: ValueRanges(least, most)})

    def least_to(most: int | sympy.Expr) -> int:
        return smaller[bisect.bisect_left(smaller, True, key=lambda size: holds(size, most))]

    if not holds(example, example):
        return None
    smaller = range(int(allowed.lower), example + 1)
    if holds(example, allowed.upper):
        return range(least_to(allowed.upper), sys.maxsize)
    least, reached = least_to(example), example
    while holds(least, 2 * reached):
        reached *= 2
    larger = range(reached, 2 * reached)
    return range(least, reached + bisect.bisect_left(larger, True, key=lambda size: not holds(least, size)))


def largest_size(condition: sympy.Basic) -> int | None:
    """The number up to which a condition on one size holds; None for one that is not of that form.

    It compares a polynomial without negative coefficients, but for the constant, with 0. A linear one, as in
    `if len(x) > 64`, has to be about MANY elements.
    """
    if not isinstance(condition, sympy.StrictLessThan | sympy.LessThan | sympy.StrictGreaterThan | sympy.GreaterThan):
        return None
    (symbol,) = condition.free_symbols
    excess = sympy.expand(condition.lts - condition.gts)  # below 0, or at most 0
    if not excess.is_polynomial(symbol):
        return None
    *growing, constant = sympy.Poly(excess, symbol).all_coeffs()
    if constant > 0 or any(coefficient < 0 for coefficient in growing):
        return None
    if len(growing) < 2 and -constant < MANY:
        return None
    holds, fails = 0, 1
    while condition.subs(symbol, fails) is sympy.true:
        holds, fails = fails, 2 * fails
    while fails - holds > 1:
        middle = (holds + fails) // 2
        holds, fails = (middle, fails) if condition.subs(symbol, middle) is sympy.true else (holds, middle)
    return holds


def _few(remainder: int, period: int, bounds: ValueRanges[sympy.Expr]) -> range | None:
    """The sizes with a remainder, None if they are many."""
    first = int(bounds.lower) + (remainder - int(bounds.lower)) % period
    if not bounds.upper.is_Integer or bounds.upper - first >= COUNTS * period:
        return None
    return range(first, int(bounds.upper) + 1, period)


def _holds(condition: sympy.Basic, symbols: Sequence[sympy.Symbol], sizes: Sequence[range | None]) -> bool:
    """Whether a condition holds for all combinations of sizes of its symbols, if those are few."""
    few = [each for each in sizes if each is not None]
    if len(few) < len(sizes) or math.prod(map(len, few)) > COUNTS:
        return False
    return all(
        _evaluated(condition, dict(zip(symbols, map(sympy.Integer, each), strict=True))) is sympy.true
        for each in itertools.product(*few)
    )


def _evaluated(term: sympy.Basic, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Basic:
    """A term with sizes in place of its symbols; quotients and remainders in it are polynomials where possible."""
    if isinstance(term, sympy.Symbol):
        return sympy.expand(sizes[term])
    if isinstance(term, sympy.Float):  # an integer is exact, as sizes are below 2**53
        return sympy.Integer(int(term)) if float(term).is_integer() else term
    args = [_evaluated(arg, sizes) for arg in term.args]
    if not args:
        return term
    if isinstance(term, CeilToInt | FloorToInt) and isinstance(term.args[0], IntTrueDiv):
        # Of integers below 2**52 the rounded quotient is on the same side of an integer as the quotient.
        dividend, divisor = (_evaluated(arg, sizes) for arg in term.args[0].args)
        sign = -1 if isinstance(term, CeilToInt) else 1
        if divisor.is_Integer and divisor > 0 and not (quotient := _quotient(sign * dividend, divisor)).has(FloorDiv):
            return sympy.expand(sign * quotient)
    if isinstance(term, FloorDiv):
        return _quotient(*args)
    if isinstance(term, Mod | PythonMod):
        return sympy.expand(args[0] - args[1] * _quotient(*args))
    if isinstance(term, ToFloat | CeilToInt) and args[0].is_integer:  # exact, as sizes are below 2**53
        return args[0]
    if isinstance(term, CeilToInt) and not args[0].is_number and (exact := _rounded_once(term.args[0], args[0])):
        return _Ceiling(exact)
    if isinstance(term, FloatTrueDiv) and args[1] in (1, -1):  # of torch.arange(n, 0, -1.0)
        return args[0] * args[1]
    if isinstance(term, Min):
        return sympy.Min(*args)
    if isinstance(term, Max):
        return sympy.Max(*args)
    if isinstance(term, sympy.core.relational.Relational):
        return _compared(term.func, args[0] - args[1])
    if isinstance(term, sympy.Add | sympy.Mul | sympy.Pow):
        return sympy.expand(term.func(*args))
    return term.func(*args)


def _rounded_once(term: sympy.Basic, value: sympy.Basic) -> sympy.Basic | None:
    """The number of which a term is the nearest float64: of a product or quotient of a size and a number.

    Args:
        term: as PyTorch has it.
        value: of the term, with its sizes replaced.
    """
    if isinstance(term, FloatTrueDiv | IntTrueDiv) and term.args[1].is_number:
        return sympy.expand(value.args[0] / sympy.Rational(term.args[1]))
    if isinstance(term, sympy.Mul) and len(term.args) == 2 and term.args[0].is_number:
        return sympy.expand(value.xreplace({number: sympy.Rational(number) for number in value.atoms(sympy.Float)}))
    return None


def _compared(kind: type[sympy.core.relational.Relational], difference: sympy.Basic) -> sympy.Basic:
    """The comparison of a difference of integers with 0."""
    difference = sympy.expand(difference)
    if kind is sympy.LessThan:
        difference = _without_roundings(difference)
    elif kind is sympy.GreaterThan:
        difference = -_without_roundings(-difference)
    return _by_cases(kind(difference, 0))


def _by_cases(relation: sympy.Basic) -> sympy.Basic:
    """A comparison with 0, true if it holds for what minima and maxima may be, as Min(3, n) - n <= 0 does.

    A minimum is at most each of its arguments, and is one of them.
    """
    if not isinstance(relation, sympy.LessThan | sympy.StrictLessThan | sympy.GreaterThan | sympy.StrictGreaterThan):
        return relation
    difference, below = relation.lhs, relation.rel_op in ("<", "<=")
    for extreme in difference.atoms(sympy.Min, sympy.Max):
        factor = difference.coeff(extreme)
        rest = sympy.expand(difference - factor * extreme)
        if not factor.is_number or rest.has(extreme):
            continue
        holds = [_compared(relation.func, rest + factor * arg) is sympy.true for arg in extreme.args]
        bounded = isinstance(extreme, sympy.Min) == below if factor > 0 else isinstance(extreme, sympy.Max) == below
        if all(holds) or (bounded and any(holds)):
            return sympy.true
    return relation


def _without_roundings(difference: sympy.Basic) -> sympy.Basic:
    """A difference of integers, at most 0 where the returned one is: with the numbers that are rounded in it.

    If those that are rounded down are at most an integer, they are so after the rounding of their float64 computation,
    which is below 1. One that is rounded up is at most an integer where the number is, whose nearest float64 is too.
    """
    floors = [term for term in difference.atoms(FloorToInt) if difference.coeff(term).is_positive]
    ceilings = [
        term for term in difference.atoms(_Ceiling) if difference.coeff(term) == 1 and (difference - term).is_integer
    ]
    return sympy.expand(difference.subs({term: term.args[0] for term in floors + ceilings[:1]}))


def _quotient(dividend: sympy.Basic, divisor: sympy.Basic) -> sympy.Basic:
    """FloorDiv; a number if it is the same one for all counts, as the number of chunks that torch.chunk returns."""
    free = dividend.free_symbols | divisor.free_symbols
    least = divisor.subs(dict.fromkeys(free, 0))
    if divisor.free_symbols and least.is_positive:
        found = FloorDiv(dividend.subs(dict.fromkeys(free, 0)), least)
        rest = sympy.expand(dividend - found * divisor)
        if rest.is_nonnegative and sympy.expand(divisor - rest).is_positive:
            return found
    return FloorDiv(dividend, divisor)
