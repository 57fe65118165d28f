"""Measures the errors of the ops' results and prints the tables of docs/accuracy.md.

Run it from the root of the repository: `python -m scripts.accuracy`. Calls and exact results come from the records in
tests/ops: the exact result is the formula evaluated on the same inputs in float64, for float64 in numpy.longdouble.
Errors are in ulp (units in the last place) of the largest term of an element's formula; correct rounding has at most
0.5 ulp. Inputs of elementwise ops are random, of both signs, log-uniform in magnitude; in 16-bit dtypes also all 65536
bit patterns of one operand after the other, with NaN and infinities. Inputs of other ops are distributed as in
training. Excluded are finite bfloat16 results with a term above 2**100, for which float32 arithmetic may overflow.
Results with a subnormal exponential, in the dtype of the computation, have a table of their own.

The errors of torch are those of elements with finite inputs and finite exact result: its conventions for others differ.
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
ABSOLUTE_BOUND = 1e-6
"""Bound of the absolute errors of kernels in float32, in the table of absolute errors."""


@dataclass
class Row:
    """Maximal errors of one op in one dtype.

    Attributes:
        op: name of the op, with the note of a variant.
        dtype: name of the dtype.
        values: number of results.
        kernel, body, torch: maximal errors; None where there is no such result.
        label: of the call, in rows of one call.
        in_bound: whether the errors of the kernel are within their bound.
    """

    op: str
    dtype: str
    values: int
    kernel: float | None
    body: float | None
    torch: float | None
    label: str = ""
    in_bound: bool = True


class Rows(NamedTuple):
    """The errors of one output of a call: in ulp, in ulp where an exponential is subnormal, and absolute."""

    main: Row
    tail: Row
    absolute: Row


def main() -> int:
    """Measure, print tables, write the JSON file; the exit status is 1 if an error of a kernel exceeds its bound."""
    options = measuring.argument_parser(__doc__, list(measuring.DTYPES), "build/accuracy.json").parse_args()
    start = time.perf_counter()
    if measuring.torch:
        measuring.torch.set_num_threads(options.threads)
    machine = measuring.machine(options.threads)
    relative, tails, absolute = measure(options)

    for rows, subset in ((relative, ""), (tails, " of results with a subnormal exponential")):
        if rows:
            print(f"Maximal errors{subset}, in ulp of the largest term:\n")
            print_table(
                ["op", "dtype", "results", "kernel", "function body", "torch"],
                [[r.op, r.dtype, f"{r.values:,}", *map(ulps, (r.kernel, r.body, r.torch))] for r in rows],
            )
            print()
    print('"-": not available; "inf": infinite or NaN where the exact result is finite.')
    if absolute:
        print("\nMaximal absolute errors, by number of time steps T:\n")
        print_table(
            ["op", "dtype", "T", "results", "kernel", "torch"],
            [[r.op, r.dtype, r.label, f"{r.values:,}", *map(scientific, (r.kernel, r.torch))] for r in absolute],
        )
    inaccurate = [row for row in (*relative, *tails, *absolute) if not row.in_bound]
    for row in inaccurate:
        print(f"\nThe error of the kernel exceeds its bound: {row.op} {row.dtype}")
    print(f"\n{', '.join(f'{key} {value}' for key, value in machine.items())}")
    tables = {"ulp": relative, "tails": tails, "absolute": absolute}
    results = {name: [asdict(row, dict_factory=for_json) for row in rows] for name, rows in tables.items()}
    measuring.write_json(options.json, {"machine": machine, **results})
    print(f"Measured in {time.perf_counter() - start:.0f} s, written to {options.json}.")
    return 1 if inaccurate else 0


def measure(options: argparse.Namespace) -> tuple[list[Row], list[Row], list[Row]]:
    """The rows of the three tables: in ulp, with subnormal exponentials, and absolute errors, one for each call."""
    relative: list[Row] = []
    tails: list[Row] = []
    absolute: list[Row] = []
    cases = [
        (RECORDS[op], row, dtype) for op in options.op for row in RECORDS[op].accuracies for dtype in options.dtype
    ]
    with tqdm(cases, unit="row", leave=False) as progress:
        for record, row, dtype in progress:
            title = ", ".join(filter(None, [record.op, row.note]))
            progress.set_description(f"{title} {dtype}")
            with np.errstate(all="ignore"):
                evaluated = [
                    rows
                    for call in row.calls(measuring.DTYPES[dtype])
                    for rows in evaluate(record, row, call, dtype, options.threads)
                ]
            relative.append(maximum(title, [rows.main for rows in evaluated]))
            if any(rows.tail.values for rows in evaluated):
                tails.append(maximum(title, [rows.tail for rows in evaluated]))
            if row.absolute and dtype in ("float32", "float64"):
                absolute += [rows.absolute for rows in evaluated]
    return relative, tails, absolute


def maximum(title: str, rows: Sequence[Row]) -> Row:
    """The maximal errors over several outputs and calls."""
    kernel, body, torch = (
        max((error for error in column if error is not None), default=None)
        for column in zip(*((row.kernel, row.body, row.torch) for row in rows), strict=True)
    )
    values = sum(row.values for row in rows)
    return Row(title, rows[0].dtype, values, kernel, body, torch, in_bound=all(row.in_bound for row in rows))


# Errors


def evaluate(record: Record, row: Accuracy, call: Call, dtype: str, threads: int) -> Iterator[Rows]:
    """The errors of each output of one call."""
    exact = np.longdouble if dtype == "float64" else np.float64
    expected, terms = record.expected(call, exact), record.largest_terms(call)
    results = results_of(call, threads)
    tail = row.tail(call, exact) if row.tail else np.array(False)
    for name in record.wanted(call):
        own = {backend: outputs[name] for backend, outputs in results.items() if name in outputs}
        errors = Errors(record, call, name, dtype, own, expected[name], terms.get(name))
        is_tail = tail if tail.shape == expected[name].shape else np.zeros(expected[name].shape, bool)
        yield Rows(
            errors.in_ulp(errors.without_overflow & ~is_tail),
            errors.in_ulp(errors.without_overflow & is_tail),
            errors.absolute(),
        )


@dataclass(frozen=True)
class Errors:
    """The errors of one output.

    Attributes:
        record: of the op.
        call: the call.
        output: name of the output.
        dtype: name of the dtype.
        results: by backend: "kernel", "body", "torch".
        expected: the exact result.
        terms: the largest term of each element's formula; None: the result itself.
    """

    record: Record
    call: Call
    output: str
    dtype: str
    results: Mapping[str, Array]
    expected: Array
    terms: Array | None

    @functools.cached_property
    def without_overflow(self) -> Array:
        """Mask of the elements of which bfloat16 operands cannot overflow in float32 arithmetic."""
        if self.dtype != "bfloat16":
            return np.ones(self.expected.shape, bool)
        largest = self.expected if self.terms is None else self.terms
        return np.asarray(~np.isfinite(self.expected) | (np.abs(largest) <= LARGEST_BFLOAT16_TERM))

    @functools.cached_property
    def comparable_with_torch(self) -> Array:
        """Mask of the elements whose exact result and inputs (those of its shape) are finite."""
        finite: Array = np.isfinite(self.expected)
        for array in self.call.given.values():
            if array.shape == finite.shape:
                finite = np.logical_and(finite, np.isfinite(array.astype(np.float64)))
        return finite

    @functools.cached_property
    def ulp(self) -> dict[str, Array]:
        """Errors in ulp of the largest term, by backend."""
        return {backend: ulp_error(result, self.expected, self.terms) for backend, result in self.results.items()}

    def in_ulp(self, mask: Array) -> Row:
        """The maximal errors in ulp of the elements in the mask."""
        row = self._row(self.ulp, mask)
        actual = self.results["kernel"]
        limit = self.record.limit(self.call, self.output, actual.dtype)
        if (row.kernel or 0.0) > limit:  # the record may allow an absolute error besides
            beyond = self.record.errors(self.call, self.output, actual)
            row.in_bound = float(beyond[mask].max()) <= limit
        return row

    def absolute(self) -> Row:
        """The maximal absolute errors."""
        errors = {backend: difference(result, self.expected) for backend, result in self.results.items()}
        row = self._row(errors, self.without_overflow)
        row.in_bound = self.dtype != "float32" or (row.kernel or 0.0) <= ABSOLUTE_BOUND
        return row

    def _row(self, errors: Mapping[str, Array], mask: Array) -> Row:
        def largest(backend: str) -> float | None:
            own = mask & self.comparable_with_torch if backend == "torch" else mask
            return float(errors[backend][own].max()) if backend in errors and own.any() else None

        values = int(mask.sum())
        return Row(
            self.call.op, self.dtype, values, largest("kernel"), largest("body"), largest("torch"), self.call.label
        )


def results_of(call: Call, threads: int) -> dict[str, dict[str, Array]]:
    """The outputs of a call by backend and name; "torch" is missing where torch does not have the op."""
    model = measuring.model_of(call)
    sessions = {
        "kernel": onnx_ops.InferenceSession(model, measuring.quiet_options(threads)),
        "body": measuring.body_session(model, measuring.quiet_options(threads)),
    }
    results: dict[str, dict[str, Array]] = {}
    for backend, session in sessions.items():
        results[backend] = outputs = measuring.empty_outputs(session, call.given)
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
    """Print a Markdown table; columns of numbers are aligned to the right."""
    print(table(header, rows, right=[i for i, title in enumerate(header) if title not in ("op", "dtype")]))


def ulps(error: float | None) -> str:
    """An error in ulp, or a dash for None."""
    return "-" if error is None else f"{error:.2f}" if error < 100 else f"{error:.1e}"


def for_json(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A dictionary with "inf" in place of infinities, which JSON does not have."""
    return {key: "inf" if value == np.inf else value for key, value in items}


def scientific(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


if __name__ == "__main__":
    sys.exit(main())
