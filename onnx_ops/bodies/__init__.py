"""Writes function bodies: ops in standard ONNX operators."""
