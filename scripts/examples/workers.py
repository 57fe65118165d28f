"""Train with the step of `capture` in several processes, which average their gradients:

mpiexec -n 2 python -m onnx_ops.mpi scripts/examples/workers.py
"""

import numpy as np
from mpi4py import MPI

import onnx_ops

workers = MPI.COMM_WORLD
trainer = onnx_ops.Trainer("step.onnx", communicator=workers)

rng = np.random.default_rng(0)  # of the same seed everywhere, so that all have the same data in the same order
inputs = rng.normal(size=(400, 4)).astype(np.float32)
labels = inputs[:, :3].argmax(axis=1)
for _ in range(5):
    for batch in np.array_split(rng.permutation(400), 10):
        own = np.array_split(batch, workers.size)[workers.rank]
        reported = trainer.step(inputs=inputs[own], labels=labels[own])
if workers.rank == 0:
    print(f"loss {reported['loss']:.3f} with {workers.size} processes")
