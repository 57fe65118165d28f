"""Times the five ops, and beside them torch, the portable bodies, an addition bound by memory, and an empty session.

Run it from the repository's root: `python -m scripts.bench`. A row is measured in a process of its own, in turns: each
contender rests the machine, runs for a moment, and hands over. A ratio is the median of the ratios within the rounds.

bound     session.run_with_iobinding of the kernel, inputs and output in memory that is there already
run       session.run of the kernel, from and to NumPy arrays
torch     the same gradient in torch eager mode: the op itself for hardshrink and CTC, autograd's backward for the
          losses, a composition of tensor operations for batch norm (torch has that op for GPUs only)
body      bound, with the portable body of standard ONNX operators in place of the kernel
memory    an addition of two arrays into a third that moves as many bytes as the op has to
Identity  bound, of a session whose only node is Identity: what onnxruntime itself costs
"""

import argparse
import contextlib
import functools
import gc
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import helper
from rich import box
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import onnx_ops
from models.single_op import IR_VERSION, ONNX_OPSET, onnx_element_type
from scripts import cases
from scripts.cases import Case

SEED = 0
SIZES = {"1e3": 1_000, "1e5": 100_000, "1e6": 1_000_000, "1.6e7": 16_000_000}
CTC_SIZES = {
    "50x16x20x10": (50, 16, 20, 10),
    "500x32x100x50": (500, 32, 100, 50),
    "1000x32x32x200": (1000, 32, 32, 200),
}
CLASSES = 100
CHANNELS = 64
PIXELS = 28 * 28

SMALLEST, LARGEST = "1e3", "1.6e7"
MOST_OVER_IDENTITY = 3e-6
MOST_OVER_MEMORY = 1.15
LEAST_OF_TORCH = dict.fromkeys([*SIZES, *CTC_SIZES], 1.0) | {"500x32x100x50": 3.0, "1000x32x32x200": 3.0}
LEAST_OF_TORCH.pop(SMALLEST)
# The time of a portable body at most: for elementwise ops in times of the kernel's, for CTC in times of torch's.
MOST_BODY_OVER_KERNEL = {("float32", "1e6"): 3.0}
MOST_BODY_OVER_TORCH = {("float32", "500x32x100x50"): 5.0}

# All in seconds. Idle worker threads keep cores busy for a while before they sleep: onnxruntime's for 30 ms by default,
# which SPIN shortens, torch's (OpenMP) for 3 ms. In REST the threads of one contender fall asleep before the next one
# is timed. In SETTLE its own threads wake up, which takes up to a millisecond and does not count.
SPIN = 0.001
REST = 0.005
SETTLE = 0.002
TURN = 0.003
MOST_CALLS = 300
LEAST_ROUNDS = 5
MOST_ROUNDS = 200
# If other processes keep more cores busy than this, a row is measured again, up to so many times in all.
MOST_FOREIGN_LOAD = 0.1
ATTEMPTS = 2

Run = Callable[[], object]


def main() -> int:
    """Measures, prints the tables, writes the JSON file; returns the exit status."""
    options = arguments()
    machine = cases.machine(options.threads)
    chosen = [
        (op_type, note, dtype, size)
        for op_type, note in VARIANTS
        for dtype in options.dtype
        for size in (CTC_SIZES if op_type == "CtcLossBackward" else SIZES)
        if op_type in options.op and (not options.size or size in options.size)
    ]
    rows = []
    with tqdm(chosen, unit="row") as progress:
        for op_type, note, dtype, size in progress:
            progress.set_description(f"{op_type} {note} {dtype} {size}".replace("  ", " "))
            rows.append(in_own_process(measure, op_type, note, dtype, size, options.threads, options.budget))

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    console.print(table(rows))
    judged = [row for row in rows if row.missed is not None and not row.disturbed]
    console.print(f"{sum(not row.missed for row in judged)} of {len(judged)} rows with a goal meet it.")
    if disturbed := [row.others or 0 for row in rows if row.disturbed]:
        console.print(
            f"[bold]Other processes kept up to {max(disturbed):.1f} cores busy during {len(disturbed)} rows, marked "
            "disturbed: their figures mean little, and they are not judged.[/bold]"
        )
    cases.write_json(options.json, {"machine": machine, "rows": [asdict(row) for row in rows]})
    console.print(f"Written to {options.json}.")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = cases.argument_parser(__doc__, ["float32", "float16"], "build/bench.json")
    sizes = [*SIZES, *CTC_SIZES]
    parser.add_argument(
        "--size", nargs="+", choices=sizes, metavar="SIZE", help=f"elements, or TxNxCxS for CTC: {', '.join(sizes)}"
    )
    parser.add_argument("--budget", type=float, default=1.0, metavar="SECONDS", help="per row; default: %(default)s")
    return parser.parse_args()


# What is measured


VARIANTS = [
    ("KlDivBackward", ""),
    ("KlDivBackward", "log_target"),
    ("BinaryCrossEntropyWithLogitsBackward", ""),
    ("BinaryCrossEntropyWithLogitsBackward", "pos_weight"),
    ("CtcLossBackward", ""),
    ("BatchNormElemtBackward", ""),
    ("HardshrinkBackward", ""),
]


def make_case(op_type: str, note: str, dtype: str, size: str) -> Case:
    """The inputs of a row, with values as they occur in training."""
    rng = np.random.default_rng(SEED)
    kind = cases.DTYPES[dtype]
    if op_type == "CtcLossBackward":
        return cases.ctc_case(*CTC_SIZES[size], kind, rng)

    def normal(*shape: int) -> np.ndarray:
        return cases.aligned_copy(rng.standard_normal(shape, np.float32), kind)

    def uniform(*shape: int) -> np.ndarray:
        return cases.aligned_copy(rng.random(shape, np.float32), kind)

    elements = SIZES[size]
    matrix = (elements // CLASSES, CLASSES)
    one = np.ones((), kind)
    if op_type == "KlDivBackward":
        target = uniform(*matrix)
        attributes = {"reduction": onnx_ops.Reduction.BATCHMEAN, "log_target": int(note == "log_target")}
        return Case(op_type, [one, normal(*matrix), -target if note else target], attributes, note)
    if op_type == "BinaryCrossEntropyWithLogitsBackward":
        attributes = {"reduction": onnx_ops.Reduction.MEAN}
        optional = [None, uniform(CLASSES)] if note else []
        return Case(op_type, [one, normal(*matrix), uniform(*matrix), *optional], attributes, note)
    if op_type == "HardshrinkBackward":
        return Case(op_type, [normal(elements), normal(elements)])
    pixels = min(PIXELS, elements // CHANNELS + 1)
    images = (max(elements // (CHANNELS * pixels), 1), CHANNELS, pixels)
    # Synchronized batch norm keeps statistics in float32, also of 16-bit images.
    statistics = [rng.uniform(0.5, 1.5, CHANNELS).astype(np.promote_types(kind, np.float32)) for _ in range(5)]
    counter = np.array([images[0] * pixels] * 2, np.int32)
    return Case(op_type, [normal(*images), normal(*images), *statistics, counter], note=note)


def identity_session(array: np.ndarray, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session that copies an array like this one from `x` to `y`."""
    x, y = (helper.make_tensor_value_info(name, onnx_element_type(array.dtype), array.shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    opsets = [helper.make_opsetid("", ONNX_OPSET)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
    return ort.InferenceSession(model.SerializeToString(), options)


def memory_call(size: int, threads: int) -> Run:
    """A call that moves `size` bytes of memory on `threads` threads: two arrays added into a third."""
    a, b, c = (cases.aligned((max(size // 12, 1),), np.float32) for _ in range(3))
    for array in (a, b, c):
        array.fill(1)
    if cases.torch:
        return functools.partial(cases.torch.add, *map(cases.to_torch, (a, b)), out=cases.to_torch(c))
    pool = ThreadPoolExecutor(threads)
    parts = list(zip(*(np.array_split(array, threads) for array in (a, b, c)), strict=True))
    return lambda: list(pool.map(lambda part: np.add(part[0], part[1], out=part[2]), parts))


def contenders(case: Case, output: np.ndarray, spare: np.ndarray, size: str, threads: int) -> dict[str, Run]:
    """What runs in a row, what is compared most next to each other; what cannot compute the case is left out.

    `output` and `spare`, arrays like the result, have to outlive them.
    """

    def options() -> ort.SessionOptions:
        options = cases.quiet_options(threads)
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(round(SPIN * 1e6)))
        return options

    session = onnx_ops.InferenceSession(case.model, options())
    runs: dict[str, Run] = {}
    if output.dtype != cases.DTYPES["bfloat16"]:  # which onnxruntime does not take from NumPy
        runs["run"] = functools.partial(session.run, None, case.feeds)
    runs["body"] = cases.bound_run(cases.portable_session(case, options()), case.feeds, output)
    if call := cases.torch_call(case):
        runs["torch"] = call
    runs["bound"] = cases.bound_run(session, case.feeds, output)
    if size == SMALLEST:
        runs["Identity"] = cases.bound_run(identity_session(spare, options()), {"x": spare}, output)
    runs["memory"] = memory_call(case.bytes_moved, threads)
    return runs


# Timing


@dataclass
class Row:
    """What came of a row.

    Attributes:
        times: median seconds of a call of each contender.
        ratios: median over the rounds of a contender's time by that of `bound`.
        over_identity: median over the rounds of the seconds that `bound` takes more than `Identity`.
        others: cores that other processes kept busy meanwhile; None where the system does not tell.
        missed: the goals that the row misses; None if it has no goal.
    """

    name: str
    op: str
    dtype: str
    size: str
    shape: tuple[int, ...]
    bytes_moved: int
    rounds: int
    times: dict[str, float]
    ratios: dict[str, float]
    over_identity: float | None
    others: float | None
    missed: list[str] | None

    @property
    def over_memory(self) -> float:
        return 1 / self.ratios["memory"]

    @property
    def disturbed(self) -> bool:
        return (self.others or 0) > MOST_FOREIGN_LOAD


def measure(op_type: str, note: str, dtype: str, size: str, threads: int, budget: float) -> Row:
    """Times the contenders of a row in turns, for about `budget` seconds."""
    if cases.torch:
        cases.torch.set_num_threads(threads)
    case = make_case(op_type, note, dtype, size)
    output, spare = case.empty_output(), np.zeros_like(case.empty_output())
    runs = contenders(case, output, spare, size, threads)
    with without_gc():
        turns, others = least_disturbed(runs, budget)
    bound = turns["bound"]
    row = Row(
        name=f"{case.title} {dtype} {size}",
        op=case.op_type,
        dtype=dtype,
        size=size,
        shape=output.shape,
        bytes_moved=case.bytes_moved,
        rounds=len(bound),
        times={name: statistics.median(seconds) for name, seconds in turns.items()},
        ratios={name: median_of(lambda a, b: a / b, seconds, bound) for name, seconds in turns.items()},
        over_identity=median_of(lambda a, b: b - a, turns["Identity"], bound) if "Identity" in turns else None,
        others=others,
        missed=None,
    )
    row.missed = verdict(row)
    return row


def in_own_process(function: Callable[..., Row], *arguments: Any) -> Row:
    """The call's result; no row shares the memory, and the luck with it, of those before."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def median_of(compare: Callable[[float, float], float], first: list[float], second: list[float]) -> float:
    """The median over all rounds of a ratio that is taken within each round."""
    return statistics.median(map(compare, first, second))


def least_disturbed(runs: Mapping[str, Run], budget: float) -> tuple[dict[str, list[float]], float | None]:
    """What `take_turns` finds, and how many cores other processes kept busy; if too many, it is tried a few times."""
    attempts = []
    for _ in range(ATTEMPTS):
        foreign = ForeignLoad()
        attempts.append((take_turns(runs, budget), foreign.cores()))
        if (attempts[-1][1] or 0) <= MOST_FOREIGN_LOAD:
            break
    return min(attempts, key=lambda attempt: attempt[1] or 0)


def take_turns(runs: Mapping[str, Run], budget: float) -> dict[str, list[float]]:
    """Seconds of one call of each contender in each round. The order turns around from round to round."""
    expected = {name: warm_up(run) for name, run in runs.items()}
    turns: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    end = time.perf_counter() + budget
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        for name in order:
            turns[name].append(turn(runs[name], expected[name]))
        order.reverse()
    return turns


def warm_up(run: Run) -> float:
    """Seconds that a call takes, once a few calls have warmed it up."""
    seconds: list[float] = []
    end = time.perf_counter() + 0.02
    while len(seconds) < 2 or (time.perf_counter() < end and len(seconds) < MOST_CALLS):
        seconds.append(call_time(run))
    return statistics.median(seconds[len(seconds) // 2 :])


def turn(run: Run, expected: float) -> float:
    """Seconds of a call that takes about as long as expected: the median of a few, after some that do not count."""
    time.sleep(REST)
    settled = time.perf_counter() + SETTLE
    run()
    while time.perf_counter() < settled:
        run()
    return statistics.median(call_time(run) for _ in range(max(1, min(int(TURN / expected), MOST_CALLS))))


def call_time(run: Run) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1e9


class ForeignLoad:
    """How many cores other processes keep busy, from the making of this object on."""

    def __init__(self) -> None:
        self.begin = self._now()

    def cores(self) -> float | None:
        """The average so far; None where the system does not tell."""
        now = self._now()
        if self.begin is None or now is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self.begin, now, strict=True))
        return max(busy - own, 0.0) / wall

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds by the clock, seconds of all cores' work, and of this process's."""
        try:
            user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:4])
        except OSError:
            return None
        return time.perf_counter(), (user + nice + system) / os.sysconf("SC_CLK_TCK"), time.process_time()


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Switches garbage collection off while the block runs."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# Verdict and table


def verdict(row: Row) -> list[str] | None:
    """The goals that the row misses, its ratios taken to two digits; None if it has no goal."""
    goals: list[tuple[bool, str]] = []
    if row.over_identity is not None:
        over = row.over_identity
        goals.append((over <= MOST_OVER_IDENTITY, f"{over * 1e6:+.1f} µs over Identity"))
    if row.size in LEAST_OF_TORCH and "torch" in row.ratios:
        least, ratio = LEAST_OF_TORCH[row.size], row.ratios["torch"]
        goals.append((round(ratio, 2) >= least, f"{ratio:.2f}x torch, not {least:g}x"))
    if row.size == LARGEST:
        over_memory = round(row.over_memory, 2)
        goals.append((over_memory <= MOST_OVER_MEMORY, f"{over_memory:.2f} of memory, not {MOST_OVER_MEMORY}"))
    body, kind = row.ratios["body"], (row.dtype, row.size)
    if most := MOST_BODY_OVER_KERNEL.get(kind):
        goals.append((round(body, 2) <= most, f"body {body:.2f} of kernel, not {most:g}"))
    if (most := MOST_BODY_OVER_TORCH.get(kind)) and "torch" in row.ratios:
        body /= row.ratios["torch"]
        goals.append((round(body, 2) <= most, f"body {body:.2f} of torch, not {most:g}"))
    return [text for met, text in goals if not met] if goals else None


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
    result.add_column("goal")
    for row in rows:
        result.add_row(
            row.name,
            *(duration(row.times.get(name)) for name in ("bound", "run", "torch", "body", "memory")),
            *(f"{row.ratios[name]:.2f}" if name in row.ratios else "-" for name in ("torch", "body")),
            f"{row.over_memory:.2f}",
            "-" if row.over_identity is None else f"{row.over_identity * 1e6:+.1f} µs",
            "disturbed" if row.disturbed else "-" if row.missed is None else ", ".join(row.missed) or "met",
            style="dim" if row.disturbed else "red" if row.missed else None,
        )
    return result


def duration(seconds: float | None) -> str:
    """The number in three digits, or a dash for None."""
    if seconds is None:
        return "-"
    scale, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms")
    digits = max(0, 2 - int(np.floor(np.log10(seconds * scale))))
    return f"{seconds * scale:.{digits}f} {unit}"


if __name__ == "__main__":
    sys.exit(main())
