"""SparseMatMul: sums of weighted rows over the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT16, FLOAT32, FLOATS, INF, NAN, normal
from tests.ops._shared.edges import FORMS, LARGE, LAYERS, WHOLE, Graph
from tests.ops._shared.numbers import Array, Reals, exact_sum, real
from tests.ops._shared.record import (
    PORTABLE_LIMITS,
    SUM_LIMITS,
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    like,
    with_dtypes,
    with_value,
)

OP = "SparseMatMul"
ROWS = 6
INT64 = WHOLE[0]


def _by_row(
    gather: Callable[[Array], Array],
    dense: ArrayLike,
    row: Array,
    column: Array,
    values: ArrayLike | None = None,
    num_rows: int = -1,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """Row i of the result is `gather` of the terms (count, ..., D) of its elements."""
    table = real(dense, dtype)
    rows = len(table) if num_rows < 0 else num_rows
    weights = np.ones((), dtype) if values is None else real(values, dtype)
    out = np.zeros((rows, *table.shape[1:]), dtype)
    for i in set(row.tolist()):
        own = np.flatnonzero(row == i)
        factors = weights if weights.ndim == 0 else weights[own][..., None]
        with np.errstate(all="ignore"):
            out[i] = gather(factors * table[column[own]])
    return out


def oracle(*inputs: Any, **settings: Any) -> Array:
    """The exact sum of the products of each row's elements, each rounded once."""
    return _by_row(lambda terms: exact_sum(terms, (0,)), *inputs, **settings)


def largest_terms(*inputs: Any, **settings: Any) -> Array:
    return _by_row(lambda terms: np.abs(terms).max(axis=0), *inputs, **settings)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """A float64 sum of n products is off by a rounding of each product and partial sum at most."""
    count = max(call.given["row"].size, 1)
    largest = largest_terms(*RECORD.arrays(call), **call.attributes)
    return np.nan_to_num(largest, posinf=0.0) * (count * (count + 1)) * 2.0**-53


def inputs(form: Graph, dtype: DType, *, weighted: bool = True) -> dict[str, Array | None]:
    values = normal((form.edges, *form.heads), dtype, "values") if weighted else None
    dense = normal((form.columns, *form.heads, form.length), dtype, "dense")
    return {"dense": dense, "row": form.row(), "column": form.column(), "values": values}


def make(choice: Choice) -> dict[str, Array | None]:
    given = inputs(choice.form, choice.dtype("dense"), weighted=choice.dtypes["values"] is not None)
    return with_dtypes(given, choice, "row", "column")


def calls() -> Iterator[Call]:
    def call(label: str, form: Graph, **attributes: int) -> Call:
        return Call(OP, inputs(form, FLOAT32), attributes, label=label)

    yield call("more_columns", Graph(3, 8, 20), num_rows=3)
    yield call("more_rows", Graph(9, 2, 20), num_rows=9)
    yield call("no_rows", Graph(0, 4, 0), num_rows=0)
    yield call("no_columns", Graph(4, 0, 0), num_rows=4)
    yield call("neither", Graph(0, 0, 0))
    yield call("no_edges", Graph(4, 4, 0, (2,), 5))
    yield call("no_features", Graph(4, 4, 9, (), 0))
    yield call("no_heads", Graph(4, 4, 9, (0,), 2))
    # More numbers than a task takes, and heads that tasks divide.
    yield call("many_numbers", Graph(4, 4, 30, (), 601))
    yield call("many_heads", Graph(4, 4, 30, (7,), 90))
    yield call("single_numbers", Graph(4, 4, 30, (40,), 1))
    yield replace(call("known_shapes", FORMS["heads"]), static=True)
    for label, form in (("narrow", FORMS["narrow"]), ("wide", FORMS["wide"])):
        for dtype in FLOATS:
            one = inputs(form, dtype) | {"values": np.asarray(-1.5, dtype)}
            yield Call(OP, one, label=f"one_value_{label}_{dtype.name}")
        for value in (NAN, INF, -INF):
            for name in ("dense", "values"):
                given = with_value(inputs(form, FLOAT32), name, 2, value)
                yield Call(OP, given, label=f"{value}_in_{name}_{label}")
    # A large number hides all digits of the others unless the sum is wide.
    for dtype, size in ((FLOAT32, 2.0**24), (FLOAT16, 2.0**11)):
        dense = np.array([[size], [1.0], [-size]]).astype(dtype)
        column = np.array([0, 1, 1, 1, 2])
        cancelling: dict[str, Array | None] = {"dense": dense, "row": np.zeros(5, np.int64), "column": column}
        yield Call(OP, cancelling, label=f"cancels_{dtype.name}")


def worked(dtype: DType) -> Iterator[Worked]:
    dense = np.array([[1, 2], [3, 4], [5, 6]], dtype)
    for kind in WHOLE:
        edges = {"row": np.array([3, 0, 3, 3], kind), "column": np.array([0, 2, 1, 0], kind)}
        given: dict[str, Array | None] = {"dense": dense, **edges}
        plain = Call(OP, given, {"num_rows": 4}, label=f"by_hand_{kind.name}")
        yield Worked(plain, {"out": [[5, 6], [0, 0], [0, 0], [5, 8]]})
        weighted = plain.but({"values": np.array([1, -2, 2, 0.5], dtype)}, f"weighted_{kind.name}")
        yield Worked(weighted, {"out": [[-10, -12], [0, 0], [0, 0], [7.5, 11]]})
    # Each head has its own weights.
    heads = {
        "dense": np.array([[[1], [2]], [[3], [4]]], dtype),
        "row": np.array([1, 1]),
        "column": np.array([0, 1]),
        "values": np.array([[1, 10], [2, 20]], dtype),
    }
    yield Worked(Call(OP, heads, label="heads"), {"out": [[[0], [0]], [[7], [100]]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    for name in ("row", "column"):
        for value in (-1, ROWS, 2**31 - 1, -(2**63)):
            wrong = plain.given[name].copy()
            wrong[7] = value
            words = (f"'{name}'", f" {value} ", "(7)", f"[0, {ROWS})")
            yield Refusal(f"{name}_{value}", words, {name: wrong}, by_values=True)
        flat = {name: np.zeros((20, 1), np.int64)}
        yield Refusal(f"{name}_of_rank_2", (f"'{name}'", "(20, 1)", "one dimension"), flat, by_rank=True)
    short = {"column": np.zeros(19, np.int64)}
    yield Refusal("fewer_columns", ("'column'", "(19,)", "(20,)", "'row'"), short)
    yield Refusal("fewer_values", ("'values'", "(19,)", "(20,)", "scalar"), {"values": np.zeros(19, np.float32)})
    values = {"values": np.zeros((20, 1), np.float32)}
    yield Refusal("values_of_rank_2", ("'values'", "(20, 1)", "(20,)"), values, by_rank=True)
    mixed = {"values": np.zeros(20, np.float64)}
    yield Refusal("mixed", ("'values'", "double", "float"), mixed)
    row = {"dense": np.zeros(6, np.float32)}
    yield Refusal("dense_of_rank_1", ("'dense'", "(6,)", "2 to 8"), row, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    for form in LARGE:
        settings = {"num_rows": form.rows}
        yield Call(OP, inputs(form, dtype), settings, label=f"edges_{form.edges}")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    """What PyTorch Geometric computes."""
    given = dict(zip(call.inputs, with_torch.tensors(torch, call), strict=True))
    dense, row, column, values = given["dense"], given["row"], given["column"], given.get("values")
    rows = call.attributes.get("num_rows", -1)
    shape = (len(dense) if rows < 0 else rows, *dense.shape[1:])

    def compute() -> Any:
        terms = dense.index_select(0, column)
        if values is not None:
            terms = terms * values.unsqueeze(-1)
        return dense.new_zeros(shape).index_add_(0, row, terms)

    return compute


def benchmark(form: Graph, dtype: DType) -> Call:
    return Call(OP, inputs(form, dtype))


RECORD = Record(
    OP,
    inputs={
        "dense": Input(variable="T"),
        "row": Input(WHOLE),
        "column": Input(WHOLE),
        "values": Input(optional=True, variable="T"),
    },
    outputs={"out": like("dense", limits=SUM_LIMITS, portable_limits=PORTABLE_LIMITS)},
    attributes={
        "num_rows": Attribute(-1, (-1, ROWS, ROWS + 3), (-2, 2**31, 2**62), ("at least -1", "at most 2147483647"))
    },
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=("SampledMatMul", "values[e, h] * dense[column[e], h, d]", "num_rows", "number of threads", "NaN"),
    benchmarks=(Benchmark(benchmark, LAYERS),),
    accuracies=(accuracy.of_calls(benchmark, Graph(2000, 2000, 20_000, (), 32), Graph(10, 10, 20_000, (), 32)),),
)
