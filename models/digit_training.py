"""Data set and hyperparameters of a classifier of scikit-learn's images of handwritten digits."""

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from models import digits

SEED = 0
HIDDEN = (256,)
BATCH = 64
LEARNING_RATE = 1.0
COPIES = 5
"""Copies of each image in an epoch, each shifted by up to one pixel."""
EPOCHS = 20
REQUIRED_ACCURACY = 0.95
"""On the held-out images."""


class Digits(NamedTuple):
    """Training set and held-out set: images (N, 64), float32 in [0, 1], and labels (N,)."""

    images: np.ndarray
    labels: np.ndarray
    held_out_images: np.ndarray
    held_out_labels: np.ndarray


def load() -> Digits:
    """All images; a fifth of each class is held out."""
    images, labels = load_digits(return_X_y=True)
    learned, held_out, learned_labels, held_out_labels = train_test_split(
        (images / 16).astype(np.float32), labels, test_size=0.2, stratify=labels, random_state=SEED
    )
    return Digits(learned, learned_labels, held_out, held_out_labels)


def augmented(data: Digits) -> tuple[np.ndarray, np.ndarray]:
    """The samples of an epoch: images (N, 64) and one-hot labels (N, 10), N = COPIES times the training set."""
    rng = np.random.default_rng(SEED)
    images = np.concatenate([digits.shifted(data.images, rng) for _ in range(COPIES)])
    return images, digits.one_hot(np.tile(data.labels, COPIES))


def learning_rate(done: float) -> float:
    """Linear decay to 0; `done`, in [0, 1], is the fraction of the training that is done."""
    return LEARNING_RATE * (1 - done)
