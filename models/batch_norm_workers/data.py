"""scikit-learn's handwritten digits with random brightness and contrast."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

TRAINED = 1280
"""Size of the training set: the first of the 1797 digits; the others are held out."""
BRIGHTNESS = -2.0, 2.0
"""Range of the number that is added to an image."""
CONTRAST = 0.25, 4.0
"""Range of the factor that an image with pixels in [0, 1] is multiplied by."""


def jittered(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Change brightness and contrast of each image at random.

    Args:
        images: (N, H, W), pixels in [0, 1].
        rng: draws the contrast, log-uniform, and the brightness, uniform.

    Returns:
        (N, H, W), contrast * image + brightness.
    """
    count = len(images)
    contrast = np.exp(rng.uniform(np.log(CONTRAST[0]), np.log(CONTRAST[1]), (count, 1, 1)))
    brightness = rng.uniform(*BRIGHTNESS, (count, 1, 1))
    return images * contrast + brightness


def digits(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Training set and held-out set.

    Args:
        seed: of brightness and contrast; the split does not depend on it.

    Returns:
        Each with `images` (N, 1, 8, 8), float32, and `labels` (N,), int64.
    """
    pixels, labels = load_digits(return_X_y=True)
    images = jittered(pixels.reshape(-1, 8, 8) / 16.0, np.random.default_rng(seed))
    arrays = {"images": images[:, None].astype(np.float32), "labels": labels.astype(np.int64)}
    parts = slice(0, TRAINED), slice(TRAINED, None)
    trained, held_out = ({name: array[part] for name, array in arrays.items()} for part in parts)
    return trained, held_out
