"""PyTorch, whose losses the other sides are compared with; it writes the batches too."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from scripts.comparison.networks import NETWORKS, RATE, Loss, Network
from scripts.comparison.program import Batch, main


def prepare(network: Network, folder: Path) -> None:
    batches = network.batches()
    xs = {f"x{i}": x.numpy() for i, (x, _) in enumerate(batches)}
    ys = {f"y{i}": y.numpy() for i, (_, y) in enumerate(batches)}
    np.savez(folder / "batches.npz", **xs, **ys)


def train(folder: Path, batches: Sequence[Batch]) -> list[float]:
    loss = Loss(NETWORKS[folder.name])
    optimizer = torch.optim.SGD(loss.parameters(), lr=RATE)
    losses = []
    for batch in batches:
        value = loss(torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"]))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def optimizers() -> list[str]:
    kind = torch.optim.Optimizer
    return [
        n
        for n, each in vars(torch.optim).items()
        if isinstance(each, type) and issubclass(each, kind) and each is not kind
    ]


if __name__ == "__main__":
    main(importlib.metadata.version("torch"), prepare, train, optimizers)
