"""The networks that each side trains, with `loss(x, y)` as its only function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS = 5
RATE = 0.1
"""Learning rate of the steps, which are of SGD."""


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(x)).mean(1))


class Loss(nn.Module):
    """The loss of a network as a module, whose parameters are named `module.*`."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.module = network.module()
        self.loss = network.loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.module(x), y)


@dataclass(frozen=True)
class Network:
    """What is trained.

    Attributes:
        title: its row in the table.
        module: makes it.
        x: makes the input of a number of samples.
        y: makes the labels of a number of samples.
        loss: of the module's output and the labels.
        sizes: number of samples of each step.
    """

    title: str
    module: Callable[[], nn.Module]
    x: Callable[[int], Tensor]
    y: Callable[[int], Tensor]
    loss: Callable[[Any, Tensor], Tensor]
    sizes: tuple[int, ...] = (8,) * STEPS

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        torch.manual_seed(1)
        return [(self.x(size), self.y(size)) for size in self.sizes]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def convolutions() -> nn.Module:
    convolution = nn.Conv2d(2, 4, 3, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))


def ctc(output: Tensor, y: Tensor) -> Tensor:
    log_probabilities = output.log_softmax(2).transpose(0, 1)
    rows = output.shape[0]
    return functional.ctc_loss(log_probabilities, y, torch.full((rows,), 7), torch.full((rows,), 3))


def squares(output: Tensor, y: Tensor) -> Tensor:
    difference = output - y
    return (difference * difference).mean()


def classes(count: int) -> Tensor:
    return torch.randint(3, (count,))


def tokens(count: int) -> Tensor:
    return torch.randint(11, (count, 6))


def spelled(count: int) -> Tensor:
    return torch.randint(1, 3, (count, 3))


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape, dtype=dtype)


def double() -> nn.Module:
    return perceptron().double()


VARIED = (8, 5, 12, 2, 8)
FLOAT64 = normal(4, dtype=torch.float64), normal(3, dtype=torch.float64)
NETWORKS = {
    "perceptron": Network("a perceptron, squared error", perceptron, normal(4), normal(3), squares),
    "cross_entropy": Network("with cross entropy", perceptron, normal(4), classes, functional.cross_entropy),
    "sizes": Network("with batches of different sizes", perceptron, normal(4), normal(3), squares, VARIED),
    "convolutions": Network(
        "convolution, batch norm and max pooling", convolutions, normal(2, 8, 8), normal(3), squares
    ),
    "transformer": Network("a transformer layer", Transformer, tokens, normal(3), squares),
    "lstm": Network("an LSTM", Recurrent, normal(6, 4), normal(3), squares),
    "ctc": Network("with CTC loss", perceptron, normal(7, 4), spelled, ctc),
    "float64": Network("in float64", double, *FLOAT64, squares),
}
