"""Train with the step of `capture` for some epochs: shuffling, validation, a schedule, logs, the best checkpoint."""

import numpy as np

import onnx_ops

rng = np.random.default_rng(0)
inputs = rng.normal(size=(400, 4)).astype(np.float32)
labels = inputs[:, :3].argmax(axis=1)

trainer = onnx_ops.Trainer("step.onnx")
epochs = onnx_ops.fit(
    trainer,
    {"inputs": inputs[:300], "labels": labels[:300]},
    validation={"inputs": inputs[300:], "labels": labels[300:]},
    epochs=5,
    batch_size=30,
    schedule=onnx_ops.CosineAnnealingLR(T_max=5),
    best="best.safetensors",
    logs=["log.csv"],
    progress=False,
)
print(epochs[-1])
