"""Pictures on which handwritten digits are strewn, some of which are rare; and how well these were found.

Letters: M digit images of P = 64 pixels, N pictures of SIDE x SIDE pixels, K = 10 digits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score

from models import digit_training, digits

CELLS = 3
"""A picture has so many cells in a row, and as many rows of them. A cell holds one digit."""
SIDE = CELLS * digits.SIDE
SHIFT = 2
"""By so many pixels a digit is moved from its cell to each side, at most; not over the edge of the picture."""
NOISE = 0.1
"""The standard deviation of what is added to the brightness, which is 0 to 1, of every pixel."""
SHARES = 0.5 * 0.7 ** np.arange(digits.DIGITS)
"""In such a share of the pictures each digit is."""
RARE = SHARES < 0.1

PICTURES = 10000
HELD_OUT_PICTURES = 4000


class Pictures(NamedTuple):
    """Pictures (N, SIDE, SIDE) and for each digit whether it is there, 0 or 1, (N, K); both float32."""

    images: np.ndarray
    labels: np.ndarray


def compose(images: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator) -> Pictures:
    """Pictures of digits drawn from images (M, P) with labels (M,) at random; each digit is there once or not at all.

    Where two of them overlap, the brighter one counts.
    """
    there = rng.random((count, digits.DIGITS)) < SHARES
    there &= np.cumsum(there, axis=1) <= CELLS**2  # no picture has room for more
    cells = rng.permuted(np.tile(np.arange(CELLS**2), (count, 1)), axis=1)
    numbers, drawn = np.nonzero(there)
    taken = cells[numbers, np.cumsum(there, axis=1)[there] - 1]
    corners = np.stack(np.divmod(taken, CELLS), axis=1) * digits.SIDE
    corners += rng.integers(-SHIFT, SHIFT + 1, size=corners.shape)
    corners = np.clip(corners, 0, SIDE - digits.SIDE)
    pictures = np.zeros((count, SIDE, SIDE), np.float32)
    of_digit = [images[labels == digit].reshape(-1, digits.SIDE, digits.SIDE) for digit in range(digits.DIGITS)]
    for number, digit, (top, left) in zip(numbers, drawn, corners, strict=True):
        cell = pictures[number, top : top + digits.SIDE, left : left + digits.SIDE]
        np.maximum(cell, rng.choice(of_digit[digit]), out=cell)
    pictures += NOISE * rng.standard_normal(pictures.shape, np.float32)
    return Pictures(pictures, there.astype(np.float32))


def training_pictures(seed: int) -> Pictures:
    """Those to learn from."""
    data = digit_training.load()
    return compose(data.images, data.labels, PICTURES, np.random.default_rng([seed, 0]))


def held_out_pictures(seed: int) -> Pictures:
    """Those of digits that are on none of the pictures to learn from."""
    data = digit_training.load()
    return compose(data.held_out_images, data.held_out_labels, HELD_OUT_PICTURES, np.random.default_rng([seed, 1]))


def balancing(labels: np.ndarray) -> np.ndarray:
    """From labels (N, K) to the pos_weight (K,) with which pictures with a digit count as much as those without it."""
    positives = labels.sum(axis=0)
    return ((len(labels) - positives) / np.maximum(positives, 1)).astype(np.float32)


class Found(NamedTuple):
    """How well each digit is found, float64 (K,).

    Attributes:
        recall: the share of the pictures with the digit of which the network says so.
        precision: the share of the pictures of which the network says so that have it; 0 where it never says so.
        average_precision: the mean of the precision over all recalls that some threshold gives.
    """

    recall: np.ndarray
    precision: np.ndarray
    average_precision: np.ndarray


def found(logits: np.ndarray, labels: np.ndarray, threshold: np.ndarray | float = 0.5) -> Found:
    """From logits (N, K) and labels (N, K); the digits are there whose probability is above the threshold, (K,)."""
    said = logits > np.log(threshold / (1 - np.asarray(threshold)))
    right = (said * labels).sum(axis=0, dtype=np.float64)
    return Found(
        right / labels.sum(axis=0),
        right / np.maximum(said.sum(axis=0), 1),
        np.array([average_precision_score(labels[:, k], logits[:, k]) for k in range(labels.shape[1])]),
    )
