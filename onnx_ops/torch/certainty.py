"""Conditions that hold for all sizes and that PyTorch's ShapeEnv cannot prove, as those of padding to a multiple."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import sympy
from torch.utils._sympy.functions import CeilToInt, FloatTrueDiv, FloorDiv, Max, Min, Mod, PythonMod, ToFloat
from torch.utils._sympy.value_ranges import ValueRanges

REMAINDERS = 256
"""Combinations of remainders that are tried."""


def is_certain(condition: sympy.Basic, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]) -> bool:
    """Whether a condition holds for all sizes in the ranges of its symbols, as far as a proof is found.

    A size that is divided is written as `period * count + remainder`, for each remainder. Quotients and remainders are
    then polynomials in the counts, whose coefficients decide the condition.

    Args:
        condition: of integer symbols.
        ranges: of its symbols, of which the lower bounds are used.
    """
    symbols = sorted(condition.free_symbols, key=str)
    if not symbols or not all(symbol in ranges and ranges[symbol].lower.is_Integer for symbol in symbols):
        return False
    divisions = [d for d in condition.atoms(FloorDiv, Mod, PythonMod) if d.args[1].is_Integer and d.args[1] > 0]
    periods = [math.lcm(*(int(d.args[1]) for d in divisions if symbol in d.free_symbols)) for symbol in symbols]
    if math.prod(periods) > REMAINDERS:
        return False
    for remainders in itertools.product(*map(range, periods)):
        sizes = {}
        for symbol, period, remainder in zip(symbols, periods, remainders, strict=True):
            least = -(-(int(ranges[symbol].lower) - remainder) // period)
            more = sympy.Symbol(f"more_{symbol}", integer=True, nonnegative=True)
            sizes[symbol] = period * (more + least) + remainder
        if _evaluated(condition, sizes) is not sympy.true:
            return False
    return True


def largest_size(condition: sympy.Basic) -> int | None:
    """The number up to which a condition on one size holds; None for one that is not of that form, or is linear.

    It compares a polynomial without negative coefficients, but for the constant, with 0.
    """
    if not isinstance(condition, sympy.StrictLessThan | sympy.LessThan | sympy.StrictGreaterThan | sympy.GreaterThan):
        return None
    (symbol,) = condition.free_symbols
    excess = sympy.expand(condition.lts - condition.gts)  # below 0, or at most 0
    if not excess.is_polynomial(symbol):
        return None
    *growing, constant = sympy.Poly(excess, symbol).all_coeffs()
    if len(growing) < 2 or constant > 0 or any(coefficient < 0 for coefficient in growing):
        return None
    holds, fails = 0, 1
    while condition.subs(symbol, fails) is sympy.true:
        holds, fails = fails, 2 * fails
    while fails - holds > 1:
        middle = (holds + fails) // 2
        holds, fails = (middle, fails) if condition.subs(symbol, middle) is sympy.true else (holds, middle)
    return holds


def _evaluated(term: sympy.Basic, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Basic:
    """A term with sizes in place of its symbols; quotients and remainders in it are polynomials where possible."""
    if isinstance(term, sympy.Symbol):
        return sympy.expand(sizes[term])
    args = [_evaluated(arg, sizes) for arg in term.args]
    if not args:
        return term
    if isinstance(term, FloorDiv):
        return _quotient(*args)
    if isinstance(term, Mod | PythonMod):
        return sympy.expand(args[0] - args[1] * _quotient(*args))
    if isinstance(term, ToFloat | CeilToInt) and args[0].is_integer:  # exact, as sizes are below 2**53
        return args[0]
    if isinstance(term, FloatTrueDiv) and args[1].is_number and abs(float(args[1])) == 1:  # of torch.arange(n, 0, -1.0)
        return args[0] * int(args[1])
    if isinstance(term, Min):
        return sympy.Min(*args)
    if isinstance(term, Max):
        return sympy.Max(*args)
    if isinstance(term, sympy.core.relational.Relational):
        return term.func(sympy.expand(args[0] - args[1]), 0)
    if isinstance(term, sympy.Add | sympy.Mul | sympy.Pow):
        return sympy.expand(term.func(*args))
    return term.func(*args)


def _quotient(dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Basic:
    """FloorDiv of polynomials; a number if all sizes have the quotient that the smallest ones have."""
    if divisor.is_positive and divisor.free_symbols:
        least = dict.fromkeys(dividend.free_symbols | divisor.free_symbols, 0)
        number = FloorDiv(dividend.subs(least), divisor.subs(least))
        rest = sympy.expand(dividend - number * divisor)
        if rest.is_nonnegative and sympy.expand(divisor - rest).is_positive:
            return number
    return FloorDiv(dividend, divisor)
