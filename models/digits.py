"""Images of single handwritten digits: sizes, one-hot labels, augmentation.

Shapes: N images, P = 8 * 8 pixels, K = 10 classes.
"""

import numpy as np

SIDE = 8
PIXELS = SIDE * SIDE
DIGITS = 10


def one_hot(labels: np.ndarray) -> np.ndarray:
    """Labels (N,) to float32 targets (N, K)."""
    return np.eye(DIGITS, dtype=np.float32)[labels]


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images (N, P), each shifted at random by -1, 0 or 1 pixel along both axes, padded with 0."""
    padded = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (SIDE, SIDE), axis=(1, 2))  # (N, 3, 3, 8, 8)
    down, right = rng.integers(3, size=(2, len(images)))
    return windows[np.arange(len(images)), down, right].reshape(-1, PIXELS)
