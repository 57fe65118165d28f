"""Accumulate gradients: with the step of `capture`, one update from more samples than are computed at once."""

import numpy as np

import onnx_ops

rng = np.random.default_rng(0)
inputs = rng.normal(size=(400, 4)).astype(np.float32)
labels = inputs[:, :3].argmax(axis=1)

in_parts, whole = onnx_ops.Trainer("step.onnx"), onnx_ops.Trainer("step.onnx")
for _ in range(5):
    for start in range(0, 300, 100):
        in_parts.accumulate(inputs=inputs[start : start + 100], labels=labels[start : start + 100])
    in_parts.step(inputs=inputs[300:], labels=labels[300:])  # an update by the mean over all 400 samples
    whole.step(inputs=inputs, labels=labels)
difference = max(np.abs(in_parts.weights()[name] - array).max() for name, array in whole.weights().items())
print(f"largest difference of the parameters {difference:.1e}")
