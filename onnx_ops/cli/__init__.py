"""The program `onnx-ops`."""
