"""Exports a traced graph to ONNX: first to operators that have a translation, then to nodes."""
