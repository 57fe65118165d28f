"""EmbeddingDenseBackward: the gradient of a lookup of rows by the table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, INF, NAN, Shape, normal, rng
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
)

OP = "EmbeddingDenseBackward"
WHOLE = (np.dtype(np.int64), np.dtype(np.int32))
ROWS = 5


def _by_row(
    gather: Callable[[Array], Array],
    grad: Array,
    indices: ArrayLike,
    num_weights: int,
    padding_idx: int = -1,
    scale_grad_by_freq: int = 0,
) -> Array:
    """Row v is `gather` of the rows of grad, (count, width), whose index is v, divided by their count for a mean."""
    flat = np.reshape(np.asarray(indices), -1)
    rows = np.reshape(grad, (flat.size, np.shape(grad)[-1]))
    out = np.zeros((num_weights, rows.shape[1]), grad.dtype)
    for v in set(flat.tolist()) - {padding_idx}:
        own = rows[flat == v]
        out[v] = gather(own) / (len(own) if scale_grad_by_freq else 1)
    return out


def oracle(grad: ArrayLike, *others: Any, dtype: Reals = np.float64, **settings: Any) -> Array:
    """Row v is the sum of grad over all places whose index is v, or their mean; 0 for v = padding_idx."""
    return _by_row(lambda own: exact_sum(own, (0,)), real(grad, dtype), *others, **settings)


def terms(grad: ArrayLike, *others: Any, dtype: Reals = np.float64, **settings: Any) -> Array:
    """The largest of the terms that are added up for each element."""
    return _by_row(lambda own: own.max(axis=0), np.abs(real(grad, dtype)), *others, **settings)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """A float64 sum of n terms is off by n roundings of partial sums at most."""
    count = max(call.given["indices"].size, 1)
    return terms(**call.given, **call.attributes) * count**2 * 2.0**-53


FORMS: dict[str, Shape] = {"plane": (3, 4), "row": (7,), "scalar": (), "deep": (2, 1, 2, 1, 2, 1, 2)}


def inputs(shape: Shape, dtype: DType, kind: DType, rows: int = ROWS, width: int = 3) -> dict[str, Array | None]:
    indices = rng("rows", shape, rows).integers(0, rows, shape)
    return {"grad": normal((*shape, width), dtype, "grad"), "indices": np.asarray(indices).astype(kind)}


def make(choice: Choice) -> dict[str, Array | None]:
    return inputs(choice.form, choice.dtype("grad"), choice.dtype("indices"))


def calls() -> Iterator[Call]:
    def call(label: str, given: dict[str, Array | None], rows: int = ROWS, **attributes: int) -> Call:
        return Call(OP, given, {"num_weights": rows, **attributes}, label=label)

    single, int64 = FLOAT32, WHOLE[0]
    empty: dict[str, Array | None] = {"grad": np.zeros((0, 3), np.float32), "indices": np.zeros(0, np.int64)}
    for rows in (0, ROWS):
        yield call(f"no_indices_{rows}", empty, rows)
        yield call(f"no_indices_scaled_{rows}", empty, rows, scale_grad_by_freq=1)
    nowhere = {"grad": np.zeros((2, 0, 3), np.float32), "indices": np.zeros((2, 0), np.int64)}
    yield call("no_indices_of_rank_2", nowhere)
    yield call("no_columns", inputs((4,), single, int64, width=0))
    yield call("neither", {"grad": np.zeros((0, 0), np.float32), "indices": np.zeros(0, np.int32)}, 0)
    yield call("one_row", inputs((40,), single, int64, rows=1), 1)
    yield call("only_padding", inputs((40,), single, int64, rows=1), 1, padding_idx=0)
    # More columns than a task takes, and a number of them that fills no vector.
    yield call("many_columns", inputs((30,), single, int64, rows=4, width=601), 4, scale_grad_by_freq=1)
    yield replace(call("known_shapes", inputs((6, 2), single, int64)), static=True)
    for value in (NAN, INF, -INF):
        given = inputs((9,), single, int64)
        given["indices"] = np.array([0, 1, 2, 0, 1, 2, 4, 0, 1])
        assert given["grad"] is not None
        given["grad"][[1, 2, 6], 0] = value
        yield call(f"{value}", given, padding_idx=2)
        yield call(f"{value}_scaled", given, padding_idx=2, scale_grad_by_freq=1)
    # A large number hides all digits of the others unless the sum is wide.
    for dtype, size in ((single, 2.0**24), (np.dtype(np.float16), 2.0**11)):
        grad = np.array([[size], [1.0], [1.0], [1.0], [-size]]).astype(dtype)
        yield call(f"cancels_{dtype.name}", {"grad": grad, "indices": np.zeros(5, np.int64)}, 2)


def worked(dtype: DType) -> Iterator[Worked]:
    grad = np.array([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]], dtype)
    for kind in WHOLE:
        given: dict[str, Array | None] = {"grad": grad, "indices": np.array([[3, 0, 3], [1, 3, 0]], kind)}
        plain, mean = ([[14, 16], [7, 8], [0, 0], [15, 18]], [[7, 8], [7, 8], [0, 0], [5, 6]])
        for scale, rows in ((0, plain), (1, mean)):
            attributes = {"num_weights": 4, "scale_grad_by_freq": scale}
            yield Worked(Call(OP, given, attributes, label=f"by_hand_{scale}"), {"out": rows})
            padded = Call(OP, given, {**attributes, "padding_idx": 3}, label=f"padded_{scale}")
            yield Worked(padded, {"out": [*rows[:3], [0, 0]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    indices = plain.given["indices"]
    for value in (-1, ROWS, 2**31 - 1, -(2**63)):
        wrong = indices.copy()
        wrong[1, 2] = value
        words = ("'indices'", f" {value} ", "(1, 2)", f"[0, {ROWS})")
        yield Refusal(f"index_{value}", words, {"indices": wrong}, by_values=True)
    for shape in ((3, 3), (4, 3)):
        words = ("'indices'", str(shape), "expected", "(3, 4)")
        yield Refusal(f"indices_of_{shape[0]}x{shape[1]}", words, {"indices": np.zeros(shape, np.int64)})
    words = ("'indices'", "expected", "'grad'")
    yield Refusal("indices_of_rank_3", words, {"indices": np.zeros((3, 4, 1), np.int64)}, by_rank=True)
    yield Refusal("grad_of_rank_0", ("'grad'", "()"), {"grad": np.zeros((), np.float32)}, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    """Some rows get most of the gradients, as words of a language do; some get none."""
    for shape, rows, width in (((50, 200), 3000, 48), ((9000,), 7, 300)):
        frequent = np.minimum(rng("zipf", shape).zipf(1.2, shape) - 1, rows - 1).astype(np.int64)
        given: dict[str, Array | None] = {"grad": normal((*shape, width), dtype, "large"), "indices": frequent}
        yield Call(OP, given, {"num_weights": rows, "padding_idx": 3}, label=f"rows_{rows}")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    grad, indices = with_torch.tensors(torch, call)
    settings = {"padding_idx": -1, "scale_grad_by_freq": 0, **call.attributes}
    return functools.partial(
        torch.ops.aten.embedding_dense_backward,
        grad,
        indices,
        settings["num_weights"],
        settings["padding_idx"],
        bool(settings["scale_grad_by_freq"]),
    )


@dataclass(frozen=True)
class Table:
    """A size of a benchmark: rows of the table, their length, and places that look one up."""

    rows: int
    width: int
    places: int


SIZES = {
    "1000x16x64": Table(1_000, 16, 64),
    "10000x64x4096": Table(10_000, 64, 4_096),
    "50000x256x8192": Table(50_000, 256, 8_192),
    "30000x768x4096": Table(30_000, 768, 4_096),
}


def benchmark(table: Table, dtype: DType, even: bool = False) -> Call:
    """Words as they occur in a text: the k-th most frequent one 1/k times as often as the first."""
    weights = np.ones(table.rows) if even else 1 / np.arange(1, table.rows + 1)
    indices = rng("words", table).choice(table.rows, table.places, p=weights / weights.sum())
    grad = normal((table.places, table.width), dtype, "words")
    return Call(OP, {"grad": grad, "indices": indices}, {"num_weights": table.rows})


RECORD = Record(
    OP,
    inputs={"grad": Input(), "indices": Input(WHOLE)},
    outputs={"out": like("grad", limits=SUM_LIMITS, portable_limits=PORTABLE_LIMITS)},
    attributes={
        "num_weights": Attribute(
            ROWS, (ROWS, ROWS + 2), (-1, 2**31, 2**62), ("at least 0", "at most 2147483647"), required=True
        ),
        "padding_idx": Attribute(-1, (-1, 0, ROWS - 1), (-2, ROWS, 2**40), (f"[0, {ROWS})",)),
        "scale_grad_by_freq": Attribute(0, (0, 1), (-1, 2)),
    },
    oracle=oracle,
    terms=terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "padding_idx", "num_weights", "scale_grad_by_freq", "number of threads"),
    benchmarks=(Benchmark(benchmark, SIZES),),
    accuracies=(accuracy.of_calls(benchmark, Table(2_000, 32, 20_000), Table(10, 32, 20_000)),),
)
