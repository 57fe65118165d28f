"""Capture the training step of a PyTorch model. The other examples train with its file, without PyTorch."""

import torch
from torch.export import Dim
from torch.nn import functional

import onnx_ops.torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.GELU(), torch.nn.Linear(32, 3))


def loss(model, inputs, labels):
    logits = model(inputs)
    # The first value is what is minimized; the others are reported.
    return {"loss": functional.cross_entropy(logits, labels), "accuracy": (logits.argmax(1) == labels).float().mean()}


rows = Dim("rows")  # a dimension that differs between steps
example = torch.randn(8, 4), torch.randint(3, (8,))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
shapes = ({0: rows}, {0: rows})
step = onnx_ops.torch.training_step(model, loss, example, optimizer, dynamic_shapes=shapes, evaluation=True)
step.save("step.onnx")
print(step)
