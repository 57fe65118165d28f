"""Hardshrink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.hardshrink import EDGES, LAMBD, around, threshold
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, Choice, DType, Input, Record, Worked, like, limits

OP = "Hardshrink"


def oracle(self: ArrayLike, lambd: float = 0.5, *, dtype: Reals = np.float64) -> Array:
    """0 where -lambd <= self <= lambd, else self (so NaN goes through)."""
    x, limit = real(self, dtype), threshold(lambd)
    with np.errstate(all="ignore"):
        return np.where((x >= -limit) & (x <= limit), np.zeros((), dtype), x)


FORMS: dict[str, Shape] = {
    "matrix": (2, 3),
    "row": (70,),
    "rank_8": (1, 2, 1, 2, 1, 2, 1, 2),
    "empty": (2, 0),
    "scalar": (),
}


def make(choice: Choice) -> dict[str, Array | None]:
    return {"self": normal(choice.form, choice.dtype("self"), "self")}


def calls() -> Iterator[Call]:
    for dtype in FLOATS:
        for lambd in EDGES:
            yield Call(OP, {"self": around(lambd, dtype)}, {"lambd": lambd}, label=f"edge_{lambd}-{dtype.name}")
        for size in (1, 255, 4097, 70_001):
            yield Call(OP, {"self": normal((size,), dtype, "x")}, label=f"{size}-{dtype.name}", static=True)


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.array([-INF, -2.0, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, INF, NAN], dtype)
    expected = [-INF, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.75, INF, NAN]
    yield Worked(Call(OP, {"self": x}, label="by_hand"), {"out": expected})


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    (this,) = with_torch.tensors(torch, call)
    return lambda: torch.nn.functional.hardshrink(this, float(threshold(call.attributes.get("lambd", 0.5))))


RECORD = Record(
    OP,
    inputs={"self": Input()},
    outputs={"out": like("self", limits=limits(0, single=0, double=0))},  # the op copies
    attributes={"lambd": LAMBD},
    oracle=oracle,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    large=lambda dtype: (Call(OP, {"self": normal((53, 61, 67), dtype, "x")}, label="map"),),
    torch=torch_call,
    documented=("NaN", "below 0 counts as 0"),
    benchmarks=(Benchmark(lambda elements, dtype: Call(OP, {"self": normal((elements,), dtype, "x")})),),
    accuracies=(accuracy.pointwise(OP, {"self": accuracy.HARDSHRINK_INPUT}, loss=False),),
)
