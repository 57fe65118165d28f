"""The command line of each side, which prints its result as JSON:

python -m scripts.comparison.SIDE prepare|train|optimizers FOLDER NETWORK
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scripts.comparison.networks import Network

Batch = dict[str, np.ndarray]
RATE = 0.1


def main(
    version: str,
    prepare: Callable[[Network, Path], None],
    train: Callable[[Path, Sequence[Batch]], list[float]],
    optimizers: Callable[[], list[str]],
) -> None:
    """Do what the command line says.

    Args:
        version: of the package that this side is about.
        prepare: writes what the training of a network needs into a folder; may use PyTorch.
        train: trains with it, and returns the losses.
        optimizers: names of the optimizers that it has.
    """
    action, folder, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore")
    result: dict[str, object] = {"version": version}
    try:
        if action == "prepare":
            from scripts.comparison.networks import NETWORKS

            prepare(NETWORKS[name], folder)
        elif action == "optimizers":
            result["optimizers"] = optimizers()
        else:
            with np.load(folder / "batches.npz") as arrays:
                count = len(arrays.files) // 2
                batches = [{"x": arrays[f"x{i}"], "y": arrays[f"y{i}"]} for i in range(count)]
            result["losses"] = train(folder, batches)
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    print("\n" + json.dumps(result))
