"""The PyTorch module, its loss and its optimizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.sparse_coding import data
from models.sparse_coding.training import LEARNING_RATE, TRAINING
from models.torch_step import TorchStep

ATOMS = 192
ITERATIONS = 8
FIRST_THRESHOLD, LAST_THRESHOLD = 0.6, 0.1


class SparseCoder(nn.Module):
    """Unrolled iterative hard thresholding with decreasing thresholds.

    Patches (N, P) to codes (N, K) and reconstructed patches (N, P).
    """

    def __init__(self) -> None:
        super().__init__()
        self.dictionary = nn.Parameter(torch.randn(ATOMS, data.PIXELS))
        self.steps = nn.Parameter(torch.ones(ITERATIONS))
        ratio = (LAST_THRESHOLD / FIRST_THRESHOLD) ** (1 / (ITERATIONS - 1))
        self.thresholds = [FIRST_THRESHOLD * ratio**i for i in range(ITERATIONS)]

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        atoms = self.dictionary / self.dictionary.norm(dim=1, keepdim=True)
        codes = functional.hardshrink(self.steps[0] * (patches @ atoms.T), self.thresholds[0])
        for step, threshold in zip(self.steps[1:], self.thresholds[1:], strict=True):
            codes = functional.hardshrink(codes + step * ((patches - codes @ atoms) @ atoms.T), threshold)
        return codes, codes @ atoms


def loss(network: nn.Module, patches: Tensor) -> Tensor:
    _, reconstruction = network(patches)
    # The logarithm bounds the gradient of patches whose iteration diverges.
    return (patches - reconstruction).square().sum(dim=1).log1p().mean()


def optimizer(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), LEARNING_RATE)


STEP = TorchStep(TRAINING, SparseCoder, loss, optimizer, ({0: torch.export.Dim("rows")},))
