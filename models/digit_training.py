"""What a classifier of digits is trained with, and on: scikit-learn's images of handwritten digits."""

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from models import digits

SEED = 0
HIDDEN = (256,)
BATCH = 64
LEARNING_RATE = 1.0
# An epoch shows each image so many times, each time moved by up to a pixel.
COPIES = 5
EPOCHS = 20
# Of the held-out images.
REQUIRED_ACCURACY = 0.95


class Digits(NamedTuple):
    """Images (N, 64), brightness from 0 to 1, and their labels (N): those to learn from, and those held out."""

    images: np.ndarray
    labels: np.ndarray
    held_out_images: np.ndarray
    held_out_labels: np.ndarray


def load() -> Digits:
    """All images there are, a fifth of them held out."""
    images, labels = load_digits(return_X_y=True)
    learned, held_out, learned_labels, held_out_labels = train_test_split(
        (images / 16).astype(np.float32), labels, test_size=0.2, stratify=labels, random_state=SEED
    )
    return Digits(learned, learned_labels, held_out, held_out_labels)


def shown(data: Digits) -> tuple[np.ndarray, np.ndarray]:
    """What an epoch shows: images (N, 64) and one-hot labels (N, 10)."""
    rng = np.random.default_rng(SEED)
    images = np.concatenate([digits.nudged(data.images, rng) for _ in range(COPIES)])
    return images, digits.one_hot(np.tile(data.labels, COPIES))


def learning_rate(done: float) -> float:
    """Falls in a straight line, to 0 where training ends; `done` is the share of the training that is done."""
    return LEARNING_RATE * (1 - done)
