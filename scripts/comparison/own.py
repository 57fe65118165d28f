"""onnx_ops: a captured step, and its trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ops
from scripts.comparison.program import Batch, main

if TYPE_CHECKING:
    from scripts.comparison.networks import Network

STEP = "step.onnx"


def prepare(network: Network, folder: Path) -> None:
    import torch

    import onnx_ops.torch
    from scripts.comparison.networks import RATE, Loss

    whole = Loss(network)
    optimizer = torch.optim.SGD(whole.parameters(), lr=RATE)
    rows = torch.export.Dim("rows")
    shapes = ({0: rows}, {0: rows}) if len(set(network.sizes)) > 1 else None

    def loss(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return module(x, y)

    onnx_ops.torch.training_step(
        whole, loss, network.batches()[0], optimizer, dynamic_shapes=shapes, inference=False
    ).save(folder / STEP)


def train(folder: Path, batches: Sequence[Batch]) -> list[float]:
    trainer = onnx_ops.Trainer(folder / STEP)
    return [float(trainer.step(**batch)["loss"]) for batch in batches]


def optimizers() -> list[str]:
    """Those of torch.optim that a step can be captured with."""
    import torch

    import onnx_ops.torch
    from scripts.comparison.pytorch import optimizers as of_pytorch

    def loss(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(x).square().mean()

    captured = []
    for name in of_pytorch():
        module = torch.nn.Linear(4, 3, bias=False)
        optimizer = getattr(torch.optim, name)(module.parameters())
        try:
            onnx_ops.torch.training_step(module, loss, (torch.randn(5, 4),), optimizer, inference=False)
        except onnx_ops.Error:
            continue
        captured.append(name)
    return captured


if __name__ == "__main__":
    main(onnx_ops.__version__, prepare, train, optimizers)
