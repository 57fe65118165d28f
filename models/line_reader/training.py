"""The training of the reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.line_reader import data
from models.training import Arrays, StepFiles, Training

EPOCHS = 12
QUICK_EPOCHS = 2
START_RATE, PEAK_RATE = 0.001, 0.005
"""Learning rate of the first step, and its maximum."""
WARM_UP = 0.1
"""Fraction of the training in which the learning rate increases."""

CLASSES_SCALE = 0.1
"""Factor of the initial weights of the last layer. With larger weights rounding changes the first losses."""


def initialize(state: Arrays, rng: np.random.Generator) -> Arrays:
    """Scale the weights of the last layer."""
    return state | {"classes.weight": state["classes.weight"] * np.float32(CLASSES_SCALE)}


def learning_rate(done: float) -> float:
    """Linear warm-up to the peak, then linear decay to 0; `done`, in [0, 1], is the fraction of the training."""
    if done < WARM_UP:
        return START_RATE + (PEAK_RATE - START_RATE) * done / WARM_UP
    return PEAK_RATE * (1 - done) / (1 - WARM_UP)


TRAINING = Training(
    title="line reader",
    files=StepFiles(Path(__file__).parent, "step"),
    samples=data.training_lines,
    batch_size=32,
    initialize=initialize,
)
