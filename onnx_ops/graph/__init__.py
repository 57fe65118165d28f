"""Tools for any ONNX model: walking it, types of its values, imports, names, edits, functions. Knows no op."""
