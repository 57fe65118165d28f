"""Cores of scalar functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from onnx_ops.loops.loop import Core, Operands
from onnx_ops.loops.primitives import (
    LAST_PARAMETER,
    Array,
    Number,
    add_any_order,
    elements_at,
    helper,
    inlined,
    items_of,
    wide,
)
from onnx_ops.ops.extremes import BLOCK

Scalar = Callable[..., Any]
"""A function of numbers."""
SHARE = (0, LAST_PARAMETER)
"""The parameters of `exact_share`."""


def elementwise(
    *inputs: int, parameters: tuple[int, ...] = (), exact: Scalar | Core | None = None, alone: bool = False
) -> Callable[[Scalar], Core]:
    """Make a core of a function of numbers, which is inlined into its loop.

    Its arguments are an element of each of the inputs, followed by the parameters.

    Args:
        inputs: numbers of inputs.
        parameters: their indices.
        exact: without it the function returns an element of the output; else an element, and whether that may be wrong,
            in which case its block is computed by `exact`, a function with these arguments or the core made of one.
        alone: whether the elements that may be wrong are computed by `exact` one by one, and not their block: if it
            takes many times as long, and LLVM does not vectorize it.
    """

    def core_of(function: Scalar) -> Core:
        term, exact_term = inlined(function), inspect.unwrap(exact or function)

        # The loops stand in the cores: LLVM vectorizes differently what it inlines later.
        @functools.wraps(function)
        def core(operands: Operands, out: Array, count: int, numbers: Array) -> None:
            elements, constants = items_of(operands, inputs), items_of(numbers, parameters)
            for i in range(count):
                out[i] = term(*(elements_at(elements, i) + constants))

        @functools.wraps(function)
        def checked_core(operands: Operands, out: Array, count: int, numbers: Array) -> None:
            elements, constants = items_of(operands, inputs), items_of(numbers, parameters)
            for start in range(0, count, BLOCK):
                stop, is_wrong = min(start + BLOCK, count), False
                for i in range(start, stop):
                    result, may_be_wrong = term(*(elements_at(elements, i) + constants))
                    out[i] = result
                    is_wrong = is_wrong | may_be_wrong
                if is_wrong and not alone:
                    for i in range(start, stop):
                        out[i] = exact_term(*(elements_at(elements, i) + constants))
                place = start if is_wrong and alone else stop
                while place < stop:
                    # LLVM would compute `exact` of all elements if it stood in the loop that looks for the next one.
                    _, may_be_wrong = term(*(elements_at(elements, place) + constants))
                    while not may_be_wrong and place + 1 < stop:
                        place += 1
                        _, may_be_wrong = term(*(elements_at(elements, place) + constants))
                    if may_be_wrong:
                        out[place] = exact_term(*(elements_at(elements, place) + constants))
                    place += 1

        return core if exact is None else checked_core

    return core_of


@helper
def total_of(term: Scalar, inputs: tuple[Array, ...], start: int, stop: int) -> Any:
    """The sum of the terms of elements [start, stop) in float64, in any order."""
    total = 0.0
    for i in range(start, stop):
        total = add_any_order(total, term(*elements_at(inputs, i)))
    return total


@inlined
def exact_share(share: Number, lost: Number) -> Any:
    """The reciprocal of the divisor in float64: parameters[0] and its rounding error."""
    return wide(share) + wide(lost)
