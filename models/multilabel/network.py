"""The network, its loss and its optimizer in PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from models import digits
from models.multilabel.training import LEARNING_RATE, TRAINING
from models.torch_step import TorchStep

HIDDEN = 32
STRIDE = 2


class Finder(nn.Module):
    """Looks at windows of 8 x 8 pixels, two pixels apart; a picture has what one of its windows shows.

    From pictures (N, H, W) to logits (N, K), which are the logarithms of the windows' mean odds.
    """

    def __init__(self) -> None:
        super().__init__()
        # With the pixels of a block as its channels, blocks side by side make a window.
        self.blocks = nn.PixelUnshuffle(STRIDE)
        self.window = nn.Conv2d(STRIDE**2, HIDDEN, digits.SIDE // STRIDE)
        self.hidden = nn.Conv2d(HIDDEN, HIDDEN // 2, 1)
        self.head = nn.Conv2d(HIDDEN // 2, digits.DIGITS, 1)

    def forward(self, images: Tensor) -> Tensor:
        # SiLU is smooth. With ReLU, Adam makes large steps of the gradients that rounding alone switches on and off.
        windows = functional.silu(self.window(self.blocks(images[:, None])))
        logits = self.head(functional.silu(self.hidden(windows))).flatten(2)
        return logits.logsumexp(2) - math.log(logits.shape[2])


def loss(network: nn.Module, images: Tensor, labels: Tensor, pos_weight: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(network(images), labels, pos_weight=pos_weight)


def optimizer(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), LEARNING_RATE)


ROWS = {0: torch.export.Dim("rows")}
STEP = TorchStep(TRAINING, Finder, loss, optimizer, (ROWS, ROWS, {}))
