"""The training, whose step is captured from `network`; no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.sparse_coding import data
from models.training import Arrays, StepFiles, Training

LEARNING_RATE = 0.015
START_STEP = 0.5


def samples(seed: int) -> Arrays:
    return {"patches": data.training_patches(seed)}


def initialize(state: Arrays, rng: np.random.Generator) -> Arrays:
    """Equal step sizes, three random orthogonal bases as dictionary: step sizes below 2/3 do not diverge with it."""
    atoms, pixels = state["dictionary"].shape
    bases = np.linalg.qr(rng.normal(size=(atoms // pixels, pixels, pixels)))[0]
    dictionary = bases.reshape(atoms, pixels).astype(state["dictionary"].dtype)
    return state | {"dictionary": dictionary, "steps": np.full_like(state["steps"], START_STEP)}


TRAINING = Training(
    "Sparse coding",
    StepFiles(Path(__file__).parent, "step"),
    samples,
    batch_size=200,
    initialize=initialize,
)
