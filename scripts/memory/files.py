"""The files that the programs of the memory benchmark read, in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

WARM_UP = "linear layer"
"""The network that each program trains first, so that what its libraries load when they are first used is in memory."""


@dataclass(frozen=True)
class Files:
    """The captured step of a network, and a batch.

    Attributes:
        folder: the folder of all networks.
        network: a name in `scripts.memory.networks`.
    """

    folder: Path
    network: str

    @property
    def step(self) -> Path:
        """The step file."""
        return self.folder / f"{self.network}.onnx"

    @property
    def batch(self) -> Path:
        """The arrays of the batch, by names of inputs, in the order of the loss's arguments."""
        return self.folder / f"{self.network}.npz"

    def arrays(self) -> dict[str, np.ndarray]:
        """The batch."""
        with np.load(self.batch) as arrays:
            return dict(arrays)

    def remove(self) -> None:
        """Delete the files."""
        self.step.unlink()
        self.batch.unlink()
