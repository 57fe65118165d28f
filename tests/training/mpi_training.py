"""A worker of a training over MPI: mpiexec -n N python tests/training/mpi_training.py CONFIGURATION

The configuration is JSON: "first" and "last" step, the "counts" of samples that the workers take of each batch, the
"folder" for the results, a "checkpoint" to resume from, and what the last worker does "instead" of step 3, or "before"
it has a trainer. With "norms" the step is that of models/batch_norm_workers, with synchronized batch norm; what is done
instead is done amid it. With "accumulated" the step changes no buffer, and worker k takes its share in k + 1 batches.
With "protected" the program imports onnx_ops.mpi.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import steps
from mpi4py import MPI

import onnx_ops

Batch = dict[str, np.ndarray]


def plain() -> tuple[onnx_ops.Trainer, Callable[[int], Batch]]:
    """The trainer, and the whole batches."""
    trainer = onnx_ops.Trainer(steps.whole_step(), communicator=MPI.COMM_WORLD)
    return trainer, lambda number: steps.batch(steps.SHARED, seed=number)


def with_norms() -> tuple[onnx_ops.Trainer, Callable[[int], Batch]]:
    from models.batch_norm_workers.training import TRAINING

    trainer = onnx_ops.Trainer(TRAINING.started(0), communicator=MPI.COMM_WORLD, synchronize_batch_norm=True)
    samples = TRAINING.in_batches(TRAINING.samples(0))
    return trainer, lambda number: samples.batch(samples.order(0, 0), number)


def accumulated() -> tuple[onnx_ops.Trainer, Callable[[int], Batch]]:
    trainer = onnx_ops.Trainer(steps.whole_step(changes_mean=False), communicator=MPI.COMM_WORLD)
    return trainer, lambda number: steps.batch(steps.SHARED, seed=number)


def end(how: str, batch: Batch) -> None:
    match how:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise LookupError("no data")
        case "exit":
            sys.exit(7)
        case "leave":
            sys.exit()
        case "refused":
            del batch["y"]


def main() -> None:
    told = json.loads(sys.argv[1])
    communicator = MPI.COMM_WORLD
    if told.get("protected"):
        importlib.import_module("onnx_ops.mpi")
    rank, folder = communicator.rank, Path(told["folder"])
    if rank == communicator.size - 1:
        end(told.get("before", ""), {})
    trainer, whole = with_norms() if told.get("norms") else accumulated() if told.get("accumulated") else plain()
    if told.get("checkpoint"):
        trainer.load(told["checkpoint"])
    ends = np.cumsum([0, *told["counts"]])
    losses = []
    for number in range(told["first"], told["last"]):
        batch = {name: a[ends[rank] : ends[rank + 1]] for name, a in whole(number).items()}
        if number == 3 and rank == communicator.size - 1 and (how := told.get("instead")):
            if told.get("norms"):  # when the others wait for the sums of gradients
                trainer._only().runner._local[2].run = lambda *given, how=how, batch=batch: end(how, batch)
            else:
                end(how, batch)
        if told.get("accumulated"):
            cuts = {name: np.array_split(array, rank + 1) for name, array in batch.items()}
            *others, batch = (dict(zip(cuts, arrays, strict=True)) for arrays in zip(*cuts.values(), strict=True))
            for other in others:
                trainer.accumulate(**other)
        losses.append(float(trainer.step(**batch)["loss"]))
    if rank == 0:  # which trains something else besides, alone
        other = onnx_ops.Trainer(steps.whole_step(), communicator=MPI.COMM_SELF)
        other.step(**steps.batch())
    trainer.save(folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
