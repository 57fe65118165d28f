"""Sort: the elements along an axis in order, and where they were."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, along_axis, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Output,
    Record,
    Refusal,
    Worked,
    like,
    limits,
)

OP = "Sort"
PLACES = np.dtype(np.int64)


def oracle(self: ArrayLike, dim: int = -1, descending: int = 0, *, dtype: Reals = np.float64) -> tuple[Array, Array]:
    """Python's sort, which is stable, of each vector; NaN is larger than infinity."""
    vectors = np.moveaxis(real(self, dtype), dim, -1)
    indices = np.zeros(vectors.shape, np.int64)
    for place in np.ndindex(*vectors.shape[:-1]):
        numbers = vectors[place].tolist()
        keys = [(int(number != number), 0.0 if number != number else number) for number in numbers]
        order = sorted(range(len(numbers)), key=keys.__getitem__)
        if descending:
            order = sorted(range(len(numbers)), key=lambda i: (-keys[i][0], -keys[i][1]))
        indices[place] = order
    values = np.take_along_axis(vectors, indices, -1)
    return np.moveaxis(values, -1, dim), np.moveaxis(indices, -1, dim).astype(dtype)


def numbers(shape: Shape, dtype: DType) -> Array:
    """Some of which are equal."""
    return (np.round(normal(shape, np.float64, "sorted"), 1) + 0.0).astype(dtype)


def make(choice: Choice) -> dict[str, Array | None]:
    return {"self": numbers(choice.form, choice.dtype("self"))}


def calls() -> Iterator[Call]:
    def call(label: str, array: Array, **attributes: int) -> Call:
        return Call(OP, {"self": array}, attributes, label=label)

    for descending in (0, 1):
        for label, (shape, dim) in along_axis.SHAPES.items():
            yield call(f"{label}_{descending}", numbers(shape, FLOAT32), dim=dim, descending=descending)
    for dtype in FLOATS:
        for length in (1, 2, 63, 64, 65, 66, 300):  # by rank, and digit by digit
            for descending in (0, 1):
                array = numbers((length, 3), dtype)
                array[::7, 0], array[3::5, 0], array[4::9, 0] = NAN, INF, -INF
                array[::2, 1], array[1::2, 1] = 0.0, -0.0
                array[:, 2] = array[0, 2]
                yield call(f"special-{length}-{descending}-{dtype.name}", array, dim=0, descending=descending)
        every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            yield call(f"range-{dtype.name}", np.concatenate([every[::5], 3.0 * every[::7]]).astype(dtype))


def worked(dtype: DType) -> Iterator[Worked]:
    call = Call(OP, {"self": np.array([[2, NAN, 1, 2], [INF, 0, -1, -INF]], dtype)}, {"descending": 1}, label="by_hand")
    yield Worked(call, {"values": [[NAN, 2, 2, 1], [INF, 0, -1, -INF]], "indices": [[1, 0, 3, 2], [0, 1, 2, 3]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    yield from along_axis.wrong_axes()
    yield Refusal("rank_0", ("'self'", "()", "1 dimension"), {"self": np.zeros((), np.float32)}, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    for label, (shape, dim) in along_axis.LARGE.items():
        yield Call(OP, {"self": normal(shape, dtype, OP)}, {"dim": dim, "descending": 1}, label=label)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    (array,) = with_torch.tensors(torch, call)
    dim, descending = call.attributes.get("dim", -1), bool(call.attributes.get("descending", 0))
    return functools.partial(torch.sort, array, dim=dim, descending=descending, stable=True)


SIZES = {"64x64": (64, 64), "256x512": (256, 512), "100000": (100_000,), "1000000": (1_000_000,)}


def benchmark(shape: Shape, dtype: DType) -> Call:
    return Call(OP, {"self": normal(shape, dtype, OP)})


# The op selects.
EXACT = limits(0, single=0, double=0)
RECORD = Record(
    OP,
    inputs={"self": Input()},
    outputs={
        "values": like("self", limits=EXACT, portable_limits=EXACT),
        "indices": Output(lambda call: PLACES, dtypes=(PLACES,)),
    },
    attributes={"dim": along_axis.AXES, "descending": Attribute(0, (0, 1), wrong=(-1, 2), words=("0 or 1",))},
    oracle=oracle,
    make=make,
    forms=along_axis.FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "NaN", "-0"),
    benchmarks=(Benchmark(benchmark, SIZES),),
    accuracies=(accuracy.of_calls(benchmark, (256, 512)),),
)
