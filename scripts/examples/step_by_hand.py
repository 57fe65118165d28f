"""Write a training step as an ONNX graph, without PyTorch, and train with it."""

import numpy as np
import onnx

import onnx_ops
from onnx_ops import InputRole, Step, step_model

# Forward pass, loss, gradient and update of one layer. An output `next.w` is the next value of the input `w`.
step = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
    step (float[rows, 4] inputs, float[rows, 3] labels, float[4, 3] w, float learning_rate)
        => (float loss, float[4, 3] "next.w") {
        logits = MatMul (inputs, w)
        loss = aclnn.BinaryCrossEntropyWithLogits <reduction = 1> (logits, labels)
        one = Constant <value = float {1.0}> ()
        logits_grad = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction = 1> (one, logits, labels)
        w_grad = Gemm <transA = 1> (inputs, logits_grad)
        change = Mul (learning_rate, w_grad)
        "next.w" = Sub (w, change)
    }""")
state = {"w": np.zeros((4, 3), np.float32), "learning_rate": np.array(5, np.float32)}
Step({"w": InputRole.PARAMETER, "learning_rate": InputRole.SETTING}).write_into(step)
onnx.save(step_model(step, state), "by_hand.onnx")

rng = np.random.default_rng(0)
inputs = rng.normal(size=(200, 4)).astype(np.float32)
labels = np.eye(3, dtype=np.float32)[inputs[:, :3].argmax(axis=1)]
trainer = onnx_ops.Trainer("by_hand.onnx")
losses = [float(trainer.step(inputs=inputs, labels=labels)["loss"]) for _ in range(100)]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
