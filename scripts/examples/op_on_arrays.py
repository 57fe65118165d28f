"""Run an op of the domain on NumPy arrays, and compare its kernel with its definition."""

import numpy as np

import onnx_ops

rng = np.random.default_rng(0)
logits = rng.normal(size=(4, 3)).astype(np.float32)
labels = np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]

# Attributes take PyTorch's words. The inputs are positional, or named as in onnx_ops.OPS[...].schema.
loss = onnx_ops.run("BinaryCrossEntropyWithLogits", logits, labels, reduction="mean")
gradient = onnx_ops.run(
    "BinaryCrossEntropyWithLogitsBackward",
    np.ones((), np.float32),  # the gradient of the loss itself
    logits,
    labels,
    reduction="mean",
)

# In float64, by the op's definition in NumPy: what a test compares a kernel with.
golden = onnx_ops.run("BinaryCrossEntropyWithLogits", logits, labels, reduction="mean", dtype="float64")
print(f"loss {loss:.6f}, in float64 {golden:.15f}, gradient of the first sample {gradient[0]}")
