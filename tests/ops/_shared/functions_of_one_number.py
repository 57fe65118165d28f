"""What ops of a function of each element of `self` share: shapes, and where there is no attribute the whole record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOATS, Shape, normal
from tests.ops._shared.numbers import Array, real
from tests.ops._shared.record import Benchmark, Call, Choice, DType, Input, Limits, Record, Worked, like

WIDE = np.longdouble


def narrowed(numbers: ArrayLike, dtype: DType) -> Array:
    """Infinite where float16 has no such number."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers).astype(dtype)


FORMS: dict[str, Shape] = {
    "matrix": (2, 3),
    "row": (70,),
    "rank_8": (1, 2, 1, 2, 1, 2, 1, 2),
    "empty": (2, 0),
    "scalar": (),
}


def make(choice: Choice) -> dict[str, Array | None]:
    return {"self": normal(choice.form, choice.dtype("self"), "self")}


def special(dtype: DType) -> Array:
    """NaN, infinities, zeros, and large and small numbers."""
    numbers = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3e4, -3e4]
    return np.array([*numbers, float(ml_dtypes.finfo(dtype).smallest_subnormal)], dtype)


def record(
    op: str,
    oracle: Callable[[Array], Array],
    values: Callable[[Array], Array],
    special: Sequence[float],
    spread: Sequence[float],
    by_hand: Mapping[float, float],
    operand: accuracy.Operand,
    limits: Limits,
    portable_limits: Limits,
    slack: Callable[[Array, DType, bool], Array],
    documented: tuple[str, ...],
) -> Record:
    """The record of an op with one input and one output.

    Args:
        op: the op_type: the name of the function of torch, perhaps after Inplace.
        oracle: the function in long double.
        values: what becomes of normal numbers, as arguments.
        special: arguments with results of their own kind.
        spread: the ends of an even distribution of arguments, of which float16 has all.
        by_hand: results by argument.
        operand: the arguments of the table of accuracy.
        limits, portable_limits: the largest errors of kernel and function body.
        slack: what a result may be off by besides, of arguments, its dtype, and whether it is that of a function body.
        documented: what the documentation has.
    """

    def of(array: ArrayLike) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(oracle(np.asarray(real(array, WIDE))))

    def arguments(shape: Shape, dtype: DType) -> Array:
        return narrowed(values(normal(shape, np.float64, op)), dtype)

    def make(choice: Choice) -> dict[str, Array | None]:
        return {"self": arguments(choice.form, choice.dtype("self"))}

    def calls() -> Iterator[Call]:
        for dtype in FLOATS:
            limits_of = ml_dtypes.finfo(dtype)
            ends = [float(limits_of.max), float(limits_of.smallest_normal), float(limits_of.smallest_subnormal)]
            yield Call(op, {"self": narrowed([*special, *ends], dtype)}, label=f"special-{dtype.name}")
            yield Call(op, {"self": np.linspace(*spread, 4001).astype(dtype)}, label=f"range-{dtype.name}")
            for size in (1, 255, 4097, 70_001):
                yield Call(op, {"self": arguments((size,), dtype)}, label=f"{size}-{dtype.name}", static=True)

    def worked(dtype: DType) -> Iterator[Worked]:
        yield Worked(Call(op, {"self": np.array([*by_hand], dtype)}, label="by_hand"), {"out": [*by_hand.values()]})

    name = op.removeprefix("Inplace")

    def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
        (this,) = with_torch.tensors(torch, call)
        return lambda: getattr(torch, name.lower())(this)

    def large(dtype: DType) -> Sequence[Call]:
        return (Call(op, {"self": arguments((53, 61, 67), dtype)}, label="map"),)

    return Record(
        op,
        inputs={"self": Input()},
        outputs={"out": like("self", limits=limits, portable_limits=portable_limits)},
        oracle=lambda self, *, dtype=np.float64: of(self).astype(dtype),
        make=make,
        forms=FORMS,
        calls=calls,
        worked=worked,
        slack=lambda call, output, dtype, portable: slack(call.given["self"], dtype, portable),
        large=large,
        torch=torch_call,
        documented=(f"aclnn{name}", *documented),
        benchmarks=(Benchmark(lambda elements, dtype: Call(op, {"self": arguments((elements,), dtype)})),),
        accuracies=(accuracy.pointwise(op, {"self": operand}, loss=False),),
    )
