"""Measures how far the ops' results are off the exact ones, and prints the tables of docs/accuracy.md.

Run it from the repository's root: `python -m scripts.accuracy`. The exact result is the formula evaluated from the same
inputs in float64 by tests/oracles.py (float64 itself is judged in numpy.longdouble). Errors are in units in the last
place of the largest term of an element's formula; correct rounding gives at most 0.5. The inputs are random, of both
signs, with magnitudes spread evenly on a logarithmic scale; in the 16-bit dtypes also each of the 65536 values there
are, NaN and infinities included, for one operand after the other. Left out are finite bfloat16 results with a term so
large that the float32 arithmetic before it may overflow. Results with an exponential below the smallest normal number
of the dtype that is computed in have a table of their own.

torch is judged where all inputs and the exact result are finite: elsewhere it sometimes means something else.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import onnx_ops
from scripts import cases
from scripts.cases import Case
from scripts.markdown import table
from tests import oracles

SEED = 0
RANDOM = 300_000
# How many random sets of the other operands each value of a 16-bit operand is tried with.
MEETINGS = 6
COLUMNS = 96
CHANNELS = 64

# Exponents of 2 of the factors: three of them multiply without leaving the range of the dtype that is computed in,
# float32 for the 16-bit ones. Where one operand takes all values, the others lie between the exponents in OTHERS.
FACTORS = {"float16": (-24, 15), "bfloat16": (-40, 40), "float32": (-40, 40), "float64": (-300, 300)}
OTHERS = (-4, 0)
# The same of logits and log-probabilities x. Near the upper end exp(-x) is subnormal.
LOGITS = {"float16": (-20, 15), "bfloat16": (-20, 6.6), "float32": (-20, 6.6), "float64": (-20, 9.5)}
STATISTICS = (-4, 4)
LARGEST_LOG_PROBABILITY = 8.0
LARGEST_BFLOAT16_TERM = 2.0**100
SMALLEST_PROBABILITY = -20

CTC_STEPS = (100, 500, 1000)
CTC_BATCH, CTC_CLASSES, STEPS_PER_LABEL, CTC_SPREAD = 4, 40, 5, 2.0

# What the kernels promise: units in the last place, and for CTC in float32 the absolute error. For float64 it is 1e-12
# of the largest term.
PROMISED = {"float16": 1.0, "bfloat16": 1.0, "float32": 4.0, "float64": 1e-12 * 2**52}
CTC_PROMISED = 1e-6

Array = np.ndarray
Range = tuple[float, float]


@dataclass
class Row:
    """Largest errors of one op in one dtype, over `values` results. None: it was not computed that way."""

    op: str
    dtype: str
    values: int
    kernel: float | None
    body: float | None
    torch: float | None


class Rows(NamedTuple):
    """What came of one case: for the main table, for that of tails, and with absolute errors."""

    main: Row
    tail: Row
    absolute: Row


def main() -> int:
    """Measures, prints tables and writes the JSON file; returns the exit status: 1 if a kernel's error is too large."""
    options = cases.argument_parser(__doc__, list(cases.DTYPES), "build/accuracy.json").parse_args()
    start = time.perf_counter()
    if cases.torch:
        cases.torch.set_num_threads(options.threads)
    machine = cases.machine(options.threads)
    relative, tails, absolute = measure(options)

    for rows, of_which in ((relative, ""), (tails, " of results with an exponential below the smallest normal number")):
        if rows:
            print(f"Largest errors{of_which}, in units in the last place of the largest term:\n")
            print_table(
                ["op", "dtype", "results", "kernel", "portable body", "torch"],
                [[r.op, r.dtype, f"{r.values:,}", *map(places, (r.kernel, r.body, r.torch))] for r in rows],
            )
            print()
    print('"-": does not exist; "inf": overflows, or gives NaN, where the exact result is finite.')
    if absolute:
        print("\nLargest absolute errors of CtcLossBackward, by the number of time steps T:\n")
        print_table(
            ["dtype", "T", "results", "kernel", "torch"],
            [[r.dtype, r.op, f"{r.values:,}", *map(scientific, (r.kernel, r.torch))] for r in absolute],
        )
    broken = [
        row for row in (*relative, *tails) if (row.kernel or 0) > PROMISED[row.dtype] and not in_absolute_terms(row)
    ]
    broken += [row for row in absolute if row.dtype == "float32" and (row.kernel or 0) > CTC_PROMISED]
    for row in broken:
        print(f"\nThe kernel is less accurate than promised: {row.op} {row.dtype}")
    print(f"\n{', '.join(f'{key} {value}' for key, value in machine.items())}")
    tables = {"ulp": relative, "tails": tails, "absolute": absolute}
    found = {name: [asdict(row, dict_factory=for_json) for row in rows] for name, rows in tables.items()}
    cases.write_json(options.json, {"machine": machine, **found})
    print(f"Measured in {time.perf_counter() - start:.0f} s, written to {options.json}.")
    return 1 if broken else 0


def measure(options: argparse.Namespace) -> tuple[list[Row], list[Row], list[Row]]:
    """The rows of all tables: in units in the last place, those of tails, and absolute ones of CTC, where `op` is T."""
    relative: list[Row] = []
    tails: list[Row] = []
    absolute: list[Row] = []
    chosen = [(v, dtype) for v in VARIANTS if v.op_type in options.op for dtype in options.dtype]
    with tqdm(chosen, unit="row", leave=False) as progress:
        for variant, dtype in progress:
            progress.set_description(f"{variant.title} {dtype}")
            with np.errstate(all="ignore"):
                judged = [judge(case, variant, dtype, options.threads) for case in variant.cases(dtype)]
            relative.append(worst(variant.title, [rows.main for rows in judged]))
            if any(rows.tail.values for rows in judged):
                tails.append(worst(variant.title, [rows.tail for rows in judged]))
            if variant.op_type == "CtcLossBackward" and dtype in ("float32", "float64"):
                absolute += [rows.absolute for rows in judged]
    return relative, tails, absolute


def in_absolute_terms(row: Row) -> bool:
    """Whether the row is promised an absolute error."""
    return row.op == "CtcLossBackward" and row.dtype == "float32"


def worst(op: str, rows: Sequence[Row]) -> Row:
    """The rows of several cases in one."""
    errors = [
        max((error for error in column if error is not None), default=None)
        for column in zip(*((row.kernel, row.body, row.torch) for row in rows), strict=True)
    ]
    return Row(op, rows[0].dtype, sum(row.values for row in rows), *errors)


# Judging


def judge(case: Case, variant: "Variant", dtype: str, threads: int) -> Rows:
    """Errors of one case, in units in the last place and absolute."""
    exact = np.longdouble if dtype == "float64" else np.float64
    expected = variant.exact(case, exact)
    largest = variant.largest_term(case, expected)
    results = results_of(case, threads)

    safe: Array = np.ones(expected.shape, bool)
    if dtype == "bfloat16":
        safe = ~np.isfinite(expected) | (largest <= LARGEST_BFLOAT16_TERM)
    tail = variant.tail(case, exact)

    def row(op: str, judged: Array, error: Callable[[Array], Array]) -> Row:
        worst = []
        for name, result in results.items():
            own = judged & comparable_with_torch(case, expected) if name == "torch" else judged
            worst.append(float(error(result)[own].max()) if result is not None and own.any() else None)
        return Row(op, dtype, int(judged.sum()), *worst)

    def in_places(result: Array) -> Array:
        return oracles.ulp_error(result, expected, largest)

    def in_numbers(result: Array) -> Array:
        return np.abs(result.astype(np.float64) - expected.astype(np.float64))

    return Rows(
        row(variant.title, safe & ~tail, in_places),
        row(variant.title, safe & tail, in_places),
        row(case.note, safe, in_numbers),
    )


def results_of(case: Case, threads: int) -> dict[str, Array | None]:
    """The results of kernel, portable body and torch for a case."""
    sessions = {
        "kernel": onnx_ops.InferenceSession(case.model, cases.quiet_options(threads)),
        "body": cases.portable_session(case, cases.quiet_options(threads)),
    }
    results: dict[str, Array | None] = {}
    for name, session in sessions.items():
        results[name] = output = case.empty_output()
        cases.bound_run(session, case.feeds, output)()
    call = cases.torch_call(case)
    results["torch"] = cases.from_torch(call()) if call else None
    return results


def comparable_with_torch(case: Case, expected: Array) -> Array:
    """Where the exact result is finite, and with it all inputs of its shape."""
    finite: Array = np.isfinite(expected)
    for value in case.feeds.values():
        if value.shape == finite.shape:
            finite = np.logical_and(finite, np.isfinite(value.astype(np.float64)))
    return finite


# Inputs


Sampler = Callable[[np.random.Generator, int, Range], Array]


def factors(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    """Numbers of both signs, their magnitudes between two powers of 2, evenly on a logarithmic scale."""
    return np.asarray(rng.choice([-1.0, 1.0], count) * positive(rng, count, exponents))


def positive(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    return np.asarray(np.exp2(rng.uniform(*exponents, count)))


def log_probabilities(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    """Logarithms of numbers down to very small ones; some exceed 0."""
    return np.minimum(factors(rng, count, exponents), LARGEST_LOG_PROBABILITY)


def probabilities(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    """A quarter zeros, a quarter ones, and in between small ones as well as evenly spread ones."""
    kinds = [np.zeros(count), np.ones(count), positive(rng, count, (SMALLEST_PROBABILITY, 0)), rng.random(count)]
    return np.choose(rng.integers(4, size=count), kinds)


def around_threshold(rng: np.random.Generator, count: int, exponents: Range) -> Array:
    """One in eight numbers is the threshold of hardshrink, 0.5, or its negative."""
    return np.where(rng.random(count) < 1 / 8, rng.choice([-0.5, 0.5], count), factors(rng, count, exponents))


@dataclass(frozen=True)
class Operand:
    """How numbers for an input are drawn; `exponents` by dtype."""

    draw: Sampler
    exponents: Mapping[str, Range]


FACTOR = Operand(factors, FACTORS)
POSITIVE = Operand(positive, FACTORS)
LOGIT = Operand(factors, LOGITS)
LOG_PROBABILITY = Operand(log_probabilities, LOGITS)
PROBABILITY = Operand(probabilities, FACTORS)
HARDSHRINK_INPUT = Operand(around_threshold, FACTORS)


@dataclass(frozen=True)
class Variant:
    """An op with certain attributes and inputs: a row of the table per dtype.

    Attributes:
        cases: the inputs for a dtype, all that a row is judged by.
    """

    op_type: str
    cases: Callable[[str], Iterator[Case]]
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.op_type}{', ' if self.note else ''}{self.note}"

    def exact(self, case: Case, dtype: oracles.Reals) -> Array:
        """The exact value of the formula."""
        oracle: Callable[..., Array] = getattr(oracles, ORACLES[self.op_type])
        expected = oracle(*case.inputs, **case.attributes, dtype=dtype)
        if self.op_type == "BinaryCrossEntropyWithLogitsBackward":
            # As it is written the formula cancels, also in float64. The other form is for finite numbers only.
            split: Callable[..., Array] = oracles.binary_cross_entropy_with_logits_backward_split
            accurate = split(*case.inputs, **case.attributes, dtype=dtype)
            expected = np.where(np.isfinite(expected) & np.isfinite(accurate), accurate, expected)
        return expected

    def largest_term(self, case: Case, expected: Array) -> Array:
        """The largest term of each element's formula."""
        if self.op_type == "CtcLossBackward":
            grad_out, log_probs = (case.feeds[name].astype(np.float64) for name in ("grad_out", "log_probs"))
            first = grad_out[:, None] * np.exp(log_probs)
            return np.maximum(np.abs(first), np.abs(first - expected.astype(np.float64)))
        oracle: Callable[..., Array] = getattr(oracles, f"{ORACLES[self.op_type]}_largest_term")
        return oracle(*case.inputs, **case.attributes)

    def tail(self, case: Case, dtype: oracles.Reals) -> Array:
        """Where the exponential in the formula is below the smallest normal number, but not 0 as of an infinity."""
        if self.op_type == "BinaryCrossEntropyWithLogitsBackward":
            exponential = np.exp(-np.abs(case.feeds["self"].astype(dtype)))
        elif case.attributes.get("log_target"):
            exponential = np.exp(case.feeds["target"].astype(dtype))
        else:
            return np.zeros(case.empty_output().shape, bool)
        computing = np.promote_types(case.empty_output().dtype, np.float32)
        return (exponential > 0) & (exponential < np.finfo(computing).smallest_normal)


ORACLES = {
    "KlDivBackward": "kl_div_backward",
    "BinaryCrossEntropyWithLogitsBackward": "binary_cross_entropy_with_logits_backward",
    "CtcLossBackward": "ctc_loss_backward",
    "BatchNormElemtBackward": "batch_norm_elemt_backward",
    "HardshrinkBackward": "hardshrink_backward",
}


def draws(operands: Sequence[Operand], dtype: str) -> Iterator[list[Array]]:
    """Values of the operands: random ones, and for the 16-bit dtypes all of one operand after the other."""
    rng = np.random.default_rng(SEED)
    kind = cases.DTYPES[dtype]
    with np.errstate(over="ignore"):
        yield [operand.draw(rng, RANDOM, operand.exponents[dtype]).astype(kind) for operand in operands]
        if kind.itemsize == 2:
            everything = np.tile(np.arange(2**16, dtype=np.uint16).view(kind), MEETINGS)
            for i in range(len(operands)):
                values = [operand.draw(rng, everything.size, OTHERS).astype(kind) for operand in operands]
                values[i] = everything
                yield values


def pointwise(
    op_type: str, operands: Mapping[str, Operand], attributes: Mapping[str, Any] | None = None, note: str = ""
) -> Variant:
    """An op whose inputs have the shape of the output; what is not in `operands` is left out.

    Losses are judged without a reduction, and once more as a mean, whose gradient is one number.
    """

    op = onnx_ops.OPS[op_type]
    is_loss = "reduction" in op.schema.attributes

    def case(values: Sequence[Array], reduction: onnx_ops.Reduction = onnx_ops.Reduction.NONE) -> Case:
        given = {name: value.reshape(-1, COLUMNS) for name, value in zip(operands, values, strict=True)}
        if reduction == onnx_ops.Reduction.MEAN:
            given["grad_output"] = np.ones((), values[0].dtype)
        unread = np.zeros((values[0].size // COLUMNS, COLUMNS), values[0].dtype)
        inputs = [unread if (op_type, name) in cases.UNREAD else given.get(name) for name in op.input_names]
        return Case(op_type, inputs, {**(attributes or {}), **({"reduction": reduction} if is_loss else {})})

    def make(dtype: str) -> Iterator[Case]:
        for i, values in enumerate(draws(list(operands.values()), dtype)):
            yield case(values)
            if is_loss and i == 0:
                yield case(values, onnx_ops.Reduction.MEAN)

    return Variant(op_type, make, note)


def summed_kl_div(dtype: str) -> Iterator[Case]:
    """Terms summed over each of two axes along which self was broadcast."""
    rng = np.random.default_rng(SEED)
    kind = cases.DTYPES[dtype]
    shape = (RANDOM // COLUMNS, COLUMNS)
    for own in ((1, COLUMNS), (shape[0], 1)):
        grad_output = factors(rng, RANDOM, OTHERS).astype(kind).reshape(shape)
        target = probabilities(rng, RANDOM, OTHERS).astype(kind).reshape(shape)
        yield Case("KlDivBackward", [grad_output, np.zeros(own, kind), target], {"reduction": onnx_ops.Reduction.NONE})


def batch_norm(dtype: str) -> Iterator[Case]:
    """Images with statistics in float32, or float64 if they are."""
    rng = np.random.default_rng(SEED)
    wide = np.promote_types(cases.DTYPES[dtype], np.float32)
    for grad_out, images in draws([FACTOR, FACTOR], dtype):
        signed = [factors(rng, CHANNELS, STATISTICS).astype(wide) for _ in range(4)]
        mean, weight, sum_dy, sum_dy_xmu = signed
        invstd = positive(rng, CHANNELS, STATISTICS).astype(wide)
        counter = np.array([7, 1000], np.int32)
        count = images.size // CHANNELS // COLUMNS * CHANNELS * COLUMNS
        tensors = [values[:count].reshape(-1, CHANNELS, COLUMNS) for values in (grad_out, images)]
        yield Case("BatchNormElemtBackward", [*tensors, mean, invstd, weight, sum_dy, sum_dy_xmu, counter])


def ctc_loss(dtype: str) -> Iterator[Case]:
    """Sequences of several lengths."""
    rng = np.random.default_rng(SEED)
    for steps in CTC_STEPS:
        kind = cases.DTYPES[dtype]
        case = cases.ctc_case(steps, CTC_BATCH, CTC_CLASSES, steps // STEPS_PER_LABEL, kind, rng, CTC_SPREAD)
        yield replace(case, note=str(steps))


VARIANTS = [
    pointwise("KlDivBackward", {"grad_output": FACTOR, "target": FACTOR}),
    pointwise("KlDivBackward", {"grad_output": FACTOR, "target": LOG_PROBABILITY}, {"log_target": 1}, "log_target"),
    Variant("KlDivBackward", summed_kl_div, "summed"),
    pointwise("BinaryCrossEntropyWithLogitsBackward", {"grad_output": FACTOR, "self": LOGIT, "target": PROBABILITY}),
    pointwise(
        "BinaryCrossEntropyWithLogitsBackward",
        {"grad_output": FACTOR, "self": LOGIT, "target": PROBABILITY, "weight": FACTOR, "pos_weight": POSITIVE},
        note="weighted",
    ),
    Variant("CtcLossBackward", ctc_loss),
    Variant("BatchNormElemtBackward", batch_norm),
    pointwise("HardshrinkBackward", {"grad_output": FACTOR, "self": HARDSHRINK_INPUT}),
]


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
