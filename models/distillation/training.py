"""The trainings whose steps `network` makes, of the teacher and of the student; no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.distillation import data
from models.training import StepFiles, Training

COPIES = 4
TEMPERATURE = 8.0
"""What the logits of both networks are divided by where their probabilities are compared."""
ALPHA = 0.9
"""The weight of the teacher's probabilities in the student's loss; that of the labels is the rest."""
TEACHER_RATE, STUDENT_RATE = 3e-3, 5e-3


def teachers_samples(seed: int) -> dict[str, np.ndarray]:
    """The images with their labels, and moved copies of them."""
    learned = data.split(seed).learned
    copies = data.moved(learned, COPIES, np.random.default_rng([seed, 0]))
    return {
        "images": np.concatenate([learned.images, copies.images]),
        "labels": np.concatenate([learned.labels, copies.labels]),
    }


def students_samples(seed: int) -> dict[str, np.ndarray]:
    """The images with their labels and a formula's probabilities, for which a training puts those of its teacher."""
    learned = data.split(seed).learned
    return {
        "images": learned.images,
        "labels": learned.labels,
        "probabilities": data.by_class_means(learned),
        "alpha": np.array(ALPHA, np.float32),
    }


def softened(logits: np.ndarray) -> np.ndarray:
    """The teacher's probabilities, as the student's loss takes them."""
    return data.softmax(logits.astype(float) / TEMPERATURE)


FOLDER = Path(__file__).parent
TEACHER = Training("Distillation, teacher", StepFiles(FOLDER, "teacher"), teachers_samples, batch_size=64)
STUDENT = Training(
    "Distillation, student", StepFiles(FOLDER, "student"), students_samples, batch_size=64, whole=("alpha",)
)
