"""The PyTorch module, its loss and its optimizer."""

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
    """A classifier of windows of 8 x 8 pixels with stride 2: pictures (N, H, W) to logits (N, K).

    The logit of a picture is the logarithm of the mean odds over its windows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.PixelUnshuffle(STRIDE)  # 4 x 4 blocks are a window of 8 x 8 pixels
        self.window = nn.Conv2d(STRIDE**2, HIDDEN, digits.SIDE // STRIDE)
        self.hidden = nn.Conv2d(HIDDEN, HIDDEN // 2, 1)
        self.head = nn.Conv2d(HIDDEN // 2, digits.DIGITS, 1)

    def forward(self, images: Tensor) -> Tensor:
        # SiLU, for the gradient of ReLU is discontinuous: rounding would make Adam's updates differ from PyTorch's.
        windows = functional.silu(self.window(self.blocks(images[:, None])))
        logits = self.head(functional.silu(self.hidden(windows))).flatten(2)
        return logits.logsumexp(2) - math.log(logits.shape[2])


def loss(network: nn.Module, images: Tensor, labels: Tensor, pos_weight: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(network(images), labels, pos_weight=pos_weight)


def optimizer(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), LEARNING_RATE)


ROWS = {0: torch.export.Dim("rows")}
STEP = TorchStep(TRAINING, Finder, loss, optimizer, (ROWS, ROWS, {}))
