"""OptimizationBarrier: the identity of its first input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import LENGTHS, TRUTH, Benchmark, Call, Choice, DType, Input, Record, Worked, like, limits

OP = "OptimizationBarrier"


def oracle(operand: ArrayLike, after: ArrayLike, *, dtype: Reals = np.float64) -> Array:
    """The first input."""
    return real(operand, dtype)


FORMS: dict[str, tuple[Shape, Shape]] = {
    "same": ((2, 3), (2, 3)),
    "scalars": ((), ()),
    "others": ((3,), (2, 5, 7)),
    "of_nothing": ((4, 5), (0,)),
    "empty": ((0, 3), (2,)),
    "rank_8": ((1, 2, 1, 2, 1, 2, 1, 2), (3,)),
}


def operands(shapes: tuple[Shape, Shape], dtype: DType, other: DType) -> dict[str, Array | None]:
    return {"operand": normal(shapes[0], dtype, "operand"), "after": np.zeros(shapes[1], other)}


def make(choice: Choice) -> dict[str, Array | None]:
    return operands(choice.form, choice.dtype("operand"), choice.dtype("after"))


def worked(dtype: DType) -> Iterator[Worked]:
    special = np.array([1.5, -0.0, NAN, INF, -INF], dtype)
    yield Worked(Call(OP, {"operand": special, "after": np.array([NAN], dtype)}, label="special"), {"result": special})


def benchmark(elements: int, dtype: DType) -> Call:
    return Call(OP, operands(((elements,), (1,)), dtype, dtype))


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    operand, _ = with_torch.tensors(torch, call)
    return lambda: operand.clone()


EXACT = limits(0, single=0, double=0)
RECORD = Record(
    OP,
    inputs={"operand": Input(), "after": Input((*FLOATS, *LENGTHS, TRUTH))},
    outputs={"result": like("operand", limits=EXACT, portable_limits=EXACT)},
    oracle=oracle,
    make=make,
    forms=FORMS,
    worked=worked,
    large=lambda dtype: (benchmark(200_001, dtype),),
    torch=torch_call,
    documented=("optimization_barrier", "not read", "orders nothing"),
    unread=("after",),
    benchmarks=(Benchmark(benchmark),),
    accuracies=(accuracy.of_calls(benchmark, 100_000),),
)
