"""A worker of a training over MPI: mpiexec -n N python tests/mpi_training.py CONFIGURATION

The configuration is JSON: "first" and "last" step, the "counts" of samples that the workers take of each batch, the
"folder" for the results, a "checkpoint" to go on from, and what the last worker does "instead" of step 3.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import steps
from mpi4py import MPI

import onnx_ops


def main() -> None:
    told = json.loads(sys.argv[1])
    communicator = MPI.COMM_WORLD
    rank, folder = communicator.rank, Path(told["folder"])
    trainer = onnx_ops.Trainer(steps.whole_step(), communicator=communicator)
    if told.get("checkpoint"):
        trainer.load(told["checkpoint"])
    ends = np.cumsum([0, *told["counts"]])
    samples = int(ends[-1])
    losses = []
    for number in range(told["first"], told["last"]):
        batch = {name: a[ends[rank] : ends[rank + 1]] for name, a in steps.batch(samples, seed=number).items()}
        if number == 3 and rank == communicator.size - 1:
            match told.get("instead"):
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "raise":
                    raise LookupError("no data")
                case "exit":
                    sys.exit(7)
                case "refused":
                    del batch["y"]
        losses.append(float(trainer.step(**batch)["loss"]))
    if rank == 0:  # which trains something else besides, alone
        other = onnx_ops.Trainer(steps.whole_step(), communicator=MPI.COMM_SELF)
        other.step(**steps.batch(samples))
    trainer.save(folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
