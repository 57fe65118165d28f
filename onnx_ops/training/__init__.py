"""Training steps as ONNX models: what their files say, and their runs. Needs no training framework."""
