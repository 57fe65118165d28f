"""Trains a network in this process and prints its Measurement as JSON; `scripts.bench_memory` writes the files for it.

    python -m scripts.memory.sides SIDE ROOT NETWORK

Only the sides of PyTorch import torch.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from scripts.memory.files import WARM_UP, Files
from scripts.memory.peaks import Load, Step, measure

if TYPE_CHECKING:
    from torch import Tensor, nn

    from scripts.memory.networks import Network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("root", type=Path)
    parser.add_argument("network")
    parser.add_argument("--steps", type=int, default=6, help="after the first one; default: %(default)s")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    def load(network: str) -> Load:
        return SIDES[options.side](Files(options.root, network), options.threads)

    measure(load(WARM_UP), steps=1)
    print(json.dumps(asdict(measure(load(options.network), options.steps))))


def trainer(files: Files, threads: int) -> Load:
    """`onnx_ops.Trainer` on the captured step."""
    import onnx_ops

    batch = files.arrays()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads

    def load() -> Step:
        trainer = onnx_ops.Trainer(files.step, options)
        return lambda: float(trainer.step(**batch)["loss"])

    return load


def pytorch(files: Files, threads: int, steps: Callable[[Network, nn.Module, list[Tensor]], Step]) -> Load:
    """PyTorch eager, with the steps that `steps` returns."""
    import torch

    from scripts.memory.networks import NETWORKS

    torch.set_num_threads(threads)
    network = NETWORKS[files.network]
    batch = [torch.from_numpy(array) for array in files.arrays().values()]

    def load() -> Step:
        torch.manual_seed(0)
        return steps(network, network.module(), batch)

    return load


def updated_together(network: Network, module: nn.Module, batch: list[Tensor]) -> Step:
    """Steps of one optimizer."""
    from scripts.memory.networks import trained

    optimizer = network.optimizer(trained(module))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = network.loss(module, *batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def updated_in_hooks(network: Network, module: nn.Module, batch: list[Tensor]) -> Step:
    """Steps that update a parameter, and free its gradient, as soon as the backward pass has computed the gradient."""
    from scripts.memory.networks import trained

    optimizers = {parameter: network.optimizer([parameter]) for parameter in trained(module)}

    def update(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad(set_to_none=True)

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)

    def step() -> float:
        loss = network.loss(module, *batch)
        loss.backward()
        return loss.item()

    return step


SIDES: Mapping[str, Callable[[Files, int], Load]] = {
    "Trainer": trainer,
    "PyTorch": functools.partial(pytorch, steps=updated_together),
    "PyTorch, hooks": functools.partial(pytorch, steps=updated_in_hooks),
}

if __name__ == "__main__":
    main()
