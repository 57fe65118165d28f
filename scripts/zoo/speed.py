"""Compares the speed and memory of captured steps with PyTorch's: `python -m scripts.zoo.speed`.

Each model is captured once, and then measured in processes of their own: peak memory on either side, then the speed on
each number of threads, first next to PyTorch eager, for all models, and then next to torch.compile, until the time is
up. Results are written as they come, and `--resume` measures what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

import onnx_ops
import onnx_ops.torch
from scripts import timing
from scripts.memory import peaks
from scripts.memory.files import WARM_UP
from scripts.zoo import torchvision_operators
from scripts.zoo.eager import without_dropout
from scripts.zoo.entries import Case
from scripts.zoo.products import share_of_products
from scripts.zoo.speed_models import SPEED, linear
from scripts.zoo.speed_results import Speed

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "zoo_speed"
MEMORY_STEPS = 4
STEP_LIMIT = 240
"""Seconds of a process; torch.compile may take longer on a slow machine."""
COMPILE_TIME = 60
"""With fewer seconds left no comparison with torch.compile begins."""


def main() -> int:
    """Measure all models; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.zoo.speed", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], metavar="PREFIX", help="of names, such as ResNet")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--minutes", type=float, default=25, help="of the whole run; default: %(default)s")
    parser.add_argument("--budget", type=float, default=4, metavar="SECONDS", help="per row; default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="keep the results that there are")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        PARTS[options.part[0]](*options.part[1:])
        return 0

    end = time.monotonic() + 60 * options.minutes
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = [name for name in SPEED if name.startswith(tuple(options.only))]
    if not options.resume:
        for name in names:
            for path in FOLDER.glob(f"{key_of(name)}.*"):
                path.unlink()

    def part(what: str, name: str, *more: object) -> str:
        """Run a part in a process of its own; the error, or nothing."""
        limit = min(STEP_LIMIT, end - time.monotonic())
        if limit < 5:
            return "no time was left"
        command = [sys.executable, "-m", "scripts.zoo.speed", "--part", what, name, *map(str, more)]
        try:
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return f"{what} took longer than {limit:.0f} s"
        lines = run.stderr.strip().splitlines()
        return "" if run.returncode == 0 else f"{what}: {lines[-1][:300] if lines else run.returncode}"

    error = part("capture", WARM_UP)
    if error:
        sys.exit(f"{WARM_UP}: {error}")
    for name in names:
        rows = {threads: Speed.path(FOLDER, key_of(name), threads) for threads in options.threads}
        if all(path.exists() and not json.loads(path.read_text())["error"] for path in rows.values()):
            continue
        error = part("capture", name)
        for threads, path in rows.items():
            Speed(name, threads, error=error).write(path)
        if error:
            print(f"{name}: {error}", flush=True)
            continue
        for threads in rows:
            parts = [part("eager", name, threads, options.budget)]
            if threads == options.threads[0]:
                parts += [part(what, name, threads) for what in ("memory", "eager_memory", "products")]
            report(name, threads, parts)
    for threads in options.threads:
        for name in names:
            speed = Speed.read(Speed.path(FOLDER, key_of(name), threads))
            has_time = end - time.monotonic() > COMPILE_TIME
            if has_time and speed is not None and speed.over_eager is not None and speed.over_compile is None:
                report(name, threads, [part("compile", name, threads, options.budget)])
    return 0


def report(name: str, threads: int, errors: list[str]) -> None:
    """Print a row, and keep the errors of its parts."""
    path = Speed.path(FOLDER, key_of(name), threads)
    speed = Speed.read(path) or Speed(name, threads)
    speed.error = "; ".join(filter(None, [speed.error, *errors]))
    speed.write(path)
    print(speed, flush=True)


def key_of(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


# --- the parts, each in a process of its own --------------------------------------------------------------------------


def capture(name: str) -> None:
    """Capture and save the step of a model, and save its batch."""
    case, optimizer = built(name)
    batch = torch_batch(case)
    captured = onnx_ops.torch.training_step(case.model, case.loss, batch, optimizer, inference=False, check=False)
    captured.save(FOLDER / f"{key_of(name)}.onnx")
    trainer = onnx_ops.Trainer(FOLDER / f"{key_of(name)}.onnx")
    arrays = dict(zip(trainer.batch_inputs, (tensor.numpy() for tensor in batch), strict=True))
    np.savez(FOLDER / f"{key_of(name)}.npz", allow_pickle=False, **arrays)


def eager(name: str, threads: str, budget: str) -> None:
    _measure(name, int(threads), float(budget), compiled=False)


def compiled(name: str, threads: str, budget: str) -> None:
    _measure(name, int(threads), float(budget), compiled=True)


def memory(name: str, threads: str) -> None:
    """Peak memory of the captured step."""

    def load(name: str) -> Callable[[], float]:
        step = own_step(name, int(threads))
        return lambda: float(step()["loss"])

    with changed(name, int(threads)) as speed:
        speed.memory = steps_peak(load, name)


def eager_memory(name: str, threads: str) -> None:
    """Peak memory of the step in PyTorch."""
    torch.set_num_threads(int(threads))

    with changed(name, int(threads)) as speed:
        speed.eager_memory = steps_peak(torch_step, name)


def products(name: str, threads: str) -> None:
    """The share of products in the captured step."""
    with changed(name, int(threads)) as speed:
        options = timing.session_options(int(threads))
        speed.products = share_of_products(functools.partial(step_of, name), options)


def steps_peak(load: Callable[[str], Callable[[], float]], name: str) -> int:
    """Peak bytes of the later steps of a model, above those of the process after the steps of `WARM_UP`."""
    peaks.measure(functools.partial(load, WARM_UP), steps=1)
    return peaks.measure(functools.partial(load, name), MEMORY_STEPS).steps


PARTS: dict[str, Callable[..., None]] = {
    "capture": capture,
    "eager": eager,
    "compile": compiled,
    "memory": memory,
    "eager_memory": eager_memory,
    "products": products,
}


def _measure(name: str, threads: int, budget: float, compiled: bool) -> None:
    """Interleaved steps of both sides; ratios are medians over the rounds."""
    torch.set_num_threads(threads)
    ours, theirs = own_step(name, threads), torch_step(name, compiled)
    for _ in range(3):  # the first steps compile
        theirs()
    with timing.without_gc():
        rounds, load = timing.least_loaded({"step": ours, "torch": theirs}, budget)
    ratio = timing.median_of(lambda one, other: one / other, rounds["step"], rounds["torch"])
    with changed(name, threads) as speed:
        if compiled:
            speed.over_compile = ratio
        else:
            speed.step, speed.eager = (statistics.median(rounds[side]) for side in ("step", "torch"))
            speed.over_eager, speed.foreign_load = ratio, load


@contextlib.contextmanager
def changed(name: str, threads: int) -> Iterator[Speed]:
    """The result of a row, which is written at the end."""
    path = Speed.path(FOLDER, key_of(name), threads)
    speed = Speed.read(path) or Speed(name, threads)
    yield speed
    speed.write(path)


def own_step(name: str, threads: int) -> Callable[[], dict[str, np.ndarray]]:
    """A step of the saved capture, on its batch."""
    return step_of(name, timing.session_options(threads))


def step_of(name: str, options: ort.SessionOptions) -> Callable[[], dict[str, np.ndarray]]:
    """`own_step` with session options."""
    trainer = onnx_ops.Trainer(FOLDER / f"{key_of(name)}.onnx", options)
    with np.load(FOLDER / f"{key_of(name)}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    return lambda: trainer.step(**arrays)


def built(name: str) -> tuple[Case, torch.optim.Optimizer]:
    """The case of a model, without dropout, and its optimizer."""
    warnings.simplefilter("ignore")
    torchvision_operators.declare()
    torch.manual_seed(0)
    case = linear() if name == WARM_UP else SPEED[name]()
    without_dropout(case.model)
    return case, torch.optim.AdamW(case.model.parameters(), lr=1e-4)


def torch_batch(case: Case) -> tuple[torch.Tensor, ...]:
    """The batch of a case, the same one each time."""
    torch.manual_seed(1)
    return case.batch(0)


def torch_step(name: str, compiled: bool = False) -> Callable[[], float]:
    """A step in PyTorch, on the same batch."""
    case, optimizer = built(name)
    batch = torch_batch(case)
    loss = torch.compile(case.loss) if compiled else case.loss
    update = torch.compile(optimizer.step) if compiled else optimizer.step

    def step() -> float:
        optimizer.zero_grad()
        found = loss(case.model, *batch)
        found.backward()
        update()
        return float(found.detach())

    return step


if __name__ == "__main__":
    sys.exit(main())
