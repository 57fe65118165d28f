"""Handwritten digits under light of all kinds."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

TRAINED = 1280
"""So many of the 1797 digits are trained on; those that come after them are held out."""
DARKEST, BRIGHTEST = -2.0, 2.0
"""What is added to a picture."""
FAINTEST, STRONGEST = 0.25, 4.0
"""What a picture of numbers from 0 to 1 is multiplied by."""


def lit(pictures: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Pictures (N, H, W) of numbers from 0 to 1, each under a light of its own.

    Contrasts are drawn evenly on a logarithmic scale.
    """
    count = len(pictures)
    contrast = np.exp(rng.uniform(np.log(FAINTEST), np.log(STRONGEST), (count, 1, 1)))
    brightness = rng.uniform(DARKEST, BRIGHTEST, (count, 1, 1))
    return pictures * contrast + brightness


def digits(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Digits to train on and digits that are held out.

    Returns:
        Twice `images` (N, 1, 8, 8), float32, and `labels` (N), int64. The light depends on the seed, but not which
        digits are held out.
    """
    pixels, labels = load_digits(return_X_y=True)
    pictures = lit(pixels.reshape(-1, 8, 8) / 16.0, np.random.default_rng(seed))
    arrays = {"images": pictures[:, None].astype(np.float32), "labels": labels.astype(np.int64)}
    parts = slice(0, TRAINED), slice(TRAINED, None)
    trained, held_out = ({name: array[part] for name, array in arrays.items()} for part in parts)
    return trained, held_out
