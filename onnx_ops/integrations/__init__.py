"""The ops in onnx and onnxruntime: nodes, sessions, the reference evaluator."""
