"""ONNX graphs as modules of PyTorch."""
