"""Times training steps that processes share over MPI: the same number of samples each, so more work by more of them.

    mpiexec -n 2 python -m scripts.scaling

One launch measures 1, 2, 4, ... workers, as far as there are processes; those that have nothing to do sleep. They take
turns, for several rounds, and each figure is a median over the rounds.

alone       a step of a Trainer without communicator
workers     a step of a Trainer with as many workers
efficiency  the step of one worker by that of so many: 1 if more workers cost nothing
exchange    one Allreduce of the step's message by itself, when all are ready
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from mpi4py import MPI

from models.perceptron import perceptron_step
from onnx_ops import Trainer
from onnx_ops.training.workers.exchange import Exchange
from onnx_ops.training.workers.partition import partition
from scripts import markdown

NETWORKS = {
    "64-64-10": (64, 64, 10),
    "784-512-512-10": (784, 512, 512, 10),
    "784-2048-2048-10": (784, 2048, 2048, 10),
}


@dataclass
class Timings:
    """Seconds a step of one network, by number of workers; a number for each round."""

    message: int
    samples: int
    alone: list[float] = field(default_factory=list)
    shared: dict[int, list[float]] = field(default_factory=dict)
    exchange: dict[int, list[float]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time training steps that processes share over MPI.")
    parser.add_argument("--samples", type=int, nargs="+", default=[32, 256], help="of each worker in a step")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--threads", type=int, default=1, help="of each worker's sessions")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each figure of each round, about")
    options = parser.parse_args()

    world = MPI.COMM_WORLD
    sizes = [size for size in (2**k for k in range(world.size.bit_length())) if size <= world.size]
    groups = {size: world.Split(world.rank < size, world.rank) for size in sizes}
    found = {}
    for name in options.networks:
        for samples in options.samples:
            found[name, samples] = measured(world, groups, name, samples, options)
    if world.rank == 0:
        print(report(found, sizes))


def measured(world: Any, groups: dict[int, Any], name: str, samples: int, options: argparse.Namespace) -> Timings:
    model, layers = perceptron_step(NETWORKS[name]), NETWORKS[name]
    rng = np.random.default_rng(world.rank)
    batch = {
        "x": rng.normal(size=(samples, layers[0])).astype(np.float32),
        "labels": rng.integers(2, size=(samples, layers[-1])).astype(np.float32),
    }
    session_options = ort.SessionOptions()
    session_options.intra_op_num_threads = options.threads
    alone = Trainer(model, session_options)
    trainers = {
        size: Trainer(model, session_options, communicator=group) for size, group in groups.items() if world.rank < size
    }
    timings = Timings(Exchange(groups[1], partition(model).local[-1].exchanged).bytes, samples)
    sent, received = np.zeros(timings.message, np.uint8), np.zeros(timings.message, np.uint8)
    numbers = sent.view(np.float32), received.view(np.float32)
    for _ in range(options.rounds):
        if world.rank == 0:
            timings.alone.append(seconds(functools.partial(alone.step, **batch), groups[1], options.seconds))
        rest(world)
        for size, group in groups.items():
            if world.rank < size:
                step = functools.partial(trainers[size].step, **batch)
                timings.shared.setdefault(size, []).append(seconds(step, group, options.seconds))
                exchange = functools.partial(group.Allreduce, *numbers)
                timings.exchange.setdefault(size, []).append(seconds(exchange, group, options.seconds / 4))
            rest(world)
    return timings


def seconds(run: Callable[[], object], group: Any, wanted: float) -> float:
    """The time of one run; all of a group make the same number of them."""
    run()
    start = time.perf_counter()
    for _ in range(3):
        run()
    wished = np.array([3 * wanted / max(time.perf_counter() - start, 1e-6)])
    group.Bcast(wished, 0)
    count = max(3, int(wished[0]))
    group.Barrier()
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def rest(world: Any) -> None:
    """Wait for all without keeping a core busy."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


def report(found: dict[tuple[str, int], Timings], sizes: list[int]) -> str:
    def of(times: list[float]) -> float:
        return statistics.median(times)

    header = ["perceptron", "samples each", "message, KB", "alone, ms"]
    for size in sizes:
        header += [f"{size} worker{'s' * (size > 1)}, ms"]
    for size in sizes[1:]:
        header += [f"efficiency of {size}", f"exchange of {size}, ms"]
    rows = []
    for (name, samples), timings in found.items():
        row = [name, str(samples), f"{timings.message / 1e3:.1f}", f"{1e3 * of(timings.alone):.3g}"]
        row += [f"{1e3 * of(timings.shared[size]):.3g}" for size in sizes]
        for size in sizes[1:]:
            # Of each round by itself, for what else the machine does changes.
            ratios = [one / more for one, more in zip(timings.shared[1], timings.shared[size], strict=True)]
            row += [f"{statistics.median(ratios):.2f}", f"{1e3 * of(timings.exchange[size]):.3g}"]
        rows.append(row)
    return markdown.table(header, rows, right=range(1, len(header)))


if __name__ == "__main__":
    main()
