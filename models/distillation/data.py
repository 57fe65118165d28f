"""scikit-learn's digits, split into a training set and a held-out set, and augmented copies of them; no torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from models.digits import SIDE

HELD_OUT = 597
TURN, SHIFT, SCALE, NOISE = 0.2, 1.0, 0.1, 0.05
"""Maximal rotation in radians, shift in pixels, relative change of scale; standard deviation of the noise."""


class Digits(NamedTuple):
    """Images (N, 8, 8), float32 in [0, 1], and labels (N,)."""

    images: np.ndarray
    labels: np.ndarray


class Split(NamedTuple):
    """Training set and held-out set."""

    learned: Digits
    held_out: Digits


def split(seed: int) -> Split:
    """A stratified split of all digits, drawn with the seed."""
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
    """Random rotations, scalings and shifts of the images, with noise: `copies` of each, with their labels."""
    count = copies * len(digits.images)
    turns, scales = rng.uniform(-TURN, TURN, count), 1 + rng.uniform(-SCALE, SCALE, count)
    shifts, noise = rng.uniform(-SHIFT, SHIFT, (count, 2)), rng.normal(0, NOISE, (count, SIDE, SIDE))
    originals = np.tile(digits.images, (copies, 1, 1))
    images = [warped(*one) for one in zip(originals, turns, scales, shifts, strict=True)]
    return Digits((np.array(images) + noise).astype(np.float32), np.tile(digits.labels, copies))


def warped(image: np.ndarray, turn: float, scale: float, shift: np.ndarray) -> np.ndarray:
    """An affine transformation of an image, with bilinear interpolation; pixels outside of the image are 0.

    Args:
        image: (H, W).
        turn: angle of the rotation about the centre, in radians.
        scale: factor of the scaling about the centre.
        shift: (2,), pixels down and to the right, after rotation and scaling.
    """
    inverse = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) / scale
    centre = (np.array(image.shape) - 1) / 2
    return ndimage.affine_transform(image.astype(float), inverse, centre - inverse @ (centre + shift), order=1)


def by_class_means(digits: Digits) -> np.ndarray:
    """Probabilities (N, 10): the softmax of the negative squared distances to the mean image of each class.

    They replace the teacher's probabilities where a training is compared with PyTorch's: those of a trained teacher
    differ between machines in their last bits.
    """
    pixels = digits.images.reshape(len(digits.images), -1).astype(float)
    means = np.stack([pixels[digits.labels == k].mean(axis=0) for k in range(10)])
    distances = ((pixels[:, None] - means) ** 2).sum(axis=2)
    return softmax(-distances)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax over axis 1 of logits (N, K), as float32."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(np.float32)
