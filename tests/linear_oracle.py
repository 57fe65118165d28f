"""What the training step in `steps` computes, by its formulas, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

State = dict[str, np.ndarray]
MOMENTUM, DECAY = 0.875, 0.75
"""Exact in every floating type."""


@dataclass
class Oracle:
    """A run of the training: its state, by the names of the step's inputs."""

    state: State

    @classmethod
    def of(cls, state: State) -> Oracle:
        return cls({name: a if name == "seed" else a.astype(np.float64) for name, a in state.items()})

    def step(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        s, x, y = self.state, x.astype(np.float64), y.astype(np.float64)
        centred = x - s["mean"]
        logits = centred @ s["linear.weight"] + s["linear.bias"]
        loss = np.mean(np.logaddexp(0, logits) - y * logits)
        grad = (1 / (1 + np.exp(-logits)) - y) / y.size
        moved = MOMENTUM * s["optimizer.momentum.linear.weight"] + centred.T @ grad
        self.state = s | {
            "linear.weight": s["linear.weight"] - s["learning_rate"] * moved,
            "linear.bias": s["linear.bias"] - s["learning_rate"] * grad.sum(0),
            "mean": DECAY * s["mean"] + (1 - DECAY) * x.mean(0),
            "optimizer.momentum.linear.weight": moved,
            "seed": s["seed"] + 1,
        }
        return {"loss": loss, "logits": logits}

    def predict(self, x: np.ndarray) -> np.ndarray:
        """What the inference graph gives."""
        s = self.state
        logits = (x.astype(np.float64) - s["mean"]) @ s["linear.weight"] + s["linear.bias"]
        probabilities = 1 / (1 + np.exp(-logits))
        return np.where(probabilities > 0.5, probabilities, 0)
