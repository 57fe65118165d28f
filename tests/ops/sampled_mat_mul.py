"""SampledMatMul: a dot product for each edge of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, INF, NAN, normal
from tests.ops._shared.edges import FORMS, LARGE, LAYERS, WHOLE, Graph
from tests.ops._shared.numbers import Array, Reals, exact_sum, real
from tests.ops._shared.record import (
    PORTABLE_LIMITS,
    SUM_LIMITS,
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

OP = "SampledMatMul"
ROWS = 6


def _products(left: ArrayLike, right: ArrayLike, row: Array, column: Array, dtype: Reals) -> Array:
    with np.errstate(all="ignore"):
        return real(left, dtype)[row] * real(right, dtype)[column]


def oracle(*inputs: Any, dtype: Reals = np.float64) -> Array:
    """The exact sum of the products of each element, each rounded once."""
    products = _products(*inputs, dtype=dtype)
    return exact_sum(products, (products.ndim - 1,))


def largest_terms(*inputs: Any, dtype: Reals = np.float64) -> Array:
    return np.abs(_products(*inputs, dtype=dtype)).max(-1, initial=0.0)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """A float64 sum of n products is off by a rounding of each product and partial sum at most."""
    length = call.given["left"].shape[-1]
    largest = largest_terms(*RECORD.arrays(call))
    return np.asarray(np.nan_to_num(largest, posinf=0.0) * (length * (length + 1)) * 2.0**-53)


def inputs(form: Graph, dtype: DType) -> dict[str, Array | None]:
    left, right = (normal((rows, *form.heads, form.length), dtype, rows, name) for rows, name in (
        (form.rows, "left"), (form.columns, "right"),
    ))  # fmt: skip
    return {"left": left, "right": right, "row": form.row(), "column": form.column()}


def make(choice: Choice) -> dict[str, Array | None]:
    return with_dtypes(inputs(choice.form, choice.dtype("left")), choice, "row", "column")


def calls() -> Iterator[Call]:
    for label, form in (
        ("more_columns", Graph(3, 8, 20)),
        ("more_rows", Graph(9, 2, 20)),
        ("no_rows", Graph(0, 4, 0)),
        ("neither", Graph(0, 0, 0)),
        ("no_edges", Graph(4, 4, 0, (2,), 5)),
        ("no_features", Graph(4, 4, 9, (), 0)),
        ("no_heads", Graph(4, 4, 9, (0,), 2)),
        ("many_numbers", Graph(4, 4, 30, (), 601)),
        ("many_heads", Graph(4, 4, 30, (40,), 1)),
    ):
        yield Call(OP, inputs(form, FLOAT32), label=label)
    yield replace(Call(OP, inputs(FORMS["heads"], FLOAT32), label="known_shapes"), static=True)
    for value in (NAN, INF, -INF):
        for name in ("left", "right"):
            given = with_value(inputs(FORMS["narrow"], FLOAT32), name, (2, 1), value)
            yield Call(OP, given, label=f"{value}_in_{name}")


def worked(dtype: DType) -> Iterator[Worked]:
    left, right = np.array([[1, 2], [3, 4]], dtype), np.array([[5, 6], [7, 8], [0, -1]], dtype)
    for kind in WHOLE:
        given: dict[str, Array | None] = {
            "left": left,
            "right": right,
            "row": np.array([1, 0, 1], kind),
            "column": np.array([0, 2, 1], kind),
        }
        yield Worked(Call(OP, given, label=f"by_hand_{kind.name}"), {"out": [39, -2, 53]})
    heads: dict[str, Array | None] = {
        "left": left[:, :, None],
        "right": right[:, :, None],
        "row": np.array([1, 0]),
        "column": np.array([0, 2]),
    }
    yield Worked(Call(OP, heads, label="heads"), {"out": [[15, 24], [0, -2]]})


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
    yield Refusal("lengths", ("'right'", "(6, 4)", "'left'"), {"right": np.zeros((6, 4), np.float32)})
    heads = {"right": np.zeros((6, 1, 3), np.float32)}
    yield Refusal("right_of_rank_3", ("'right'", "(6, 1, 3)", "'left'"), heads, by_rank=True)
    yield Refusal("mixed", ("'right'", "double", "float"), {"right": np.zeros((6, 3), np.float64)})
    for name in ("left", "right"):
        row = {name: np.zeros(6, np.float32)}
        yield Refusal(f"{name}_of_rank_1", (f"'{name}'", "(6,)", "2 to 8"), row, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    for form in LARGE:
        yield Call(OP, inputs(form, dtype), label=f"edges_{form.edges}")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    """What PyTorch Geometric computes."""
    left, right, row, column = with_torch.tensors(torch, call)
    return lambda: (left.index_select(0, row) * right.index_select(0, column)).sum(-1)


def benchmark(form: Graph, dtype: DType) -> Call:
    return Call(OP, inputs(form, dtype))


RECORD = Record(
    OP,
    inputs={
        "left": Input(variable="T"),
        "right": Input(variable="T"),
        "row": Input(WHOLE),
        "column": Input(WHOLE),
    },
    outputs={"out": like("left", limits=SUM_LIMITS, portable_limits=PORTABLE_LIMITS)},
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
    documented=("SparseMatMul", "left[row[e], h, d] * right[column[e], h, d]", "number of threads", "NaN"),
    benchmarks=(Benchmark(benchmark, LAYERS),),
    accuracies=(accuracy.of_calls(benchmark, Graph(2000, 2000, 20_000, (), 32), Graph(200, 200, 1000, (), 600)),),
)
