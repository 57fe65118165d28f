"""The networks of the memory benchmark, with their losses, batches and optimizers. Requires torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.gpt import GPT
from models.networks import BATCH, Convolutional, Recurrent, Speech, cross_entropy, ctc, images, next_token, recordings
from models.resnet import ResNet18
from scripts.memory.files import WARM_UP

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Network:
    """A network to train.

    Attributes:
        module: returns the module; its weights depend on torch's random seed.
        loss: takes the module and the tensors of a batch, returns a scalar.
        batch: returns the tensors of a batch.
        optimizer: returns an optimizer of parameters.
    """

    module: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    batch: Callable[[], tuple[Tensor, ...]]
    optimizer: MakeOptimizer


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that an optimizer updates."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def perceptron() -> nn.Module:
    hidden = [nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(2048, 10))


def features() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 256), torch.randint(0, 10, (BATCH,))


def photographs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))


def series() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 20, 64), torch.randint(0, 10, (BATCH,))


def text(samples: int, length: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Random tokens and the tokens to predict, each (samples, length)."""
    return torch.randint(0, tokens, (samples, length)), torch.randint(0, tokens, (samples, length))


def last_block_trained() -> nn.Module:
    """GPT-2 small with all parameters frozen but those of the last block and of the normalization after it."""
    module = GPT()
    module.requires_grad_(False)
    module.blocks[-1].requires_grad_(True)
    module.norm.requires_grad_(True)
    return module


adamw: MakeOptimizer = functools.partial(torch.optim.AdamW, lr=1e-3, fused=True)
slow_adamw: MakeOptimizer = functools.partial(torch.optim.AdamW, lr=1e-4, fused=True)
sgd: MakeOptimizer = functools.partial(torch.optim.SGD, lr=1e-2, fused=True)

NETWORKS: Mapping[str, Network] = {
    WARM_UP: Network(
        functools.partial(nn.Linear, 4, 4),
        cross_entropy,
        lambda: (torch.randn(4, 4), torch.randint(0, 4, (4,))),
        adamw,
    ),
    "MLP": Network(perceptron, cross_entropy, features, adamw),
    "MLP, SGD": Network(perceptron, cross_entropy, features, sgd),
    "CNN": Network(Convolutional, cross_entropy, images, adamw),
    "transformer, 6 layers": Network(
        functools.partial(GPT, tokens=1000, context=64, width=256, heads=8, layers=6),
        next_token,
        functools.partial(text, 16, 64, 1000),
        adamw,
    ),
    "LSTM": Network(functools.partial(Recurrent, 64, 512, 10), cross_entropy, series, adamw),
    "speech, CTC": Network(functools.partial(Speech, 512), ctc, recordings, adamw),
    "ResNet-18": Network(ResNet18, cross_entropy, photographs, adamw),
    "GPT-2 small": Network(GPT, next_token, functools.partial(text, 4, 128, 50257), slow_adamw),
    "GPT-2 small, last block": Network(
        last_block_trained, next_token, functools.partial(text, 4, 128, 50257), slow_adamw
    ),
}
