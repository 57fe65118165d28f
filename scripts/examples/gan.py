"""Two steps on one state: the generator and the discriminator of a GAN, which learns the mean of its samples."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import onnx_ops.torch


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(4, 2)
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))


def fooled(gan, noise):
    return functional.softplus(-gan.discriminator(gan.generator(noise))).mean()


def told_apart(gan, noise, real):
    fake = gan.discriminator(gan.generator(noise).detach())
    return functional.softplus(fake).mean() + functional.softplus(-gan.discriminator(real)).mean()


torch.manual_seed(0)
gan = Gan()
noise, real = torch.randn(64, 4), torch.randn(64, 2)
steps = {
    "generator": onnx_ops.torch.training_step(
        gan, fooled, (noise,), torch.optim.Adam(gan.generator.parameters(), lr=0.01), inference=False
    ),
    "discriminator": onnx_ops.torch.training_step(
        gan, told_apart, (noise, real), torch.optim.Adam(gan.discriminator.parameters(), lr=0.01), inference=False
    ),
}

# Tensors of the same name are one. Each step has its own optimizer state and learning rate.
trainer = onnx_ops.Trainer(steps)
rng = np.random.default_rng(0)
for _ in range(500):
    batch = rng.normal(loc=(3, -1), size=(64, 2)).astype(np.float32)
    trainer["discriminator"].step(noise=rng.normal(size=(64, 4)).astype(np.float32), real=batch)
    trainer["generator"].step(noise=rng.normal(size=(64, 4)).astype(np.float32))
print("mean of what is generated:", trainer.weights()["generator.bias"], "of the samples: [3, -1]")
