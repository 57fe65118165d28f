"""ScatterMax: maxima of the rows that have the same index."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOATS, INF, NAN, Shape, normal, rng
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, Choice, DType, Input, Record, Refusal, Worked, like, limits

OP = "ScatterMax"
WHOLE = (np.dtype(np.int64), np.dtype(np.int32))
ROWS = 5


def oracle(var: ArrayLike, indices: ArrayLike, updates: ArrayLike, *, dtype: Reals = np.float64) -> Array:
    """Each row of var, and all rows of updates that have its index, one after the other."""
    out = real(var, dtype).copy()
    rows = np.reshape(real(updates, dtype), (np.size(indices), *out.shape[1:]))
    for i, v in enumerate(np.reshape(np.asarray(indices), -1).tolist()):
        out[v] = np.where(np.isnan(rows[i]) | (rows[i] > out[v]), rows[i], out[v])
    return out


@dataclass(frozen=True)
class Form:
    """Shapes of the indices, and of a row."""

    indices: Shape
    row: Shape


FORMS = {
    "rows": Form((7,), (3,)),
    "numbers": Form((9,), ()),
    "one": Form((), (4,)),
    "plane": Form((3, 4), (2, 3)),
    "rank_8": Form((2, 1, 2, 1), (1, 2, 1, 2)),
}


def inputs(form: Form, dtype: DType, kind: DType, rows: int = ROWS) -> dict[str, Array | None]:
    indices = rng("rows", form, rows).integers(0, max(rows, 1), form.indices)
    return {
        "var": normal((rows, *form.row), dtype, "var"),
        "indices": np.asarray(indices).astype(kind),
        "updates": normal((*form.indices, *form.row), dtype, "updates"),
    }


def make(choice: Choice) -> dict[str, Array | None]:
    return inputs(choice.form, choice.dtype("var"), choice.dtype("indices"))


def calls() -> Iterator[Call]:
    def call(label: str, given: dict[str, Array | None]) -> Call:
        return Call(OP, given, label=label)

    single, int64 = FLOAT32, WHOLE[0]
    for rows in (0, ROWS):
        yield call(f"no_updates_{rows}", inputs(Form((0,), (3,)), single, int64, rows))
    yield call("no_updates_of_rank_2", inputs(Form((2, 0), (3,)), single, int64))
    yield call("no_columns", inputs(Form((4,), (0,)), single, int64))
    yield call("one_row", inputs(Form((40,), (3,)), single, int64, 1))
    yield call("many_columns", inputs(Form((30,), (601,)), single, int64, 4))  # more than a task takes, and no vectors
    yield call("many_rows", inputs(Form((300,), (40,)), single, int64, 2000))
    yield replace(call("known_shapes", inputs(Form((6, 2), (3,)), single, int64)), static=True)
    for dtype in FLOATS:
        for value in (NAN, INF, -INF):
            given = inputs(Form((9,), (5,)), dtype, int64)
            given["indices"] = np.array([0, 1, 2, 0, 1, 2, 4, 0, 1])
            assert given["updates"] is not None
            assert given["var"] is not None
            given["updates"][[1, 2, 6], 0] = value  # the first, in between and the last of a row's
            given["updates"][[3, 8], 1] = value
            given["var"][[0, 3], 2] = value
            yield call(f"{value}-{dtype.name}", given)
    lowest: dict[str, Array | None] = {
        "var": np.full((2, 1), -INF, np.float32),
        "indices": np.array([0, 0]),
        "updates": np.array([[-3e38], [-INF]], np.float32),
    }
    yield call("lowest", lowest)


def worked(dtype: DType) -> Iterator[Worked]:
    var, updates = np.array([[1, 2], [3, 4], [5, 6]], dtype), np.array([[4, 0], [9, NAN], [2, 3], [-1, 7]], dtype)
    for kind in WHOLE:
        call = Call(OP, {"var": var, "indices": np.array([2, 0, 0, 2], kind), "updates": updates}, label="by_hand")
        yield Worked(call, {"out": [[9, NAN], [3, 4], [5, 7]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    indices = plain.given["indices"]
    for value in (-1, ROWS, 2**31 - 1, -(2**63)):
        wrong = indices.copy()
        wrong[2] = value
        words = ("'indices'", f" {value} ", "(2)", f"[0, {ROWS})")
        yield Refusal(f"index_{value}", words, {"indices": wrong}, by_values=True)
    for shape in ((7, 4), (6, 3)):
        words = ("'updates'", str(shape), "expected", "(7, 3)")
        yield Refusal(f"updates_of_{shape[0]}x{shape[1]}", words, {"updates": np.zeros(shape, np.float32)})
    yield Refusal("updates_of_rank_1", ("'updates'", "(7,)"), {"updates": np.zeros(7, np.float32)}, by_rank=True)
    yield Refusal("var_of_rank_0", ("'var'", "()"), {"var": np.zeros((), np.float32)}, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    """Some rows get most of the updates, as nodes of a graph do; some get none."""
    for count, row, rows in ((10_000, (48,), 3000), (9000, (2, 150), 7)):
        given = inputs(Form((count,), row), dtype, WHOLE[0], rows)
        given["indices"] = np.minimum(rng("zipf", count).zipf(1.2, count) - 1, rows - 1).astype(np.int64)
        yield Call(OP, given, label=f"rows_{rows}")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    var, indices, updates = with_torch.tensors(torch, call)
    rows = updates.reshape(-1, *var.shape[1:])
    index = indices.reshape(-1, *[1] * (var.dim() - 1)).to(torch.int64).expand(rows.shape)
    return functools.partial(torch.scatter_reduce, var, 0, index, rows, "amax")


@dataclass(frozen=True)
class Graph:
    """A size of a benchmark: nodes, numbers of each, and edges."""

    nodes: int
    width: int
    edges: int


SIZES = {
    "200x16x1000": Graph(200, 16, 1_000),
    "2000x64x10000": Graph(2_000, 64, 10_000),
    "2000x8x10000": Graph(2_000, 8, 10_000),
    "20000x128x100000": Graph(20_000, 128, 100_000),
}


def benchmark(graph: Graph, dtype: DType) -> Call:
    given = inputs(Form((graph.edges,), (graph.width,)), dtype, WHOLE[0], graph.nodes)
    return Call(OP, given)


# The op selects.
EXACT = limits(0, single=0, double=0)
RECORD = Record(
    OP,
    inputs={"var": Input(variable="T"), "indices": Input(WHOLE), "updates": Input(variable="T")},
    outputs={"out": like("var", limits=EXACT, portable_limits=EXACT)},
    attributes={},
    oracle=oracle,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "NaN", "-0"),
    benchmarks=(Benchmark(benchmark, SIZES),),
    accuracies=(accuracy.of_calls(benchmark, Graph(200, 32, 2_000)),),
)
