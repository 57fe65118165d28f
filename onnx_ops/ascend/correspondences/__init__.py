"""What ops correspond to in CANN, by the folder of the op in `onnx_ops.ops`."""
