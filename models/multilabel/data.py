"""Pictures with several handwritten digits, some of which are rare, and metrics of their classification.

Shapes: M digit images of P = 64 pixels, N pictures of SIDE x SIDE pixels, K = 10 classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score

from models import digit_training, digits

CELLS = 3
"""A picture is a grid of CELLS x CELLS cells, with at most one digit each."""
SIDE = CELLS * digits.SIDE
SHIFT = 2
"""Maximal offset of a digit from its cell along each axis, in pixels; clipped at the edges of the picture."""
NOISE = 0.1
"""Standard deviation of the Gaussian noise of pixels, which are in [0, 1]."""
SHARES = 0.5 * 0.7 ** np.arange(digits.DIGITS)
"""(K,), probability that a picture has the digit."""
RARE = SHARES < 0.1
"""(K,), bool."""

PICTURES = 10000
HELD_OUT_PICTURES = 4000


class Pictures(NamedTuple):
    """Pictures (N, SIDE, SIDE) and labels (N, K), 1 where the picture has the digit; both float32."""

    images: np.ndarray
    labels: np.ndarray


def compose(images: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator) -> Pictures:
    """Random pictures, each with at most one digit of each class; where digits overlap, the pixel is their maximum.

    Args:
        images: (M, P), to draw the digits from.
        labels: (M,).
        count: N, number of pictures.
        rng: draws labels, images, positions and noise.
    """
    present = rng.random((count, digits.DIGITS)) < SHARES
    present &= np.cumsum(present, axis=1) <= CELLS**2  # one digit per cell
    cells = rng.permuted(np.tile(np.arange(CELLS**2), (count, 1)), axis=1)
    numbers, classes = np.nonzero(present)
    taken = cells[numbers, np.cumsum(present, axis=1)[present] - 1]
    corners = np.stack(np.divmod(taken, CELLS), axis=1) * digits.SIDE
    corners += rng.integers(-SHIFT, SHIFT + 1, size=corners.shape)
    corners = np.clip(corners, 0, SIDE - digits.SIDE)
    pictures = np.zeros((count, SIDE, SIDE), np.float32)
    by_class = [images[labels == digit].reshape(-1, digits.SIDE, digits.SIDE) for digit in range(digits.DIGITS)]
    for number, digit, (top, left) in zip(numbers, classes, corners, strict=True):
        cell = pictures[number, top : top + digits.SIDE, left : left + digits.SIDE]
        np.maximum(cell, rng.choice(by_class[digit]), out=cell)
    pictures += NOISE * rng.standard_normal(pictures.shape, np.float32)
    return Pictures(pictures, present.astype(np.float32))


def training_pictures(seed: int) -> Pictures:
    """The training set."""
    data = digit_training.load()
    return compose(data.images, data.labels, PICTURES, np.random.default_rng([seed, 0]))


def held_out_pictures(seed: int) -> Pictures:
    """The held-out set, composed of held-out images of digits."""
    data = digit_training.load()
    return compose(data.held_out_images, data.held_out_labels, HELD_OUT_PICTURES, np.random.default_rng([seed, 1]))


def balancing(labels: np.ndarray) -> np.ndarray:
    """The pos_weight (K,) that balances labels (N, K): negatives / positives of each class."""
    positives = labels.sum(axis=0)
    return ((len(labels) - positives) / np.maximum(positives, 1)).astype(np.float32)


class Metrics(NamedTuple):
    """Metrics of each class, float64 (K,).

    Attributes:
        recall: true positives / positives.
        precision: true positives / predicted positives; 0 without any.
        average_precision: `sklearn.metrics.average_precision_score`.
    """

    recall: np.ndarray
    precision: np.ndarray
    average_precision: np.ndarray


def metrics(logits: np.ndarray, labels: np.ndarray, threshold: np.ndarray | float = 0.5) -> Metrics:
    """Metrics of each class.

    Args:
        logits: (N, K).
        labels: (N, K), 0 or 1.
        threshold: scalar or (K,), on the probabilities.
    """
    predicted = logits > np.log(threshold / (1 - np.asarray(threshold)))
    true_positives = (predicted * labels).sum(axis=0, dtype=np.float64)
    return Metrics(
        true_positives / labels.sum(axis=0),
        true_positives / np.maximum(predicted.sum(axis=0), 1),
        np.array([average_precision_score(labels[:, k], logits[:, k]) for k in range(labels.shape[1])]),
    )
