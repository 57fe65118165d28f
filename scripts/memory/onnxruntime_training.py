"""The side of onnxruntime-training, whose last version, 1.19.2, needs a Python environment of its own, with torch.

`export` writes the loss of a network. The program below, run in that environment, makes the gradient graph and the
optimizer of it, or trains with these and prints its Measurement as JSON.

    python -m scripts.memory.onnxruntime_training prepare|measure ROOT NETWORK
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort

from scripts.memory.files import WARM_UP, Files
from scripts.memory.peaks import Load, Step, measure

if TYPE_CHECKING:
    from torch import Tensor, nn

    from scripts.memory.networks import Network

# Outputs that are optional in ONNX, and that onnxruntime's gradients read.
SAVED_OUTPUTS = {"SoftmaxCrossEntropyLoss": 2, "LayerNormalization": 3}
MAX_IR_VERSION = 10


def export(files: Files, network: Network, module: nn.Module, batch: tuple[Tensor, ...]) -> None:
    """Write the loss of a network as an ONNX model, and what is trained.

    Raises:
        torch.onnx.OnnxExporterError: an operator that torch.onnx cannot export.
    """
    import torch

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *batch: Tensor) -> Tensor:
            return network.loss(self.module, *batch)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Loss(),
            batch,
            str(files.loss),
            dynamo=False,  # the other exporter writes operators without a gradient in onnxruntime-training
            opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
        )
    names = {parameter: f"module.{name}" for name, parameter in module.named_parameters()}
    optimizer = network.optimizer(module.parameters())
    content = {
        "trained": [name for parameter, name in names.items() if parameter.requires_grad],
        "frozen": [name for parameter, name in names.items() if not parameter.requires_grad],
        "optimizer": type(optimizer).__name__,
        "settings": {name: optimizer.defaults.get(name) for name in ("lr", "betas", "eps", "weight_decay")},
    }
    files.settings.write_text(json.dumps(content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("prepare", "measure"))
    parser.add_argument("root", type=Path)
    parser.add_argument("network")
    parser.add_argument("--steps", type=int, default=6, help="after the first one; default: %(default)s")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    files = Files(options.root, options.network)
    if options.action == "prepare":
        prepare(files)
    else:
        measure(training(Files(options.root, WARM_UP), options.threads), steps=1)
        print(json.dumps(asdict(measure(training(files, options.threads), options.steps))))


def prepare(files: Files) -> None:
    """Make the gradient graph and the optimizer of an exported loss."""
    from onnxruntime.training import artifacts
    from onnxruntime.training.onnxblock import optim

    settings = json.loads(files.settings.read_text())
    model = onnx.load(files.loss)
    for number, node in enumerate(model.graph.node):
        missing = range(len(node.output), SAVED_OUTPUTS.get(node.op_type, 0))
        node.output.extend(f"saved.{number}.{i}" for i in missing)
    numbers = settings["settings"]
    adamw = {"betas": numbers["betas"], "eps": numbers["eps"], "weight_decay": numbers["weight_decay"]}
    files.artifacts.mkdir()
    artifacts.generate_artifacts(
        model,
        requires_grad=settings["trained"],
        frozen_params=settings["frozen"],
        optimizer=optim.AdamW(**adamw) if settings["optimizer"] == "AdamW" else optim.SGD(),
        artifact_directory=files.artifacts,
    )
    for path in files.artifacts.glob(
        "*.onnx"
    ):  # a newer package onnx writes a version that this onnxruntime does not read
        model = onnx.load(path)
        model.ir_version = min(model.ir_version, MAX_IR_VERSION)
        onnx.save(model, path)


def training(files: Files, threads: int) -> Load:
    """The gradient graph and the optimizer of a network."""
    from onnxruntime.training import api

    batch = list(files.arrays().values())
    rate = json.loads(files.settings.read_text())["settings"]["lr"]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads

    def load() -> Step:
        state = api.CheckpointState.load_checkpoint(files.artifacts / "checkpoint")
        module = api.Module(files.artifacts / "training_model.onnx", state, session_options=options)
        optimizer = api.Optimizer(files.artifacts / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(rate)
        module.train()

        def step() -> float:
            loss = float(np.asarray(module(*batch)))
            optimizer.step()
            module.lazy_reset_grad()
            return loss

        return step

    return load


if __name__ == "__main__":
    main()
