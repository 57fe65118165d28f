"""Checkpoints of the whole state, and weights in the files of Hugging Face's libraries, with the step of `capture`."""

import numpy as np

import onnx_ops

rng = np.random.default_rng(0)
inputs = rng.normal(size=(90, 4)).astype(np.float32)
batch = {"inputs": inputs, "labels": inputs[:, :3].argmax(axis=1)}

trainer = onnx_ops.Trainer("step.onnx")
for _ in range(20):
    trainer.step(**batch)
trainer.save("checkpoint.safetensors")  # parameters, optimizer state, learning rate and seed
trainer.save_weights("model.safetensors")  # parameters and buffers by their names in PyTorch: for `from_pretrained`

resumed = onnx_ops.Trainer("step.onnx")
resumed.load("checkpoint.safetensors")
print("resumed bit-identically:", resumed.step(**batch)["loss"] == trainer.step(**batch)["loss"])

# A file of a pretrained model, the index of several, or a folder of `save_pretrained`; other names are an error.
tuned = onnx_ops.Trainer("step.onnx")
tuned.load_weights("model.safetensors")
print(f"loss {tuned.evaluate(**batch)['loss']:.3f}")
