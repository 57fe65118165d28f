"""The files that the programs of the memory benchmark read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

WARM_UP = "linear layer"
"""The network that each program trains first, so that what its libraries load when they are first used is in memory."""


@dataclass(frozen=True)
class Files:
    """The files of a network.

    Attributes:
        root: the folder of all networks.
        network: a name in `scripts.memory.networks`.
    """

    root: Path
    network: str

    @property
    def folder(self) -> Path:
        """The folder of this network."""
        return self.root / self.network

    @property
    def step(self) -> Path:
        """The captured step."""
        return self.folder / "step.onnx"

    @property
    def batch(self) -> Path:
        """The arrays of the batch, by names of inputs, in the order of the loss's arguments."""
        return self.folder / "batch.npz"

    @property
    def tensors(self) -> Path:
        """The same batch, for C++."""
        return self.folder / "batch.safetensors"

    @property
    def loss(self) -> Path:
        """The loss alone, for onnxruntime-training."""
        return self.folder / "loss.onnx"

    @property
    def settings(self) -> Path:
        """What is trained, and the optimizer, for onnxruntime-training."""
        return self.folder / "settings.json"

    @property
    def artifacts(self) -> Path:
        """The folder of the gradient graph, the optimizer and the parameters that onnxruntime-training makes."""
        return self.folder / "artifacts"

    def arrays(self) -> dict[str, np.ndarray]:
        """The batch."""
        with np.load(self.batch) as arrays:
            return dict(arrays)
