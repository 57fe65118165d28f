"""The trainings of teacher and student, whose steps are captured from `network`; no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.distillation import data
from models.training import StepFiles, Training

COPIES = 4
TEMPERATURE = 8.0
"""Divisor of the logits of both networks in the divergence."""
ALPHA = 0.9
"""Weight of the divergence in the student's loss; that of the cross entropy is 1 - ALPHA."""
TEACHER_RATE, STUDENT_RATE = 3e-3, 5e-3


def teacher_samples(seed: int) -> dict[str, np.ndarray]:
    """The training set and `COPIES` augmented copies of each image."""
    learned = data.split(seed).learned
    copies = data.moved(learned, COPIES, np.random.default_rng([seed, 0]))
    return {
        "images": np.concatenate([learned.images, copies.images]),
        "labels": np.concatenate([learned.labels, copies.labels]),
    }


def student_samples(seed: int) -> dict[str, np.ndarray]:
    """The training set, with `by_class_means` as probabilities; a training replaces these by its teacher's."""
    learned = data.split(seed).learned
    return {
        "images": learned.images,
        "labels": learned.labels,
        "probabilities": data.by_class_means(learned),
        "alpha": np.array(ALPHA, np.float32),
    }


def softened(logits: np.ndarray) -> np.ndarray:
    """The teacher's probabilities (N, K) at the temperature, from its logits (N, K)."""
    return data.softmax(logits.astype(float) / TEMPERATURE)


FOLDER = Path(__file__).parent
TEACHER = Training("Distillation, teacher", StepFiles(FOLDER, "teacher"), teacher_samples, batch_size=64)
STUDENT = Training(
    "Distillation, student", StepFiles(FOLDER, "student"), student_samples, batch_size=64, unbatched=("alpha",)
)
