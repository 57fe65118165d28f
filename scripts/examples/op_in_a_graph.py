"""Put an op into an ONNX graph, and write a file that any onnxruntime session runs."""

import numpy as np
import onnx
import onnxruntime as ort

import onnx_ops

model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
    gate (float[N, 4] x) => (float[N, 4] y) {
        shrunk = aclnn.Hardshrink <lambd = 0.5> (x)
        y = Mul (shrunk, shrunk)
    }""")
x = np.array([[-1.0, 0.25, 0.5, 2.0]], np.float32)

# On the kernels of this package.
(with_kernel,) = onnx_ops.InferenceSession(model).run(None, {"x": x})

# A linked model carries the op as a function of standard operators: it needs this package no more.
onnx.save(onnx_ops.link(model), "linked.onnx")
(without,) = ort.InferenceSession("linked.onnx").run(None, {"x": x})
print(with_kernel, without)
