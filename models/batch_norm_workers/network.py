"""The PyTorch module, with two batch norm layers, its loss and its optimizer."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.batch_norm_workers.training import LEARNING_RATE, TRAINING
from models.torch_step import TorchStep


def network() -> nn.Module:
    """A classifier: images (N, 1, 8, 8) to logits (N, 10)."""
    return nn.Sequential(
        OrderedDict(
            convolution=nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False),
            norm=nn.BatchNorm2d(16),
            activation=nn.SiLU(),
            flat=nn.Flatten(),
            hidden=nn.Linear(16 * 4 * 4, 64, bias=False),
            hidden_norm=nn.BatchNorm1d(64),
            hidden_activation=nn.SiLU(),
            logits=nn.Linear(64, 10),
        )
    )


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(images), labels)


SAMPLES = torch.export.Dim("samples")
STEP = TorchStep(
    training=TRAINING,
    network=network,
    loss=loss,
    optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=0.9),
    dynamic_shapes=({0: SAMPLES}, {0: SAMPLES}),
)
