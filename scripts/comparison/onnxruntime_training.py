"""onnxruntime-training: artifacts of an exported loss, and the modules that train with them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from scripts.comparison.program import RATE, Batch, main
from scripts.memory.onnxruntime_training import MAX_IR_VERSION, SAVED_OUTPUTS

if TYPE_CHECKING:
    from scripts.comparison.networks import Network


def prepare(network: Network, folder: Path) -> None:
    import torch
    from onnxruntime.training import artifacts
    from onnxruntime.training.onnxblock import optim

    from scripts.comparison.networks import Loss

    loss = Loss(network)
    torch.onnx.export(
        loss,
        network.batches()[0],
        str(folder / "loss.onnx"),
        dynamo=False,  # the other exporter writes operators without a gradient here
        opset_version=17,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        input_names=["x", "y"],
        output_names=["loss"],
        dynamic_axes={"x": {0: "rows"}, "y": {0: "rows"}} if len(set(network.sizes)) > 1 else None,
    )
    model = onnx.load(folder / "loss.onnx")
    for number, node in enumerate(model.graph.node):
        missing = range(len(node.output), SAVED_OUTPUTS.get(node.op_type, 0))
        node.output.extend(f"saved.{number}.{i}" for i in missing)
    trained = [name for name, _ in loss.named_parameters()]
    artifacts.generate_artifacts(model, requires_grad=trained, optimizer=optim.SGD(), artifact_directory=folder)
    for path in folder.glob("*_model.onnx"):
        model = onnx.load(path)
        model.ir_version = min(model.ir_version, MAX_IR_VERSION)
        onnx.save(model, path)


def train(folder: Path, batches: Sequence[Batch]) -> list[float]:
    from onnxruntime.training import api

    state = api.CheckpointState.load_checkpoint(folder / "checkpoint")
    module = api.Module(folder / "training_model.onnx", state)
    optimizer = api.Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(RATE)
    module.train()
    losses = []
    for batch in batches:
        losses.append(float(np.asarray(module(*batch.values()))))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


def optimizers() -> list[str]:
    from onnxruntime.training import artifacts

    return sorted(artifacts.OptimType.__members__)


if __name__ == "__main__":
    main(importlib.metadata.version("onnxruntime-training"), prepare, train, optimizers)
