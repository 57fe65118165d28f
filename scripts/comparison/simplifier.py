"""onnxsim's training loop, which differentiates an exported loss."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from scripts.comparison.program import RATE, Batch, main

if TYPE_CHECKING:
    from onnxsim.compile_training import TrainingLoop

    from scripts.comparison.networks import Network


def prepare(network: Network, folder: Path) -> None:
    import onnxsim
    from onnxsim.torch_training import trace_torch_optimizer

    from scripts.comparison.networks import Loss

    batch = network.batches()[0]
    loss = Loss(network)
    # As compile_torch_training_loop does; `simplify` would replace the parameters.
    onnx.save(onnxsim.export_torch_module_to_onnx(loss, batch, input_names=["x", "y"]), folder / "loss.onnx")
    onnx.save(
        trace_torch_optimizer(lambda param, grad, lr: (param - lr * grad,), num_state=0).model, folder / "sgd.onnx"
    )
    (folder / "parameters.txt").write_text("\n".join(name for name, _ in loss.named_parameters()))
    onnx.save(training_loop(folder).step_graph.model, folder / "step.onnx")


def training_loop(folder: Path) -> TrainingLoop:
    from onnxsim.compile_training import CustomOptimizer, compile_training_loop

    sgd = CustomOptimizer(onnx.load(folder / "sgd.onnx"), 0)
    names = (folder / "parameters.txt").read_text().split()
    return compile_training_loop(onnx.load(folder / "loss.onnx"), "loss", names, optimizer=sgd)


def train(folder: Path, batches: Sequence[Batch]) -> list[float]:
    loop = training_loop(folder)
    return [float(loop(batch, lr=RATE)) for batch in batches]


def optimizers() -> list[str]:
    """The names that a loop takes; others are functions of tensors."""
    import torch
    from onnxsim.compile_training import TrainingLoop

    found = []
    for name in ("adam", "adamw", "sgd", "sgd_momentum", *(each.lower() for each in vars(torch.optim))):
        try:
            TrainingLoop(onnx.ModelProto(), "loss", ("weight",), optimizer=name)
        except ValueError:
            continue
        found.append(name)
    return sorted(set(found))


if __name__ == "__main__":
    main(importlib.metadata.version("onnxsim"), prepare, train, optimizers)
