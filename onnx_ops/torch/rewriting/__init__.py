"""Rewrites of captured ONNX graphs: the same results in less time or memory."""
