"""Patches of photographs, their reconstruction error, and principal components as a baseline.

Shapes: N patches of P = SIDE * SIDE pixels, K atoms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_sample_images

SIDE = 8
PIXELS = SIDE * SIDE
HELD_OUT_ROWS = 26 * SIDE
"""Rows held out of the 427 of a photograph, from the top."""
PATCHES = 40000


def photographs() -> list[np.ndarray]:
    """Two images (427, 640), float32 in [0, 1]."""
    return [(image.mean(axis=2) / 255).astype(np.float32) for image in load_sample_images().images]


def training_patches(seed: int) -> np.ndarray:
    """Patches (N, P) at random positions, half of them from each photograph, with their means subtracted."""
    rng = np.random.default_rng(seed)
    parts = []
    for image in photographs():
        windows = np.lib.stride_tricks.sliding_window_view(image[HELD_OUT_ROWS:], (SIDE, SIDE))
        rows, columns = (rng.integers(size, size=PATCHES // 2) for size in windows.shape[:2])
        parts.append(windows[rows, columns].reshape(-1, PIXELS))
    patches = np.concatenate(parts)
    return patches - means(patches)


def means(patches: np.ndarray) -> np.ndarray:
    """Mean of each patch, (N, 1)."""
    return patches.mean(axis=1, keepdims=True)


def to_patches(image: np.ndarray) -> np.ndarray:
    """Split an image (H, W) into patches (N, P) without overlap; H and W are multiples of SIDE."""
    rows, columns = (size // SIDE for size in image.shape)
    return image.reshape(rows, SIDE, columns, SIDE).swapaxes(1, 2).reshape(rows * columns, PIXELS)


def from_patches(patches: np.ndarray, columns: int) -> np.ndarray:
    """Inverse of `to_patches`: the image of patches (N, P), `columns` in each row."""
    return patches.reshape(-1, columns, SIDE, SIDE).swapaxes(1, 2).reshape(-1, columns * SIDE)


def held_out_patches() -> np.ndarray:
    """All patches (N, P) of the held-out rows, with their means subtracted."""
    patches = np.concatenate([to_patches(image[:HELD_OUT_ROWS]) for image in photographs()])
    return patches - means(patches)


def psnr(patches: np.ndarray, reconstruction: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB, for pixels in [0, 1].

    Args:
        patches: (N, P).
        reconstruction: (N, P).
    """
    return float(-10 * np.log10(np.mean((patches.astype(np.float64) - reconstruction) ** 2)))


class Components(NamedTuple):
    """Principal components, the rows of an orthogonal matrix (P, P), in the order of decreasing variance."""

    patches: np.ndarray

    @classmethod
    def of(cls, patches: np.ndarray) -> Components:
        """The principal components of patches (N, P) with mean 0."""
        exact = patches.astype(np.float64)
        return cls(np.linalg.eigh(exact.T @ exact)[1].T[::-1])

    def first(self, patches: np.ndarray, count: int) -> np.ndarray:
        """Patches (N, P) reconstructed from their first `count` coefficients."""
        kept = self.patches[:count]
        return patches @ kept.T @ kept

    def largest(self, patches: np.ndarray, count: float) -> np.ndarray:
        """Patches (N, P) reconstructed from the count * N largest coefficients of all patches."""
        coefficients = patches @ self.patches.T
        kept = np.argsort(-np.abs(coefficients), axis=None)[: round(count * len(patches))]
        sparse = np.zeros(coefficients.size)
        sparse[kept] = coefficients.flat[kept]
        return sparse.reshape(coefficients.shape) @ self.patches
