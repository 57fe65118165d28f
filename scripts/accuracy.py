"""Measures how far the ops' results are off the exact ones, and prints the tables of docs/accuracy.md.

Run it from the repository's root: `python -m scripts.accuracy`. What is computed, and what the exact results are, say
the records in tests/ops: the exact result is the formula evaluated from the same inputs in float64 (float64 itself is
judged in numpy.longdouble). Errors are in units in the last place of the largest term of an element's formula; correct
rounding gives at most 0.5. The inputs of ops that work element by element are random, of both signs, with magnitudes
spread evenly on a logarithmic scale; in the 16-bit dtypes also each of the 65536 values there are, NaN and infinities
included, for one operand after the other. Those of other ops are such as occur in training. Left out are finite
bfloat16 results with a term so large that the float32 arithmetic before it may overflow. Results with an exponential
below the smallest normal number of the dtype that is computed in have a table of their own.

torch is judged where all inputs and the exact result are finite: elsewhere it sometimes means something else.
"""

import argparse
import functools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import onnx_ops
from scripts import measuring
from scripts.markdown import table
from tests.ops import RECORDS
from tests.ops._shared import with_torch
from tests.ops._shared.numbers import difference, ulp_error
from tests.ops._shared.record import Accuracy, Array, Call, Record

LARGEST_BFLOAT16_TERM = 2.0**100
# What kernels promise in float32 where errors are absolute.
ABSOLUTE_PROMISE = 1e-6


@dataclass
class Row:
    """Largest errors of one op in one dtype, over `values` results. None: it was not computed that way.

    Attributes:
        label: of the call, where the row is of one call.
        kept: whether the kernel is as accurate as promised.
    """

    op: str
    dtype: str
    values: int
    kernel: float | None
    body: float | None
    torch: float | None
    label: str = ""
    kept: bool = True


class Rows(NamedTuple):
    """What came of one call: for the main table, for that of tails, and with absolute errors."""

    main: Row
    tail: Row
    absolute: Row


def main() -> int:
    """Measures, prints tables and writes the JSON file; returns the exit status: 1 if a kernel's error is too large."""
    options = measuring.argument_parser(__doc__, list(measuring.DTYPES), "build/accuracy.json").parse_args()
    start = time.perf_counter()
    if measuring.torch:
        measuring.torch.set_num_threads(options.threads)
    machine = measuring.machine(options.threads)
    relative, tails, absolute = measure(options)

    for rows, of_which in ((relative, ""), (tails, " of results with an exponential below the smallest normal number")):
        if rows:
            print(f"Largest errors{of_which}, in units in the last place of the largest term:\n")
            print_table(
                ["op", "dtype", "results", "kernel", "function body", "torch"],
                [[r.op, r.dtype, f"{r.values:,}", *map(places, (r.kernel, r.body, r.torch))] for r in rows],
            )
            print()
    print('"-": does not exist; "inf": overflows, or gives NaN, where the exact result is finite.')
    if absolute:
        print("\nLargest absolute errors, by the number of time steps T:\n")
        print_table(
            ["op", "dtype", "T", "results", "kernel", "torch"],
            [[r.op, r.dtype, r.label, f"{r.values:,}", *map(scientific, (r.kernel, r.torch))] for r in absolute],
        )
    broken = [row for row in (*relative, *tails, *absolute) if not row.kept]
    for row in broken:
        print(f"\nThe kernel is less accurate than promised: {row.op} {row.dtype}")
    print(f"\n{', '.join(f'{key} {value}' for key, value in machine.items())}")
    tables = {"ulp": relative, "tails": tails, "absolute": absolute}
    found = {name: [asdict(row, dict_factory=for_json) for row in rows] for name, rows in tables.items()}
    measuring.write_json(options.json, {"machine": machine, **found})
    print(f"Measured in {time.perf_counter() - start:.0f} s, written to {options.json}.")
    return 1 if broken else 0


def measure(options: argparse.Namespace) -> tuple[list[Row], list[Row], list[Row]]:
    """The rows of all tables: in units in the last place, those of tails, and absolute ones, one for each call."""
    relative: list[Row] = []
    tails: list[Row] = []
    absolute: list[Row] = []
    chosen = [
        (RECORDS[op], row, dtype) for op in options.op for row in RECORDS[op].accuracies for dtype in options.dtype
    ]
    with tqdm(chosen, unit="row", leave=False) as progress:
        for record, row, dtype in progress:
            title = ", ".join(filter(None, [record.op, row.note]))
            progress.set_description(f"{title} {dtype}")
            with np.errstate(all="ignore"):
                judged = [
                    rows
                    for call in row.calls(measuring.DTYPES[dtype])
                    for rows in judge(record, row, call, dtype, options.threads)
                ]
            relative.append(worst(title, [rows.main for rows in judged]))
            if any(rows.tail.values for rows in judged):
                tails.append(worst(title, [rows.tail for rows in judged]))
            if row.absolute and dtype in ("float32", "float64"):
                absolute += [rows.absolute for rows in judged]
    return relative, tails, absolute


def worst(title: str, rows: Sequence[Row]) -> Row:
    """The rows of several outputs and calls in one."""
    kernel, body, torch = (
        max((error for error in column if error is not None), default=None)
        for column in zip(*((row.kernel, row.body, row.torch) for row in rows), strict=True)
    )
    values = sum(row.values for row in rows)
    return Row(title, rows[0].dtype, values, kernel, body, torch, kept=all(row.kept for row in rows))


# Judging


def judge(record: Record, row: Accuracy, call: Call, dtype: str, threads: int) -> Iterator[Rows]:
    """Errors of each output of one call."""
    exact = np.longdouble if dtype == "float64" else np.float64
    expected, terms = record.expected(call, exact), record.largest_terms(call)
    results = results_of(call, threads)
    tail = row.tail(call, exact) if row.tail else np.array(False)
    for name in record.wanted(call):
        own = {way: outputs[name] for way, outputs in results.items() if name in outputs}
        judgement = Judgement(record, call, name, dtype, own, expected[name], terms.get(name))
        is_tail = tail if tail.shape == expected[name].shape else np.zeros(expected[name].shape, bool)
        yield Rows(
            judgement.in_places(judgement.safe & ~is_tail),
            judgement.in_places(judgement.safe & is_tail),
            judgement.in_numbers(),
        )


@dataclass(frozen=True)
class Judgement:
    """The results for one output by way of computing it, beside the exact result and the largest terms."""

    record: Record
    call: Call
    output: str
    dtype: str
    results: Mapping[str, Array]
    expected: Array
    terms: Array | None

    @functools.cached_property
    def safe(self) -> Array:
        """Where the arithmetic of bfloat16 operands, which is that of float32, cannot overflow."""
        if self.dtype != "bfloat16":
            return np.ones(self.expected.shape, bool)
        largest = self.expected if self.terms is None else self.terms
        return np.asarray(~np.isfinite(self.expected) | (np.abs(largest) <= LARGEST_BFLOAT16_TERM))

    @functools.cached_property
    def comparable_with_torch(self) -> Array:
        """Where the exact result is finite, and with it all inputs of its shape."""
        finite: Array = np.isfinite(self.expected)
        for array in self.call.given.values():
            if array.shape == finite.shape:
                finite = np.logical_and(finite, np.isfinite(array.astype(np.float64)))
        return finite

    @functools.cached_property
    def places(self) -> dict[str, Array]:
        """Errors in units in the last place of the largest term, by way of computing."""
        return {way: ulp_error(result, self.expected, self.terms) for way, result in self.results.items()}

    def in_places(self, judged: Array) -> Row:
        """The largest errors in units in the last place among the results that are `judged`."""
        row = self._row(self.places, judged)
        actual = self.results["kernel"]
        limit = self.record.limit(self.call, self.output, actual.dtype)
        if (row.kernel or 0.0) > limit:  # beyond what the record grants besides rounding?
            beyond = self.record.errors(self.call, self.output, actual)
            row.kept = float(beyond[judged].max()) <= limit
        return row

    def in_numbers(self) -> Row:
        """The largest absolute errors."""
        errors = {way: difference(result, self.expected) for way, result in self.results.items()}
        row = self._row(errors, self.safe)
        row.kept = self.dtype != "float32" or (row.kernel or 0.0) <= ABSOLUTE_PROMISE
        return row

    def _row(self, errors: Mapping[str, Array], judged: Array) -> Row:
        def largest(way: str) -> float | None:
            own = judged & self.comparable_with_torch if way == "torch" else judged
            return float(errors[way][own].max()) if way in errors and own.any() else None

        values = int(judged.sum())
        return Row(
            self.call.op, self.dtype, values, largest("kernel"), largest("body"), largest("torch"), self.call.label
        )


def results_of(call: Call, threads: int) -> dict[str, dict[str, Array]]:
    """The outputs of a call by name, by kernel, function body and torch as far as it has them."""
    model = measuring.model_of(call)
    sessions = {
        "kernel": onnx_ops.InferenceSession(model, measuring.quiet_options(threads)),
        "body": measuring.portable_session(model, measuring.quiet_options(threads)),
    }
    results: dict[str, dict[str, Array]] = {}
    for way, session in sessions.items():
        results[way] = outputs = measuring.empty_outputs(session, call.given)
        measuring.bound_run(session, call.given, outputs)()
    if not RECORDS[call.op].torch_draws and (run := measuring.torch_call(call)):
        computed = run()
        tensors = computed if isinstance(computed, tuple) else (computed,)
        results["torch"] = {
            name: with_torch.array(measuring.torch, tensor).astype(outputs[name].dtype)
            for name, tensor in zip(RECORDS[call.op].wanted(call), tensors, strict=True)
        }
    return results


# Printing


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table, numbers to the right."""
    print(table(header, rows, right=[i for i, title in enumerate(header) if title not in ("op", "dtype")]))


def places(error: float | None) -> str:
    """Units in the last place, or a dash."""
    return "-" if error is None else f"{error:.2f}" if error < 100 else f"{error:.1e}"


def for_json(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A dictionary without infinities, for which JSON has no number."""
    return {key: "inf" if value == np.inf else value for key, value in items}


def scientific(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


if __name__ == "__main__":
    sys.exit(main())
