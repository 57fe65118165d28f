"""Patches of photographs, and how well they are told with how many numbers.

Letters: N patches of P = SIDE * SIDE pixels, K atoms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_sample_images

SIDE = 8
PIXELS = SIDE * SIDE
HELD_OUT_ROWS = 26 * SIDE
"""So many of the 427 rows of the photographs are held out, the upper ones."""
PATCHES = 40000


def photographs() -> list[np.ndarray]:
    """Both of them, (427, 640), brightness from 0 to 1 in float32."""
    return [(image.mean(axis=2) / 255).astype(np.float32) for image in load_sample_images().images]


def training_patches(seed: int) -> np.ndarray:
    """Patches (N, P) from all over the parts to learn from, as many of either photograph, their means removed."""
    rng = np.random.default_rng(seed)
    parts = []
    for image in photographs():
        windows = np.lib.stride_tricks.sliding_window_view(image[HELD_OUT_ROWS:], (SIDE, SIDE))
        rows, columns = (rng.integers(size, size=PATCHES // 2) for size in windows.shape[:2])
        parts.append(windows[rows, columns].reshape(-1, PIXELS))
    patches = np.concatenate(parts)
    return patches - means(patches)


def means(patches: np.ndarray) -> np.ndarray:
    """Of each patch, (N, 1)."""
    return patches.mean(axis=1, keepdims=True)


def cut(image: np.ndarray) -> np.ndarray:
    """The patches (N, P) side by side that an image (H, W) consists of; H and W are multiples of SIDE."""
    rows, columns = (size // SIDE for size in image.shape)
    return image.reshape(rows, SIDE, columns, SIDE).swapaxes(1, 2).reshape(rows * columns, PIXELS)


def put_together(patches: np.ndarray, columns: int) -> np.ndarray:
    """The image of patches (N, P), so many side by side."""
    return patches.reshape(-1, columns, SIDE, SIDE).swapaxes(1, 2).reshape(-1, columns * SIDE)


def held_out_patches() -> np.ndarray:
    """All patches (N, P) side by side of the held-out parts, their means removed."""
    patches = np.concatenate([cut(image[:HELD_OUT_ROWS]) for image in photographs()])
    return patches - means(patches)


def decibels(patches: np.ndarray, told: np.ndarray) -> float:
    """The peak signal-to-noise ratio of what is told, for brightness from 0 to 1."""
    return float(-10 * np.log10(np.mean((patches.astype(np.float64) - told) ** 2)))


class Components(NamedTuple):
    """Principal components: orthogonal patches (P, P), those first by which the patches vary most."""

    patches: np.ndarray

    @classmethod
    def of(cls, patches: np.ndarray) -> Components:
        """Those of patches (N, P) without means."""
        exact = patches.astype(np.float64)
        return cls(np.linalg.eigh(exact.T @ exact)[1].T[::-1])

    def first(self, patches: np.ndarray, count: int) -> np.ndarray:
        """Patches (N, P) told with their first coefficients, so many of each."""
        kept = self.patches[:count]
        return patches @ kept.T @ kept

    def largest(self, patches: np.ndarray, count: float) -> np.ndarray:
        """Patches (N, P) told with their largest coefficients, so many of each on average, some with more of them."""
        coefficients = patches @ self.patches.T
        kept = np.argsort(-np.abs(coefficients), axis=None)[: round(count * len(patches))]
        sparse = np.zeros(coefficients.size)
        sparse[kept] = coefficients.flat[kept]
        return sparse.reshape(coefficients.shape) @ self.patches
