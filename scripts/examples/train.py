"""Train with the step of `capture`, evaluate, predict, and export the model for inference."""

import numpy as np
import onnxruntime as ort

import onnx_ops

rng = np.random.default_rng(0)
inputs = rng.normal(size=(400, 4)).astype(np.float32)
labels = inputs[:, :3].argmax(axis=1)
held_out = {"inputs": inputs[300:], "labels": labels[300:]}

trainer = onnx_ops.Trainer("step.onnx")
for _ in range(5):
    for batch in np.array_split(rng.permutation(300), 10):
        trainer.step(inputs=inputs[batch], labels=labels[batch])
    found = trainer.evaluate(**held_out)  # in evaluation mode, without an update
    print(f"loss {found['loss']:.3f}, accuracy {found['accuracy']:.2f}")

predicted = trainer.predict(input=held_out["inputs"])["output"]
trainer.export("classifier.onnx")  # a model that needs this package no more
(logits,) = ort.InferenceSession("classifier.onnx").run(None, {"input": held_out["inputs"]})
print(f"largest difference of the exported model {np.abs(logits - predicted).max():.1e}")
