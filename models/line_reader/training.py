"""The training of the reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.line_reader import data
from models.training import Arrays, StepFiles, Training

EPOCHS = 12
QUICK_EPOCHS = 2
START_RATE, PEAK_RATE = 0.001, 0.005
"""The learning rate of the first step, and the largest."""
WARM_UP = 0.1
"""The share of the training in which the rate rises."""

CLASSES_SCALE = 0.1
"""Of the last layer's weights where training starts: all classes are about as likely there, and the first steps small.
Where they are larger, the losses of the first steps depend on how sums are rounded."""


def start(state: Arrays, rng: np.random.Generator) -> Arrays:
    """As drawn, with a last layer that says little."""
    return state | {"classes.weight": state["classes.weight"] * np.float32(CLASSES_SCALE)}


def learning_rate(done: float) -> float:
    """Rises in a straight line to the peak and falls to 0 at the end; `done` is the share of the training."""
    if done < WARM_UP:
        return START_RATE + (PEAK_RATE - START_RATE) * done / WARM_UP
    return PEAK_RATE * (1 - done) / (1 - WARM_UP)


TRAINING = Training(
    title="line reader",
    files=StepFiles(Path(__file__).parent, "step"),
    samples=data.training_lines,
    batch_size=32,
    start=start,
)
