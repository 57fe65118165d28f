"""The digits: those to learn from, those held out, and moved copies of them. scikit-learn's images; no torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from models.digits import SIDE

HELD_OUT = 597
TURN, SHIFT, SCALE, NOISE = 0.2, 1.0, 0.1, 0.05
"""How far copies are moved at most: turned, in radians; shifted, in pixels; scaled, as a share; and their noise."""


class Digits(NamedTuple):
    """Images (N, 8, 8), brightness from 0 to 1, and their labels (N)."""

    images: np.ndarray
    labels: np.ndarray


class Split(NamedTuple):
    """The digits to learn from, and those held out."""

    learned: Digits
    held_out: Digits


def split(seed: int) -> Split:
    """All digits there are; the seed chooses which are held out, as large a share of each class."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(
        (images / 16).astype(np.float32).reshape(-1, SIDE, SIDE),
        labels,
        test_size=HELD_OUT,
        stratify=labels,
        random_state=seed,
    )
    return Split(Digits(parts[0], parts[2]), Digits(parts[1], parts[3]))


def moved(digits: Digits, copies: int, rng: np.random.Generator) -> Digits:
    """So many copies of each image, turned, scaled and shifted by chance, and with noise."""
    count = copies * len(digits.images)
    turns, scales = rng.uniform(-TURN, TURN, count), 1 + rng.uniform(-SCALE, SCALE, count)
    shifts, noise = rng.uniform(-SHIFT, SHIFT, (count, 2)), rng.normal(0, NOISE, (count, SIDE, SIDE))
    originals = np.tile(digits.images, (copies, 1, 1))
    images = [warped(*one) for one in zip(originals, turns, scales, shifts, strict=True)]
    return Digits((np.array(images) + noise).astype(np.float32), np.tile(digits.labels, copies))


def warped(image: np.ndarray, turn: float, scale: float, shift: np.ndarray) -> np.ndarray:
    """An image (H, W) turned about its centre and scaled, then shifted down and to the right; black comes in.

    Pixels in between are interpolated.
    """
    # From places in the result to places in the image.
    back = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) / scale
    centre = (np.array(image.shape) - 1) / 2
    return ndimage.affine_transform(image.astype(float), back, centre - back @ (centre + shift), order=1)


def by_class_means(digits: Digits) -> np.ndarray:
    """Probabilities (N, 10) by a closed formula, from how far the images are from the mean images of the classes.

    They stand in for a teacher's where a training is compared with PyTorch's: the last bits of a trained teacher's are
    other ones on every machine.
    """
    pixels = digits.images.reshape(len(digits.images), -1).astype(float)
    means = np.stack([pixels[digits.labels == k].mean(axis=0) for k in range(10)])
    distances = ((pixels[:, None] - means) ** 2).sum(axis=2)
    return softmax(-distances)


def softmax(logits: np.ndarray) -> np.ndarray:
    """The probabilities (N, K) of logits."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)
