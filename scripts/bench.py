"""Times the ops, and beside them torch, the function bodies, an addition bound by memory, and an empty session.

Run it from the repository's root: `python -m scripts.bench`. The rows are the benchmarks of the records in tests/ops. A
row is measured in a process of its own, in turns: each contender rests the machine, runs for a moment, and hands over.
A ratio is the median of the ratios within the rounds.

bound     session.run_with_iobinding of the kernel, inputs and outputs in memory that is there already
run       session.run of the kernel, from and to NumPy arrays
torch     the same in torch eager mode: torch's own op where it has one, autograd's backward for gradients of losses, a
          composition of tensor operations for what torch has for GPUs only, the steps of synchronized batch norm
body      bound, with the function body of standard ONNX operators in place of the kernel
memory    an addition of two arrays into a third that moves as many bytes as the op has to
Identity  bound, of a session whose only node is Identity: what onnxruntime itself costs
"""

import argparse
import functools
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from scripts import markdown, measuring, timing
from scripts.measuring import Run
from tests.ops import RECORDS
from tests.ops._shared.arrays import BFLOAT16
from tests.ops._shared.record import ELEMENTS, Benchmark, Call

SMALLEST, LARGEST = "1e3", "1.6e7"
# So many sizes, the last ones, of the benchmarks of an op that have a note, unless sizes are asked for: all of them
# would take too long.
SIZES_OF_VARIANTS = 2
MOST_OVER_IDENTITY = 3e-6
MOST_OVER_MEMORY = 1.15
MOST_OVER_MEMORY_OF_REDUCTIONS = 1.3
# The time of a function body at least, for all rows, and at most: in times of the kernel's, and for CTC of torch's.
LEAST_BODY_OVER_KERNEL = 1.0
MOST_BODY_OVER_KERNEL = {("float32", "1e6"): 3.0}
MOST_BODY_OVER_TORCH = {("float32", "500x32x100x50"): 5.0}


@dataclass(frozen=True)
class Chosen:
    """A row to measure: a benchmark of an op, by its place in the record, for a dtype and a size."""

    op: str
    index: int
    dtype: str
    size: str

    @property
    def benchmark(self) -> Benchmark:
        return RECORDS[self.op].benchmarks[self.index]

    @property
    def name(self) -> str:
        """Of the benchmark."""
        return f"{self.op} {self.benchmark.note}".rstrip()

    @property
    def title(self) -> str:
        return f"{self.name} {self.dtype} {self.size}"

    def call(self) -> Call:
        """The inputs, with values as they occur in training."""
        benchmark = self.benchmark
        made = benchmark.make(benchmark.sizes[self.size], measuring.DTYPES[self.dtype])
        return measuring.in_aligned_memory(made)


def main() -> int:
    """Measures, prints the tables, writes the JSON file; returns the exit status."""
    options = arguments()
    machine = measuring.machine(options.threads)
    chosen = [
        Chosen(op, index, dtype, size)
        for op in options.op
        for index, benchmark in enumerate(RECORDS[op].benchmarks)
        for dtype in options.dtype
        for size in list(benchmark.sizes)[-SIZES_OF_VARIANTS if benchmark.note and not options.size else 0 :]
        if (not options.size or size in options.size) and (options.note is None or benchmark.note in options.note)
    ]
    rows = []
    with tqdm(chosen, unit="row") as progress:
        for row in progress:
            progress.set_description(row.title)
            rows.append(timing.in_own_process(measure, row, options.threads, options.budget))

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    console.print(table(rows))
    judged = [row for row in rows if not row.disturbed]
    console.print(f"{sum(not row.missed for row in judged)} of {len(judged)} rows meet their goals.")
    if disturbed := [row.others or 0 for row in rows if row.disturbed]:
        console.print(
            f"[bold]Other processes kept up to {max(disturbed):.1f} cores busy during {len(disturbed)} rows, marked "
            "disturbed: their figures mean little, and they are not judged.[/bold]"
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
        "--size", nargs="+", choices=sizes, metavar="SIZE", help=f"elements, or lengths of axes: {', '.join(sizes)}"
    )
    parser.add_argument(
        "--note", nargs="+", metavar="WORDS", help="only rows with these words behind the op's name; '' for none"
    )
    parser.add_argument("--budget", type=float, default=0.8, metavar="SECONDS", help="per row; default: %(default)s")
    return parser.parse_args()


# What is measured


def identity_session(array: np.ndarray, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session that copies an array like this one from `x` to `y`."""
    x, y = (helper.make_tensor_value_info(name, onnx_element_type(array.dtype), array.shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    opsets = [helper.make_opsetid("", ONNX_OPSET)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
    return ort.InferenceSession(model.SerializeToString(), options)


def memory_call(size: int, threads: int) -> Run:
    """A call that moves `size` bytes of memory on `threads` threads: two arrays added into a third."""
    a, b, c = (measuring.aligned((max(size // 12, 1),), np.float32) for _ in range(3))
    for array in (a, b, c):
        array.fill(1)
    if measuring.torch:
        tensors = [measuring.torch.from_numpy(array) for array in (a, b, c)]
        return functools.partial(measuring.torch.add, *tensors[:2], out=tensors[2])
    pool = ThreadPoolExecutor(threads)
    parts = list(zip(*(np.array_split(array, threads) for array in (a, b, c)), strict=True))
    return lambda: list(pool.map(lambda part: np.add(part[0], part[1], out=part[2]), parts))


class Contenders(NamedTuple):
    """What runs in a row, what is compared most next to each other; what cannot compute the call is left out.

    `outputs` by name, and `spare`, two arrays like the largest of them, are memory that the runs write to and read.
    """

    runs: dict[str, Run]
    outputs: dict[str, np.ndarray]
    spare: tuple[np.ndarray, np.ndarray]


def contenders(call: Call, benchmark: Benchmark, threads: int, identity: bool) -> Contenders:
    """The contenders of a row, the call of which has to outlive them."""
    options = functools.partial(timing.session_options, threads)
    model, feeds = measuring.model_of(call), call.given
    session = onnx_ops.InferenceSession(model, options())
    outputs = measuring.empty_outputs(session, feeds)
    runs: dict[str, Run] = {}
    if not any(array.dtype == BFLOAT16 for array in (*feeds.values(), *outputs.values())):  # NumPy does not have it
        runs["run"] = functools.partial(session.run, None, feeds)
    runs["body"] = measuring.bound_run(measuring.portable_session(model, options()), feeds, outputs)
    if torch_call := measuring.torch_call(call, benchmark.torch):
        runs["torch"] = torch_call
    runs["bound"] = measuring.bound_run(session, feeds, outputs)
    largest = max(outputs.values(), key=lambda array: array.nbytes)
    spare = source, copy = np.zeros_like(largest), np.zeros_like(largest)
    if identity:
        runs["Identity"] = measuring.bound_run(identity_session(source, options()), {"x": source}, {"y": copy})
    runs["memory"] = memory_call(measuring.bytes_moved(call, outputs), threads)
    return Contenders(runs, outputs, spare)


# Timing


@dataclass
class Row:
    """What came of a row.

    Attributes:
        is_reduction: whether no output is as large as the largest input.
        times: median seconds of a call of each contender.
        ratios: median over the rounds of a contender's time by that of `bound`.
        over_identity: median over the rounds of the seconds that `bound` takes more than `Identity`.
        others: cores that other processes kept busy meanwhile; None where the system does not tell.
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
    over_identity: float | None
    others: float | None
    missed: list[str]

    @property
    def over_memory(self) -> float:
        return 1 / self.ratios["memory"]

    @property
    def disturbed(self) -> bool:
        return (self.others or 0) > timing.MOST_FOREIGN_LOAD


def measure(chosen: Chosen, threads: int, budget: float) -> Row:
    """Times the contenders of a row in turns, for about `budget` seconds."""
    if measuring.torch:
        measuring.torch.set_num_threads(threads)
    call = chosen.call()
    in_memory = contenders(call, chosen.benchmark, threads, identity=chosen.size == SMALLEST)
    outputs = in_memory.outputs
    with timing.without_gc():
        turns, others = timing.least_disturbed(in_memory.runs, budget)
    bound = turns["bound"]
    row = Row(
        benchmark=chosen.name,
        dtype=chosen.dtype,
        size=chosen.size,
        is_reduction=max(a.size for a in outputs.values()) < max(a.size for a in call.given.values()),
        bytes_moved=measuring.bytes_moved(call, outputs),
        rounds=len(bound),
        times={name: statistics.median(seconds) for name, seconds in turns.items()},
        ratios={name: timing.median_of(lambda a, b: a / b, seconds, bound) for name, seconds in turns.items()},
        over_identity=timing.median_of(lambda a, b: b - a, turns["Identity"], bound) if "Identity" in turns else None,
        others=others,
        missed=[],
    )
    row.missed = verdict(row, chosen.benchmark.of_torch.get(chosen.size, 1.0))
    return row


# Verdict and table


def verdict(row: Row, of_torch: float) -> list[str]:
    """The goals that the row misses, its ratios taken to two digits.

    of_torch: how many times as fast as torch it has to be, if it is not of the smallest size.
    """
    goals: list[tuple[bool, str]] = []
    if row.over_identity is not None:
        over = row.over_identity
        goals.append((over <= MOST_OVER_IDENTITY, f"{over * 1e6:+.1f} µs over Identity"))
    if row.size != SMALLEST and "torch" in row.ratios:
        ratio = row.ratios["torch"]
        goals.append((round(ratio, 2) >= of_torch, f"{ratio:.2f}x torch, not {of_torch:g}x"))
    if row.size == LARGEST:
        over_memory = round(row.over_memory, 2)
        most = MOST_OVER_MEMORY_OF_REDUCTIONS if row.is_reduction else MOST_OVER_MEMORY
        goals.append((over_memory <= most, f"{over_memory:.2f} of memory, not {most}"))
    body, kind = row.ratios["body"], (row.dtype, row.size)
    goals.append((round(body, 2) >= LEAST_BODY_OVER_KERNEL, f"slower than its body: {body:.2f}"))
    if kind in MOST_BODY_OVER_KERNEL:
        most = MOST_BODY_OVER_KERNEL[kind]
        goals.append((round(body, 2) <= most, f"body {body:.2f} of kernel, not {most:g}"))
    if kind in MOST_BODY_OVER_TORCH and "torch" in row.ratios:
        body, most = body / row.ratios["torch"], MOST_BODY_OVER_TORCH[kind]
        goals.append((round(body, 2) <= most, f"body {body:.2f} of torch, not {most:g}"))
    return [text for met, text in goals if not met]


def table(rows: list[Row]) -> Table:
    """One line per row."""
    result = Table(
        caption="Times are medians. torch/bound, body/bound: how many times as fast as that the bound kernel is. "
        "bound/memory: its time by that of an addition that moves as many bytes. over Identity: its time more than "
        "that of a session that only copies.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    result.add_column("row", no_wrap=True)
    for header in ("bound", "run", "torch", "body", "memory", "torch\n/bound", "body\n/bound", "bound\n/memory"):
        result.add_column(header, justify="right", no_wrap=True)
    result.add_column("over\nIdentity", justify="right", no_wrap=True)
    result.add_column("goals")
    for row in rows:
        result.add_row(
            f"{row.benchmark} {row.dtype} {row.size}",
            *(duration(row.times.get(name)) for name in ("bound", "run", "torch", "body", "memory")),
            *(f"{row.ratios[name]:.2f}" if name in row.ratios else "-" for name in ("torch", "body")),
            f"{row.over_memory:.2f}",
            "-" if row.over_identity is None else f"{row.over_identity * 1e6:+.1f} µs",
            "disturbed" if row.disturbed else ", ".join(row.missed) or "met",
            style="dim" if row.disturbed else "red" if row.missed else None,
        )
    return result


def by_elements(rows: list[Row]) -> str:
    """The figures that matter most, in Markdown: one line for each benchmark and dtype, its sizes side by side."""
    found = {(row.benchmark, row.dtype, row.size): row for row in rows}
    lines = []
    for benchmark, dtype in dict.fromkeys((row.benchmark, row.dtype) for row in rows if row.size in ELEMENTS):
        first, *others = (found.get((benchmark, dtype, size)) for size in ELEMENTS)
        over_identity = None if first is None else first.over_identity
        last = others[-1]
        line = [
            benchmark,
            dtype,
            "-" if over_identity is None else f"{over_identity * 1e6:+.1f} µs",
            *("-" if row is None else times(row.ratios.get("torch")) for row in others),
            "-" if last is None else times(last.over_memory),
            *("-" if row is None else times(row.ratios["body"]) for row in others[1:]),
        ]
        lines.append(line)
    sizes = list(ELEMENTS)
    header = [
        "op",
        "dtype",
        f"{SMALLEST}: over Identity",
        *(f"{size}: times torch" for size in sizes[1:]),
        f"{LARGEST}: of memory",
        *(f"{size}: times body" for size in sizes[2:]),
    ]
    return markdown.table(header, lines, right=range(2, len(header)))


def by_other_sizes(rows: list[Row]) -> str:
    """The same of benchmarks whose sizes are no numbers of elements: one line for each row."""
    header = ["op", "dtype", "size", "kernel", "torch", "body", "times torch", "times body"]
    lines = [
        [
            *(row.benchmark, row.dtype, row.size),
            *(duration(row.times.get(name)) for name in ("bound", "torch", "body")),
            *(times(row.ratios.get(name)) for name in ("torch", "body")),
        ]
        for row in rows
        if row.size not in ELEMENTS
    ]
    return markdown.table(header, lines, right=range(3, len(header)))


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def duration(seconds: float | None) -> str:
    """The number in three digits, or a dash for None."""
    if seconds is None:
        return "-"
    scale, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms")
    digits = max(0, 2 - int(np.floor(np.log10(seconds * scale))))
    return f"{seconds * scale:.{digits}f} {unit}"


if __name__ == "__main__":
    sys.exit(main())
