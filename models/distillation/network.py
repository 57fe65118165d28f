"""The networks, their losses and their optimizers in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.digits import DIGITS, SIDE
from models.distillation.training import STUDENT, STUDENT_RATE, TEACHER, TEACHER_RATE, TEMPERATURE
from models.torch_step import TorchStep


class Classifier(nn.Module):
    """From images (N, 8, 8) to logits (N, 10), by two convolutions and a hidden layer.

    Args:
        channels: of the convolutions.
        hidden: units of the hidden layer.
    """

    def __init__(self, channels: tuple[int, int], hidden: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels[0], 3, padding=1)
        self.second = nn.Conv2d(*channels, 3, stride=2, padding=1)
        self.hidden = nn.Linear(channels[1] * (SIDE // 2) ** 2, hidden)
        self.head = nn.Linear(hidden, DIGITS)

    def forward(self, images: Tensor) -> Tensor:
        # SiLU is smooth. With ReLU, Adam makes large steps of the gradients that rounding alone switches on and off.
        found = functional.silu(self.second(functional.silu(self.first(images[:, None]))))
        return self.head(functional.silu(self.hidden(found.flatten(1))))


def teachers_loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(network(images), labels)


def students_loss(network: nn.Module, images: Tensor, labels: Tensor, probabilities: Tensor, alpha: Tensor) -> Tensor:
    """That of the twin, from the labels alone, for an alpha of 0."""
    logits = network(images)
    own = functional.log_softmax(logits / TEMPERATURE, 1)
    # Softened probabilities have gradients smaller by the square of the temperature (Hinton et al., 2015, section 2).
    from_teacher = TEMPERATURE**2 * functional.kl_div(own, probabilities, reduction="batchmean")
    return alpha * from_teacher + (1 - alpha) * functional.cross_entropy(logits, labels)


ROWS = {0: torch.export.Dim("rows")}
TEACHER_STEP = TorchStep(
    TEACHER,
    lambda: Classifier((16, 32), 64),
    teachers_loss,
    lambda network: torch.optim.AdamW(network.parameters(), TEACHER_RATE, weight_decay=0.03),
    (ROWS, ROWS),
)
STUDENT_STEP = TorchStep(
    STUDENT,
    lambda: Classifier((4, 8), 24),
    students_loss,
    lambda network: torch.optim.Adam(network.parameters(), STUDENT_RATE),
    (ROWS, ROWS, ROWS, {}),
)
