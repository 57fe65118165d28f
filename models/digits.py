"""Images of single handwritten digits, 8x8 pixels, and what a classifier of them is trained with.

Letters: N images, P = 64 pixels, K = 10 digits.
"""

import numpy as np

SIDE = 8
PIXELS = SIDE * SIDE
DIGITS = 10


def one_hot(labels: np.ndarray) -> np.ndarray:
    """From labels (N) to targets (N, K)."""
    return np.eye(DIGITS, dtype=np.float32)[labels]


def nudged(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The images (N, P), each moved by up to one pixel to any side: more to learn from than the images as they are."""
    padded = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    moved = np.lib.stride_tricks.sliding_window_view(padded, (SIDE, SIDE), axis=(1, 2))  # (N, 3, 3, 8, 8)
    down, right = rng.integers(3, size=(2, len(images)))
    return moved[np.arange(len(images)), down, right].reshape(-1, PIXELS)
