"""What the network of `digits` is trained with, and on: scikit-learn's images of handwritten digits."""

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 0
HIDDEN = (256,)
EPOCHS = 100
BATCH = 64
LEARNING_RATE = 1.0
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


def learning_rate(epoch: int) -> float:
    """Falls in a straight line, to 0 where training ends."""
    return LEARNING_RATE * (1 - epoch / EPOCHS)
