"""docs/models.md, from the results of the models and of the measurements of speed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from scripts import markdown
from scripts.zoo.entries import Entry
from scripts.zoo.models import ENTRIES
from scripts.zoo.results import CHECKS, EAGER, OK, OK_IN_FLOAT64, Result
from scripts.zoo.speed_results import Speed, speed_table

INTRODUCTION = """\
# Models of other packages

`make zoo` captures training steps of models of other packages, in small configurations with random weights, and
`make zoo-speed` compares the speed of larger ones with PyTorch. This page has their results. Each model is checked in a
process of its own:

| check        | what is compared with PyTorch, element by element |
| ------------ | ------------------------------------------------- |
| static       | a capture with constant sizes: a step from other parameters, on another batch |
| dynamic      | a capture with a dynamic batch size (and length, or numbers of nodes and edges) |
| second_state | of it, a step from other parameters on a batch of another size |
| ten_steps    | the losses of ten steps on batches of three sizes, and the state that they lead to |
| portable     | a step of the file in onnxruntime alone, in a process without onnx_ops |
| export       | the exported model and the model in evaluation mode, if the loss calls the model |

Loss, gradients, parameters and buffers are compared with PyTorch's in float64. Their error, relative to the largest
element of a tensor, may be 1e-4, ten times that of PyTorch in float32, or what relative changes of the parameters by
1e-6 make of it. Rounding changes the sign of some inputs of ReLUs, and which element is the largest of a pool.
Gradients of deep nets with batch norm then differ by percents, in PyTorch too, and the state after ten steps by any
amount. A step that is off by more in float32 is captured in float64, where its error may be 1e-4: "float64" in the
table. Of MNASNet with random weights not even that says anything: PyTorch's own momentum is off by 2.8 of its largest
entry after two steps from parameters changed by 1e-6, and errors grow by about 50 with each step. Captured in float64,
it is off by 2e-11 after the first step, 9e-9 after the third and 4e-5 after the fifth, and by 0.7 after the seventh.

Where code branches on the data, the capture has `specialize=True`: such a model is marked "specialized", and refuses a
batch that would take another branch. The optimizer is SGD with momentum; dropout is off, as its masks differ from
PyTorch's. Seconds are processor time of the dynamic capture and its verification, on an Intel Xeon (Emerald Rapids)
with other work beside it.
"""


SPEED = """Times are medians of interleaved steps, ratios medians of the ratios of each round. Memory is the peak of
steps above the process before the model exists. "products" is the share of matrix products, convolutions and attention
in the captured step, by a profile of onnxruntime. Their speed is bound by the processor's multipliers, in PyTorch as
well, so models whose products take more than three quarters of PyTorch's time cannot be captured at 0.75 of it without
faster products. The table is of 2 cores of an AMD EPYC (Zen 5). On 2 cores of an Intel Xeon (Emerald Rapids), where
products of onnxruntime and PyTorch both reach 150 GFLOP/s on one thread, earlier captures of these models took 0.34 to
0.93 of eager's time on one thread, in the median 0.71, and 0.26 to 0.88 on two, in the median 0.72; and 0.52 to 1.08
and 0.27 to 1.07 of torch.compile's.
"""


def text(results: Path, speed: Path) -> str:
    """The page for folders with the results of `make zoo` and of `make zoo-speed`."""
    found = [result for entry in ENTRIES.values() if (result := Result.read(results / f"{entry.key}.json")) is not None]
    trained = [result for result in found if result.passed(EAGER)]
    captured = [result for result in trained if all(map(result.passed, CHECKS))]
    dynamic = [result for result in trained if result.passed("dynamic")]
    packages = len({result.package for result in trained})
    parts = [
        INTRODUCTION,
        f"Of {len(trained)} models of {packages} packages that PyTorch trains on a CPU, {len(dynamic)} are captured"
        f" with dynamic sizes, and {len(captured)} pass all checks. `scripts/zoo/models` has {len(ENTRIES)} models; the"
        " table has those that have been checked with this version.\n",
        _table(trained),
        *_failures(trained),
    ]
    measured = Speed.read_all(speed)
    if measured:
        parts += ["## Speed and memory\n", SPEED, speed_table(measured)]
    return "\n".join(parts)


def _table(results: Sequence[Result]) -> str:
    header = ["package", "model", "parameters", *CHECKS, "capture", "nodes", "file"]
    rows = []
    for package, group in groupby(results, lambda result: f"{result.package} {result.version}"):
        for i, result in enumerate(group):
            seconds = "" if result.capture_seconds is None else f"{result.capture_seconds[1]:.0f} s"
            rows.append(
                [
                    "" if i else package,
                    f"{result.name} (specialized)" if result.specialized else result.name,
                    f"{result.parameters:,}",
                    *(
                        {OK: "yes", OK_IN_FLOAT64: "float64", None: ""}.get(result.checks.get(check), "no")
                        for check in CHECKS
                    ),
                    seconds,
                    f"{result.nodes or ''}",
                    f"{result.file_bytes / 1e6:.2f} MB" if result.file_bytes else "",
                ]
            )
    return markdown.table(header, rows, right=(2, len(header) - 3, len(header) - 2, len(header) - 1)) + "\n"


def _failures(results: Sequence[Result]) -> list[str]:
    """A paragraph for each model that fails a check: the error, and a workaround if one is known."""
    lines = []
    for result in results:
        failed = result.failures()
        if not failed:
            continue
        entry: Entry = ENTRIES[result.key]
        lines += [f"**{result.package}: {result.name}**", ""]
        for found, group in groupby(failed, failed.__getitem__):
            lines.append(f"- {', '.join(group)}: `{found.replace('`', chr(39))}`")
        if entry.workaround:
            lines.append(f"- workaround: {entry.workaround}")
        lines.append("")
    return ["## What fails\n", *lines] if lines else []
