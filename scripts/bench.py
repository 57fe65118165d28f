"""Benchmarks the ops against torch, their function bodies, a memory-bound addition and an Identity node.

Run it from the root of the repository: `python -m scripts.bench`. The rows are the benchmarks of the records in
tests/ops. Each row is measured in a process of its own, with interleaved measurements of all candidates; a ratio is the
median over the rounds.

bound     session.run_with_iobinding of the kernel, with preallocated inputs and outputs; in rows named so, in place
library   bound, with the kernel of a library that was built ahead of time for the same processors (--cpu)
run       session.run of the kernel, with NumPy arrays
torch     torch eager: its own operator where it has one, autograd's backward for gradients of losses, a composition of
          tensor operations for what torch has for GPUs only, the steps of synchronized batch norm
body      bound, with the function body of standard ONNX operators in place of the kernel
memory    an addition of two arrays into a third that moves as many bytes as the op
Identity  bound, of a model with one Identity node: the overhead of onnxruntime
"""

import argparse
import functools
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort
from onnx import helper
from rich import box
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import onnx_ops
from models.single_op import IR_VERSION, ONNX_OPSET, onnx_element_type
from onnx_ops.integrations.prebuilt import library_name
from onnx_ops.library.build import build
from onnx_ops.library.objects import NATIVE, LibraryError, levels
from onnx_ops.ops import ALL_VERSIONS
from scripts import markdown, measuring, timing
from scripts.measuring import Run
from tests.ops import RECORDS
from tests.ops._shared.arrays import BFLOAT16
from tests.ops._shared.record import ELEMENTS, Benchmark, Call

SMALLEST, LARGEST = "1e3", "1.6e7"
SIZES_OF_VARIANTS = 2
"""Variants run in their largest sizes only, unless sizes are given on the command line."""

# Goals. The ratios are of times.
MAX_MINUS_IDENTITY = 3e-6
MAX_OVER_MEMORY = 1.15
MAX_OVER_MEMORY_OF_REDUCTIONS = 1.3
MAX_LIBRARY_OVER_KERNEL = 1.03
MIN_BODY_OVER_KERNEL = 1.0
MAX_BODY_OVER_KERNEL = {("float32", "1e6"): 3.0}
MAX_BODY_OVER_TORCH = {("float32", "500x32x100x50"): 5.0}


@dataclass(frozen=True)
class Case:
    """A row to measure.

    Attributes:
        op: name of the op.
        index: of the benchmark in the op's record.
        dtype: name of the dtype.
        size: key of the benchmark's sizes.
    """

    op: str
    index: int
    dtype: str
    size: str

    @property
    def benchmark(self) -> Benchmark:
        return RECORDS[self.op].benchmarks[self.index]

    @property
    def name(self) -> str:
        """Name of op and benchmark."""
        return f"{self.op} {self.benchmark.note}".rstrip()

    @property
    def title(self) -> str:
        return f"{self.name} {self.dtype} {self.size}"

    def call(self) -> Call:
        """The call, with inputs distributed as in training."""
        benchmark = self.benchmark
        made = benchmark.make(benchmark.sizes[self.size], measuring.DTYPES[self.dtype])
        return measuring.in_aligned_memory(made)


def main() -> int:
    """Measure, print the tables, write the JSON file; returns the exit status."""
    options = arguments()
    machine = measuring.machine(options.threads) | {"kernels": f"for {options.cpu}"}
    library = built_library(Path(options.json).parent, options.op, options.cpu)
    cases = [
        Case(op, index, dtype, size)
        for op in options.op
        for index, benchmark in enumerate(RECORDS[op].benchmarks)
        for dtype in options.dtype
        for size in list(benchmark.sizes)[-SIZES_OF_VARIANTS if benchmark.is_variant and not options.size else 0 :]
        if (not options.size or size in options.size) and (options.note is None or benchmark.note in options.note)
    ]
    rows = []
    with tqdm(cases, unit="row") as progress:
        for case in progress:
            progress.set_description(case.title)
            rows.append(timing.in_own_process(measure, case, library, options.threads, options.budget))

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    console.print(table(rows))
    valid = [row for row in rows if not row.is_noisy]
    console.print(f"{sum(not row.missed for row in valid)} of {len(valid)} rows meet their goals.")
    if noisy := [row.foreign_load or 0 for row in rows if row.is_noisy]:
        console.print(
            f"[bold]Other processes kept up to {max(noisy):.1f} cores busy during {len(noisy)} rows, marked noisy: "
            "these are not reliable, and are not compared with the goals.[/bold]"
        )
    summary = measuring.write_rows(options.json, machine, rows, f"{by_elements(rows)}\n\n{by_other_sizes(rows)}")
    console.print(f"Written to {options.json}; {summary} has the tables of docs/speed.md.")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = measuring.argument_parser(__doc__, ["float32", "float16"], "build/bench.json")
    benchmarks = [benchmark for record in RECORDS.values() for benchmark in record.benchmarks]
    sizes = list(dict.fromkeys(size for benchmark in benchmarks for size in benchmark.sizes))
    parser.add_argument(
        "--size", nargs="+", choices=sizes, metavar="SIZE", help=f"number of elements, or shape: {', '.join(sizes)}"
    )
    parser.add_argument(
        "--note", nargs="+", metavar="NOTE", help="only these variants of the ops, such as none; '' for the op itself"
    )
    parser.add_argument(
        "--cpu",
        default=NATIVE,
        metavar="LEVEL",
        help="processors that kernels are compiled for, here and in the library, as build-library takes them; default:"
        " %(default)s",
    )
    parser.add_argument("--budget", type=float, default=0.8, metavar="SECONDS", help="per row; default: %(default)s")
    return parser.parse_args()


def built_library(folder: Path, names: Sequence[str], cpu: str) -> Path | None:
    """A library of ops; processes that are started from now on compile kernels for the same level of processors.

    Returns:
        None where none can be built; the reason is printed.
    """
    (level,) = levels([cpu])
    os.environ.update(level.environment)
    path = folder / library_name()
    try:
        build(path, [op for op in ALL_VERSIONS if op.name in names], [cpu])
    except LibraryError as error:
        print(f"There is no library: {error}")
        return None
    return path


# Candidates


def identity_session(array: np.ndarray, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session with one Identity node from `x` to `y`, of shape and dtype of `array`."""
    x, y = (helper.make_tensor_value_info(name, onnx_element_type(array.dtype), array.shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    opsets = [helper.make_opsetid("", ONNX_OPSET)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
    return ort.InferenceSession(model.SerializeToString(), options)


def memory_call(size: int, threads: int) -> Run:
    """A call that adds two float32 arrays into a third, of `size` bytes in all, on `threads` threads."""
    a, b, c = (measuring.aligned((max(size // 12, 1),), np.float32) for _ in range(3))
    for array in (a, b, c):
        array.fill(1)
    if measuring.torch:
        tensors = [measuring.torch.from_numpy(array) for array in (a, b, c)]
        return functools.partial(measuring.torch.add, *tensors[:2], out=tensors[2])
    pool = ThreadPoolExecutor(threads)
    parts = list(zip(*(np.array_split(array, threads) for array in (a, b, c)), strict=True))
    return lambda: list(pool.map(lambda part: np.add(part[0], part[1], out=part[2]), parts))


class Candidates(NamedTuple):
    """The candidates of a row, with the memory that they read and write.

    Attributes:
        runs: a call by name; those that do not support op or dtype are missing. Candidates whose ratio is a goal are
            adjacent.
        outputs: by name.
        spare: input and output of the Identity node, of the shape of the largest output; inputs that the kernel
            overwrites.
    """

    runs: dict[str, Run]
    outputs: dict[str, np.ndarray]
    spare: tuple[np.ndarray, ...]


def candidates(call: Call, benchmark: Benchmark, library: Path | None, threads: int, identity: bool) -> Candidates:
    """The candidates of a row; `call` must outlive them."""
    options = functools.partial(timing.session_options, threads)
    model, feeds = measuring.model_of(call), call.given
    session = onnx_ops.InferenceSession(model, options())
    outputs = measuring.empty_outputs(session, feeds)
    runs: dict[str, Run] = {}
    if not any(array.dtype == BFLOAT16 for array in (*feeds.values(), *outputs.values())):  # not a dtype of NumPy
        runs["run"] = functools.partial(session.run, None, feeds)
    runs["body"] = measuring.bound_run(measuring.body_session(model, options()), feeds, outputs)
    if torch_call := measuring.torch_call(call, benchmark.torch):
        runs["torch"] = torch_call
    overwritten = {name: measuring.aligned_copy(feeds[name]) for name in benchmark.in_place.values()}
    in_place = {output: overwritten[name] for output, name in benchmark.in_place.items()}
    own_inputs, own_outputs = {**feeds, **overwritten}, {**outputs, **in_place}
    if library:
        ahead = measuring.library_session(model, options(), library)
        runs["library"] = measuring.bound_run(ahead, own_inputs, own_outputs)
    runs["bound"] = measuring.bound_run(session, own_inputs, own_outputs)
    largest = max(outputs.values(), key=lambda array: array.nbytes)
    source, copy = np.zeros_like(largest), np.zeros_like(largest)
    if identity:
        runs["Identity"] = measuring.bound_run(identity_session(source, options()), {"x": source}, {"y": copy})
    runs["memory"] = memory_call(measuring.bytes_moved(call, outputs), threads)
    return Candidates(runs, outputs, (source, copy, *overwritten.values()))


# Timing


@dataclass
class Row:
    """The result of a row.

    Attributes:
        is_reduction: whether no output is as large as the largest input.
        times: median seconds of a call by candidate.
        ratios: median over the rounds of time / time of `bound`, by candidate.
        minus_identity: median over the rounds of seconds of `bound` - seconds of `Identity`.
        foreign_load: cores kept busy by other processes; None where it is unknown.
        missed: the goals that the row misses.
    """

    benchmark: str
    dtype: str
    size: str
    is_reduction: bool
    bytes_moved: int
    rounds: int
    times: dict[str, float]
    ratios: dict[str, float]
    minus_identity: float | None
    foreign_load: float | None
    missed: list[str]

    @property
    def over_memory(self) -> float:
        return 1 / self.ratios["memory"]

    @property
    def is_noisy(self) -> bool:
        return (self.foreign_load or 0) > timing.MAX_FOREIGN_LOAD


def measure(case: Case, library: Path | None, threads: int, budget: float) -> Row:
    """Time the candidates of a row for about `budget` seconds."""
    if measuring.torch:
        measuring.torch.set_num_threads(threads)
    call = case.call()
    in_memory = candidates(call, case.benchmark, library, threads, identity=case.size == SMALLEST)
    outputs = in_memory.outputs
    with timing.without_gc():
        rounds, foreign_load = timing.least_loaded(in_memory.runs, budget)
    bound = rounds["bound"]
    row = Row(
        benchmark=case.name,
        dtype=case.dtype,
        size=case.size,
        is_reduction=max(a.size for a in outputs.values()) < max(a.size for a in call.given.values()),
        bytes_moved=measuring.bytes_moved(call, outputs),
        rounds=len(bound),
        times={name: statistics.median(seconds) for name, seconds in rounds.items()},
        ratios={name: timing.median_of(lambda a, b: a / b, seconds, bound) for name, seconds in rounds.items()},
        minus_identity=timing.median_of(lambda a, b: b - a, rounds["Identity"], bound)
        if "Identity" in rounds
        else None,
        foreign_load=foreign_load,
        missed=[],
    )
    row.missed = missed_goals(row, case.benchmark.of_torch.get(case.size, 1.0))
    return row


# Goals and tables


def missed_goals(row: Row, torch_over_kernel: float) -> list[str]:
    """The goals that the row misses; ratios are rounded to two digits.

    Args:
        row: the result.
        torch_over_kernel: the goal for time of torch / time of the kernel, except at the smallest size.
    """
    goals: list[tuple[bool, str]] = []
    if row.minus_identity is not None:
        difference = row.minus_identity
        goals.append((difference <= MAX_MINUS_IDENTITY, f"kernel - Identity {difference * 1e6:+.1f} µs"))
    if row.size != SMALLEST and "torch" in row.ratios:
        ratio = row.ratios["torch"]
        goals.append((round(ratio, 2) >= torch_over_kernel, f"torch / kernel {ratio:.2f} < {torch_over_kernel:g}"))
    if row.size == LARGEST:
        over_memory = round(row.over_memory, 2)
        most = MAX_OVER_MEMORY_OF_REDUCTIONS if row.is_reduction else MAX_OVER_MEMORY
        goals.append((over_memory <= most, f"kernel / memory {over_memory:.2f} > {most}"))
    if row.size != SMALLEST and (library := round(row.ratios.get("library", 1.0), 2)) > MAX_LIBRARY_OVER_KERNEL:
        goals.append((False, f"library / kernel {library:.2f} > {MAX_LIBRARY_OVER_KERNEL}"))
    body, kind = row.ratios["body"], (row.dtype, row.size)
    goals.append((round(body, 2) >= MIN_BODY_OVER_KERNEL, f"body / kernel {body:.2f} < {MIN_BODY_OVER_KERNEL:g}"))
    if kind in MAX_BODY_OVER_KERNEL:
        most = MAX_BODY_OVER_KERNEL[kind]
        goals.append((round(body, 2) <= most, f"body / kernel {body:.2f} > {most:g}"))
    if kind in MAX_BODY_OVER_TORCH and "torch" in row.ratios:
        body, most = body / row.ratios["torch"], MAX_BODY_OVER_TORCH[kind]
        goals.append((round(body, 2) <= most, f"body / torch {body:.2f} > {most:g}"))
    return [text for met, text in goals if not met]


def table(rows: list[Row]) -> Table:
    """All results, one line per row, for the terminal."""
    result = Table(
        caption="Times are medians, ratios medians over the rounds. memory: an addition that moves as many bytes. "
        "Identity: a session with one Identity node.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    result.add_column("row", no_wrap=True)
    ratios = ("torch", "body", "library")
    for header in (
        "bound",
        "run",
        "torch",
        "body",
        "memory",
        *(f"{name}\n/bound" for name in ratios),
        "bound\n/memory",
    ):
        result.add_column(header, justify="right", no_wrap=True)
    result.add_column("bound -\nIdentity", justify="right", no_wrap=True)
    result.add_column("goals")
    for row in rows:
        result.add_row(
            f"{row.benchmark} {row.dtype} {row.size}",
            *(duration(row.times.get(name)) for name in ("bound", "run", "torch", "body", "memory")),
            *(quotient(row.ratios.get(name)) for name in ratios),
            f"{row.over_memory:.2f}",
            difference(row),
            "noisy" if row.is_noisy else ", ".join(row.missed) or "met",
            style="dim" if row.is_noisy else "red" if row.missed else None,
        )
    return result


def by_elements(rows: list[Row]) -> str:
    """A Markdown table of benchmarks whose sizes are numbers of elements: one line for each benchmark and dtype."""
    found = {(row.benchmark, row.dtype, row.size): row for row in rows}
    lines = []
    for benchmark, dtype in dict.fromkeys((row.benchmark, row.dtype) for row in rows if row.size in ELEMENTS):
        first, *others = (found.get((benchmark, dtype, size)) for size in ELEMENTS)
        last = others[-1]
        line = [
            benchmark,
            dtype,
            "-" if first is None else difference(first),
            *("-" if row is None else quotient(row.ratios.get("torch")) for row in others),
            "-" if last is None else quotient(last.over_memory),
            *("-" if row is None else quotient(row.ratios["body"]) for row in others[1:]),
            *("-" if row is None else quotient(row.ratios.get("library")) for row in others[1:]),
        ]
        lines.append(line)
    sizes = list(ELEMENTS)
    header = [
        "op",
        "dtype",
        f"{SMALLEST}: kernel - Identity",
        *(f"{size}: torch / kernel" for size in sizes[1:]),
        f"{LARGEST}: kernel / memory",
        *(f"{size}: body / kernel" for size in sizes[2:]),
        *(f"{size}: library / kernel" for size in sizes[2:]),
    ]
    return markdown.table(header, lines, right=range(2, len(header)))


def by_other_sizes(rows: list[Row]) -> str:
    """A Markdown table of the other benchmarks, whose sizes are shapes: one line for each row."""
    header = ["op", "dtype", "size", "kernel", "torch", "body", "torch / kernel", "body / kernel", "library / kernel"]
    lines = [
        [
            *(row.benchmark, row.dtype, row.size),
            *(duration(row.times.get(name)) for name in ("bound", "torch", "body")),
            *(quotient(row.ratios.get(name)) for name in ("torch", "body", "library")),
        ]
        for row in rows
        if row.size not in ELEMENTS
    ]
    return markdown.table(header, lines, right=range(3, len(header)))


def quotient(ratio: float | None) -> str:
    """Two decimals, or a dash for None."""
    return "-" if ratio is None else f"{ratio:.2f}"


def difference(row: Row) -> str:
    """Time of the kernel - time of Identity, or a dash."""
    return "-" if row.minus_identity is None else f"{row.minus_identity * 1e6:+.1f} µs"


def duration(seconds: float | None) -> str:
    """Three significant digits with a unit, or a dash for None."""
    if seconds is None:
        return "-"
    scale, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms")
    digits = max(0, 2 - int(np.floor(np.log10(seconds * scale))))
    return f"{seconds * scale:.{digits}f} {unit}"


if __name__ == "__main__":
    sys.exit(main())
