"""Fine-tune: a new head on a frozen network, captured from PyTorch, and loaded back into it."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import onnx_ops.torch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 3))
model[:2].requires_grad_(False)  # neither gradients nor optimizer state are computed for these


def loss(model, inputs, labels):
    return functional.cross_entropy(model(inputs), labels)


rows = torch.export.Dim("rows")
example = torch.randn(8, 4), torch.randint(3, (8,))
optimizer = torch.optim.Adam(model[2].parameters(), lr=0.05)
capture = onnx_ops.torch.training_step(model, loss, example, optimizer, dynamic_shapes=({0: rows}, {0: rows}))
capture.save("head.onnx", frozen="backbone.safetensors")  # a file of its own for what is not trained

trainer = onnx_ops.Trainer("head.onnx")
inputs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
labels = inputs[:, :3].argmax(axis=1)
losses = [float(trainer.step(inputs=inputs, labels=labels)["loss"]) for _ in range(50)]

onnx_ops.torch.load_into_torch(trainer.state_dict(), model, optimizer)
accuracy = np.mean(model(torch.from_numpy(inputs)).argmax(1).numpy() == labels)
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy in PyTorch {accuracy:.2f}")
