"""Capture a step with an optimizer that is not in torch.optim: Lion (Chen et al., 2023)."""

import torch
from torch import nn
from torch.nn import functional

import onnx_ops.torch


def initial(parameter, group):
    return {"exp_avg": torch.zeros_like(parameter)}


def update(parameter, gradient, state, lr, group):
    """The next value of one parameter, and its next state."""
    first, second = group["betas"]
    direction = torch.sign(first * state["exp_avg"] + (1 - first) * gradient)
    average = second * state["exp_avg"] + (1 - second) * gradient
    return parameter * (1 - lr * group["weight_decay"]) - lr * direction, {"exp_avg": average}


class Lion(torch.optim.Optimizer):
    """The same in PyTorch, with which the capture compares its step. It may be of another package."""

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter] or initial(parameter, group)
                stepped, self.state[parameter] = update(parameter, parameter.grad, state, group["lr"], group)
                parameter.copy_(stepped)


def loss(model, inputs, labels):
    return functional.cross_entropy(model(inputs), labels)


torch.manual_seed(0)
onnx_ops.torch.register_optimizer(Lion, initial=initial, update=update)
model = nn.Linear(4, 3)
inputs = torch.randn(64, 4)
labels = inputs[:, :3].argmax(1)
optimizer = Lion(model.parameters(), lr=0.02, weight_decay=0.01)
trainer = onnx_ops.Trainer(onnx_ops.torch.training_step(model, loss, (inputs, labels), optimizer))
losses = [float(trainer.step(inputs=inputs.numpy(), labels=labels.numpy())["loss"]) for _ in range(50)]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
