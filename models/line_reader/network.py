"""The PyTorch module of the reader, its loss and its optimizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.line_reader.data import BLANK, CLASSES, HEIGHT
from models.line_reader.training import START_RATE, TRAINING
from models.torch_step import TorchStep


class LineReader(nn.Module):
    """Lines (N, H, W) to log-probabilities of the classes of each column, (N, W, 11).

    Two 2-D convolutions with a receptive field of 5 x 5 pixels and no padding of rows, max pooling of rows, then two
    1-D convolutions over the columns, whose channels are all rows; the receptive field is 11 columns.
    """

    def __init__(self) -> None:
        super().__init__()
        self.strokes = nn.Conv2d(1, 12, 3, padding=(0, 1), bias=False)
        self.strokes_norm = nn.BatchNorm2d(12)
        self.shapes = nn.Conv2d(12, 24, 3, padding=(0, 1), bias=False)
        self.shapes_norm = nn.BatchNorm2d(24)
        self.columns = nn.Conv1d(24 * ((HEIGHT - 4) // 2), 80, 5, padding=2, bias=False)
        self.columns_norm = nn.BatchNorm1d(80)
        self.classes = nn.Conv1d(80, CLASSES, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(self.strokes_norm(self.strokes(images.unsqueeze(1))))
        x = functional.relu(self.shapes_norm(self.shapes(x)))
        x = functional.max_pool2d(x, (2, 1)).flatten(1, 2)
        x = functional.relu(self.columns_norm(self.columns(x)))
        return self.classes(x).transpose(1, 2).log_softmax(2)


def loss(network: LineReader, images: Tensor, widths: Tensor, digits: Tensor, lengths: Tensor) -> Tensor:
    """CTC loss with reduction "mean": divided by the lengths, then averaged over the lines."""
    log_probs = network(images).transpose(0, 1)
    return functional.ctc_loss(log_probs, digits, widths, lengths, blank=BLANK)


def optimizer(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=START_RATE, weight_decay=0.02)


LINES = torch.export.Dim("lines")
STEP = TorchStep(TRAINING, LineReader, loss, optimizer, tuple({0: LINES} for _ in range(4)))
