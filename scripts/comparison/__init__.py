"""What onnx_ops, PyTorch and other ways to train ONNX models can do: `python -m scripts.comparison` runs it."""
