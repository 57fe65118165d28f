"""The training; a step takes the whole batch, or one worker's part of it."""

from __future__ import annotations

from pathlib import Path

from models.batch_norm_workers.data import digits
from models.training import StepFiles, Training

LEARNING_RATE = 0.01

TRAINING = Training(
    title="digits that workers share",
    files=StepFiles(Path(__file__).parent, "step"),
    samples=lambda seed: digits(seed)[0],
    batch_size=12,
)
