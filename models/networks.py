"""PyTorch modules of common architectures with losses, batches and optimizers: the benchmarks of captured steps.

Requires torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

BATCH = 32
FEATURES, CLASSES = 64, 10


@dataclass(frozen=True)
class Task:
    """A network to train.

    Attributes:
        network: returns the module; its weights depend on torch's random seed.
        loss: takes the module and the tensors of a batch, returns a scalar.
        batch: returns the tensors of a batch.
        optimizer: returns an optimizer of the module's parameters.
    """

    network: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    batch: Callable[[], tuple[Tensor, ...]]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]


def adam(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=1e-3)


def adamw(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)


def momentum(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=1e-2, momentum=0.9, weight_decay=5e-4)


def cross_entropy(network: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(network(x), labels)


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 3, 32, 32), torch.randint(0, CLASSES, (BATCH,))


# Perceptrons


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, CLASSES))


def binary_cross_entropy(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(network(x), y)


def kl_divergence(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.kl_div(network(x).log_softmax(1), y, reduction="batchmean")


# Convolutions


class Convolutional(nn.Module):
    """Two blocks of convolution, batch normalization, ReLU and max pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution1 = nn.Conv2d(3, 32, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(32)
        self.convolution2 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(64)
        self.head = nn.Linear(64 * 4 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm1(self.convolution1(x))), 2)
        x = functional.max_pool2d(functional.relu(self.norm2(self.convolution2(x))), 2)
        return self.head(x.flatten(1))


class DepthwiseBlock(nn.Module):
    """A depthwise separable convolution, as in MobileNet: depthwise 3 x 3, then pointwise."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, out, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm1(self.depthwise(x)))
        return functional.relu(self.norm2(self.pointwise(x)))


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        DepthwiseBlock(16, 32, 1),
        DepthwiseBlock(32, 64, 2),
        DepthwiseBlock(64, 64, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


# Sequences


class Transformer(nn.Module):
    """A language model of one transformer block: tokens (N, T) to logits of the next token (N, T, tokens)."""

    def __init__(self, tokens: int = 1000, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(tokens, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        n, t, width = x.shape
        heads = self.query_key_value(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(n, t, width))
        x = x + self.narrow(functional.gelu(self.widen(self.norm2(x))))
        return self.head(x)


def next_token(network: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
    return functional.cross_entropy(network(tokens).flatten(0, 1), following.flatten())


def text() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 1000, (BATCH, 32)), torch.randint(0, 1000, (BATCH, 32))


class Speech(nn.Module):
    """Spectrograms (N, 40, T) to log-probabilities (T, N, 29) of 28 letters and the blank."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(40, width, 5, padding=2)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, 29)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.convolution(x)).permute(2, 0, 1)
        hidden = hidden + functional.hardshrink(self.hidden(hidden), 0.1)
        return self.head(hidden).log_softmax(-1)


def ctc(network: nn.Module, x: Tensor, labels: Tensor, steps: Tensor, lengths: Tensor) -> Tensor:
    return functional.ctc_loss(network(x), labels, steps, lengths)


def recordings() -> tuple[Tensor, ...]:
    steps = torch.tensor([200, 190, 200, 180, 170, 200, 150, 200])
    lengths = torch.tensor([30, 20, 10, 30, 25, 30, 5, 30])
    return torch.randn(8, 40, 200), torch.randint(1, 29, (8, 30)), steps, lengths


class Recurrent(nn.Module):
    """An LSTM with a linear layer on its last hidden state."""

    def __init__(self, features: int = 16, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


TASKS: Mapping[str, Task] = {
    "MLP, BCE": Task(
        perceptron,
        binary_cross_entropy,
        lambda: (torch.randn(BATCH, FEATURES), torch.rand(BATCH, CLASSES)),
        adam,
    ),
    "MLP, KL": Task(
        perceptron,
        kl_divergence,
        lambda: (torch.randn(BATCH, FEATURES), torch.rand(BATCH, CLASSES).softmax(1)),
        adam,
    ),
    "CNN with batch norm and max pooling": Task(Convolutional, cross_entropy, images, momentum),
    "depthwise CNN": Task(depthwise, cross_entropy, images, momentum),
    "transformer block": Task(Transformer, next_token, text, adamw),
    "speech, CTC": Task(Speech, ctc, recordings, adamw),
    "LSTM": Task(Recurrent, cross_entropy, lambda: (torch.randn(BATCH, 20, 16), torch.randint(0, 4, (BATCH,))), adam),
}
