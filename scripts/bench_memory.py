"""Benchmarks the memory of training steps: captured steps in onnxruntime against PyTorch eager.

Run it from the root of the repository, on Linux: `python -m scripts.bench_memory`. It requires torch. A step is forward
pass, backward pass and optimizer update of a network of scripts/memory/networks.py, on a batch in memory. Each side
trains in a process of its own; the numbers are medians over --repeat processes.

Trainer         `onnx_ops.Trainer` on the saved file, in a process that does not import torch
PyTorch         zero_grad(set_to_none=True), loss, backward, step of the fused optimizer
PyTorch, hooks  a fused optimizer per parameter, which a hook calls as soon as the gradient is there, and then frees it
C++             with --cpp: the trainer in C++, on the function bodies, with two sets of the state
C++, kernels    with --cpp LIBRARY: the same with a library of the kernels, in place
onnxruntime-training  with --onnxruntime-training: version 1.19.2 in an environment of its own, with onnx and torch
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import onnx_ops.torch
from onnx_ops.training.checkpoints import write_checkpoint
from scripts import markdown, measuring, timing
from scripts.compiling import compiled
from scripts.memory import onnxruntime_training
from scripts.memory.files import WARM_UP, Files
from scripts.memory.networks import NETWORKS, trained
from scripts.memory.peaks import Measurement
from scripts.memory.sides import SIDES

MEBIBYTE = 2**20
PROGRAM = Path(__file__).parent / "memory" / "trainer.cpp"
STANDARD = "PyTorch"
"""The side that the others are compared with."""
MAX_LOSS_DIFFERENCE = 1e-3
"""Relative to the first loss: float32 sums in another order differ by 2e-4 after a step of ResNet-18; an update that
reads a parameter that has been overwritten, by more than 1e-2."""


class WrongLossError(Exception):
    """The losses of a side differ from those of PyTorch."""


@dataclass(frozen=True)
class Row:
    """The result for a network and a side.

    Attributes:
        parameters: bytes of the network's parameters.
        measured: medians over the repetitions.
    """

    network: str
    side: str
    parameters: int
    measured: Measurement


def main() -> int:
    """Measure, print the table, write the files; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    networks = [network for network in NETWORKS if network != WARM_UP]
    parser.add_argument("--network", nargs="+", choices=networks, default=networks, metavar="NETWORK")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6, help="that are measured after the first; default: %(default)s")
    parser.add_argument("--repeat", type=int, default=3, help="processes per row; default: %(default)s")
    parser.add_argument(
        "--cpp",
        nargs="?",
        const="",
        metavar="LIBRARY",
        help="also the trainer in C++, for which a compiler is needed; and with LIBRARY, of onnx-ops build-library",
    )
    parser.add_argument("--onnxruntime-training", type=Path, metavar="PYTHON", help="the interpreter that has it")
    parser.add_argument("--json", type=Path, default="build/bench_memory.json", metavar="PATH")
    options = parser.parse_args()

    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as root, tqdm([WARM_UP, *options.network], unit="network") as progress:
        program = compiled(PROGRAM, Path(root), "-O2") if options.cpp is not None else None
        for network in progress:
            progress.set_description(network)
            files = Files(Path(root), network)
            parameters = timing.in_own_process(capture, files)
            commands = {side: [sys.executable, "-m", "scripts.memory.sides", side] for side in SIDES}
            if program is not None:
                commands["C++"] = [str(program), ""]
                if options.cpp:
                    commands["C++, kernels"] = [str(program), str(Path(options.cpp).absolute())]
            if options.onnxruntime_training and timing.in_own_process(export_loss, files):
                module = [str(options.onnxruntime_training), "-m", "scripts.memory.onnxruntime_training"]
                subprocess.run([*module, "prepare", root, network], check=True)
                commands["onnxruntime-training"] = [*module, "measure"]
            if network == WARM_UP:
                continue
            measured = {
                side: median(run(command, files, options) for _ in range(options.repeat))
                for side, command in commands.items()
            }
            for side in (*SIDES, *commands.keys() & {"C++", "C++, kernels"}):
                check_losses(f"{network}, {side}", measured[side].losses, measured[STANDARD].losses)
            rows += [Row(network, side, parameters, measurement) for side, measurement in measured.items()]
            shutil.rmtree(files.folder)
    machine = measuring.machine(options.threads)
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print(table(rows))
    summary = measuring.write_rows(options.json, machine, rows, table(rows))
    print(f"Written to {options.json} and {summary}.")
    return 0


def capture(files: Files) -> int:
    """Write the captured step and a batch of a network; returns the bytes of its parameters."""
    warnings.simplefilter("ignore")  # PyTorch warns of its own internals
    torch.manual_seed(0)
    network = NETWORKS[files.network]
    module, batch = network.module(), network.batch()
    files.folder.mkdir()
    step = onnx_ops.torch.training_step(
        module, network.loss, batch, network.optimizer(trained(module)), check=False, inference=False
    )
    step.save(files.step, prepared=True)
    names = onnx_ops.Step.of(step.model).batch(step.model)
    arrays = {name: tensor.numpy() for name, tensor in zip(names, batch, strict=True)}
    np.savez(files.batch, **arrays)
    write_checkpoint(files.tensors, arrays, {})
    return sum(parameter.nbytes for parameter in module.parameters())


def export_loss(files: Files) -> bool:
    """Write the loss for onnxruntime-training; returns whether its operators can be exported."""
    torch.manual_seed(0)
    network = NETWORKS[files.network]
    try:
        onnxruntime_training.export(files, network, network.module(), network.batch())
    except torch.onnx.OnnxExporterError:
        return False
    return True


def run(program: Sequence[str], files: Files, options: argparse.Namespace) -> Measurement:
    """The measurement that a program prints in a new process."""
    command = [*program, str(files.root), files.network, "--steps", str(options.steps)]
    command += ["--threads", str(options.threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Measurement(**json.loads(result.stdout))


def median(measurements: Iterable[Measurement]) -> Measurement:
    """The median of each number; the losses of the first."""
    all_of = list(measurements)
    return Measurement(
        level=round(statistics.median(each.level for each in all_of)),
        loading=round(statistics.median(each.loading for each in all_of)),
        steps=round(statistics.median(each.steps for each in all_of)),
        seconds=statistics.median(each.seconds for each in all_of),
        losses=all_of[0].losses,
    )


def check_losses(row: str, losses: Sequence[float], expected: Sequence[float]) -> None:
    """Raise WrongLossError if losses differ by more than MAX_LOSS_DIFFERENCE of the first one."""
    if not np.allclose(losses, expected, rtol=0, atol=MAX_LOSS_DIFFERENCE * abs(expected[0])):
        raise WrongLossError(f"{row}: the losses are {losses}; those of {STANDARD} are {expected}")


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    standard = {row.network: row.measured for row in rows if row.side == STANDARD}
    header = [
        "network",
        "P",
        "side",
        "libraries",
        "loading",
        "steps",
        "loading",
        "steps",
        f"steps / {STANDARD}",
        "time",
    ]
    lines = [
        [
            row.network,
            mebibytes(row.parameters),
            row.side,
            *(mebibytes(size) for size in (row.measured.level, row.measured.loading, row.measured.steps)),
            *(f"{size / row.parameters:.1f} P" for size in (row.measured.loading, row.measured.steps)),
            f"{row.measured.steps / standard[row.network].steps:.2f}",
            f"{row.measured.seconds * 1e3:.1f} ms",
        ]
        for row in rows
    ]
    return markdown.table(header, lines, right=(1, *range(3, len(header))))


def mebibytes(size: int) -> str:
    return f"{size / MEBIBYTE:.1f} MiB" if size < 10 * MEBIBYTE else f"{size / MEBIBYTE:.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
