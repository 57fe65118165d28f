"""The training, whose step is captured from `network`; no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.multilabel import data
from models.training import StepFiles, Training

LEARNING_RATE = 0.01


def samples(seed: int) -> dict[str, np.ndarray]:
    """Pictures, labels, and the pos_weight that balances the labels."""
    images, labels = data.training_pictures(seed)
    return {"images": images, "labels": labels, "pos_weight": data.balancing(labels)}


TRAINING = Training(
    "Rare labels",
    StepFiles(Path(__file__).parent, "step"),
    samples,
    batch_size=100,
    unbatched=("pos_weight",),
)
