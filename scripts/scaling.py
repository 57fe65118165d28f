"""Weak scaling of data-parallel training steps over MPI: the number of samples per worker is constant.

    mpiexec -n 2 python -m scripts.scaling

One launch measures 1, 2, 4, ... workers, up to the number of processes; idle processes sleep. The measurements are
interleaved, and each number is a median over the rounds.

alone       a step of a Trainer without communicator
workers     a step of a Trainer with that many workers
efficiency  time of one worker / time of that many workers; 1 is ideal
exchange    one Allreduce of the step's message, after a barrier
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

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
    """Timings of one network.

    Attributes:
        message: bytes of the Allreduce of a step.
        samples: per worker and step.
        alone: seconds of a step without communicator, one number per round.
        shared: seconds of a step by number of workers, one number per round.
        exchange: seconds of the Allreduce by number of workers, one number per round.
    """

    message: int
    samples: int
    alone: list[float] = field(default_factory=list)
    shared: dict[int, list[float]] = field(default_factory=dict)
    exchange: dict[int, list[float]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the weak scaling of data-parallel training steps over MPI.")
    parser.add_argument("--samples", type=int, nargs="+", default=[32, 256], help="samples per worker and step")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads per worker")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="approximate duration of a measurement")
    options = parser.parse_args()

    world = MPI.COMM_WORLD
    sizes = [size for size in (2**k for k in range(world.size.bit_length())) if size <= world.size]
    groups = {size: world.Split(world.rank < size, world.rank) for size in sizes}
    timings = {}
    for name in options.networks:
        for samples in options.samples:
            timings[name, samples] = measure(world, groups, name, samples, options)
    if world.rank == 0:
        print(report(timings, sizes))


def measure(
    world: MPI.Intracomm, groups: dict[int, MPI.Comm], name: str, samples: int, options: argparse.Namespace
) -> Timings:
    """The timings of one network; all processes call it.

    Args:
        world: the communicator of all processes.
        groups: communicators by number of workers; their ranks are those of `world`.
        name: of the network.
        samples: per worker and step.
        options: of the command line.
    """
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
        idle_barrier(world)
        for size, group in groups.items():
            if world.rank < size:
                step = functools.partial(trainers[size].step, **batch)
                timings.shared.setdefault(size, []).append(seconds(step, group, options.seconds))
                exchange = functools.partial(group.Allreduce, *numbers)
                timings.exchange.setdefault(size, []).append(seconds(exchange, group, options.seconds / 4))
            idle_barrier(world)
    return timings


def seconds(run: Callable[[], object], group: MPI.Comm, duration: float) -> float:
    """Seconds of one call, averaged over about `duration` seconds; all processes of the group make as many calls."""
    run()
    start = time.perf_counter()
    for _ in range(3):
        run()
    calls = np.array([3 * duration / max(time.perf_counter() - start, 1e-6)])
    group.Bcast(calls, 0)
    count = max(3, int(calls[0]))
    group.Barrier()
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def idle_barrier(world: MPI.Comm) -> None:
    """A barrier that sleeps: MPI's own keeps a core busy."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


def report(results: dict[tuple[str, int], Timings], sizes: list[int]) -> str:
    """A Markdown table, one line per network and number of samples."""
    median = statistics.median
    header = ["perceptron", "samples each", "message, KB", "alone, ms"]
    for size in sizes:
        header += [f"{size} worker{'s' * (size > 1)}, ms"]
    for size in sizes[1:]:
        header += [f"efficiency of {size}", f"exchange of {size}, ms"]
    rows = []
    for (name, samples), timings in results.items():
        row = [name, str(samples), f"{timings.message / 1e3:.1f}", f"{1e3 * median(timings.alone):.3g}"]
        row += [f"{1e3 * median(timings.shared[size]):.3g}" for size in sizes]
        for size in sizes[1:]:
            ratios = [one / more for one, more in zip(timings.shared[1], timings.shared[size], strict=True)]
            row += [f"{median(ratios):.2f}", f"{1e3 * median(timings.exchange[size]):.3g}"]
        rows.append(row)
    return markdown.table(header, rows, right=range(1, len(header)))


if __name__ == "__main__":
    main()
