"""The PyTorch modules of teacher and student, their losses and their optimizers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.digits import DIGITS, SIDE
from models.distillation.training import STUDENT, STUDENT_RATE, TEACHER, TEACHER_RATE, TEMPERATURE
from models.torch_step import TorchStep


class Classifier(nn.Module):
    """Two convolutions and a hidden layer: images (N, 8, 8) to logits (N, 10).

    Args:
        channels: output channels of the convolutions.
        hidden: units of the hidden layer.
    """

    def __init__(self, channels: tuple[int, int], hidden: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels[0], 3, padding=1)
        self.second = nn.Conv2d(*channels, 3, stride=2, padding=1)
        self.hidden = nn.Linear(channels[1] * (SIDE // 2) ** 2, hidden)
        self.head = nn.Linear(hidden, DIGITS)

    def forward(self, images: Tensor) -> Tensor:
        # SiLU, for the gradient of ReLU is discontinuous: rounding would make Adam's updates differ from PyTorch's.
        x = functional.silu(self.second(functional.silu(self.first(images[:, None]))))
        return self.head(functional.silu(self.hidden(x.flatten(1))))


def teacher_loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(network(images), labels)


def student_loss(network: nn.Module, images: Tensor, labels: Tensor, probabilities: Tensor, alpha: Tensor) -> Tensor:
    """alpha * T**2 * KL(teacher || student) + (1 - alpha) * cross entropy; the twin has alpha = 0.

    Args:
        network: the student.
        images: (N, 8, 8).
        labels: (N,).
        probabilities: (N, 10), the teacher's, at temperature T.
        alpha: scalar.
    """
    logits = network(images)
    log_probabilities = functional.log_softmax(logits / TEMPERATURE, 1)
    # The gradients of softened probabilities scale with 1 / T**2 (Hinton et al., 2015, section 2).
    divergence = TEMPERATURE**2 * functional.kl_div(log_probabilities, probabilities, reduction="batchmean")
    return alpha * divergence + (1 - alpha) * functional.cross_entropy(logits, labels)


ROWS = {0: torch.export.Dim("rows")}
TEACHER_STEP = TorchStep(
    TEACHER,
    lambda: Classifier((16, 32), 64),
    teacher_loss,
    lambda network: torch.optim.AdamW(network.parameters(), TEACHER_RATE, weight_decay=0.03),
    (ROWS, ROWS),
)
STUDENT_STEP = TorchStep(
    STUDENT,
    lambda: Classifier((4, 8), 24),
    student_loss,
    lambda network: torch.optim.Adam(network.parameters(), STUDENT_RATE),
    (ROWS, ROWS, ROWS, {}),
)
