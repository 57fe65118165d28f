"""The step of a training in PyTorch: captured, or made there. Needs torch and onnxscript, `onnx-ops[torch]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from models.training import COMPARED_STEPS, Training
from onnx_ops.torch import Capture, load_into_torch, training_step


@dataclass(frozen=True)
class TorchStep:
    """The step of a training in PyTorch.

    Attributes:
        training: what it is captured for.
        network: makes the module; its weights do not matter.
        loss: of the module and a batch; its arguments have the names of the training's samples, in their order.
        optimizer: makes that of the module's parameters.
        dynamic_shapes: of the batch, as for torch.export.export.
    """

    training: Training
    network: Callable[[], nn.Module]
    loss: Callable[..., Any]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    dynamic_shapes: Any

    def capture(self, dtype: torch.dtype = torch.float32) -> Capture:
        """The step as a graph whose floating tensors have this dtype."""
        module = self.network().to(dtype)
        batch = next(self.batches(dtype))
        return training_step(module, self.loss, batch, self.optimizer(module), dynamic_shapes=self.dynamic_shapes)

    def batches(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, ...]]:
        """Those that training takes with seed 0, without end."""
        samples, epoch = self.training.in_batches(self.training.samples(0)), 0
        while True:
            order = samples.order(0, epoch)
            for number in range(samples.steps):
                tensors = map(torch.from_numpy, samples.batch(order, number).values())
                yield tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)
            epoch += 1

    def started(self, model: onnx.ModelProto, dtype: torch.dtype = torch.float32) -> EagerStep:
        """The step in PyTorch, from where its graph starts with seed 0."""
        module = self.network().to(dtype)
        optimizer = self.optimizer(module)
        load_into_torch(self.training.state(model, 0), module, optimizer)
        return EagerStep(module, self.loss, optimizer)


@dataclass(frozen=True)
class EagerStep:
    """A step that PyTorch makes."""

    module: nn.Module
    loss: Callable[..., Any]
    optimizer: torch.optim.Optimizer

    def __call__(self, *batch: Tensor) -> float:
        """Make a step; returns the loss."""
        self.optimizer.zero_grad()
        found = self.loss(self.module, *batch)
        loss = found if isinstance(found, Tensor) else next(iter(found.values() if isinstance(found, dict) else found))
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def first_losses(
    step: TorchStep, model: onnx.ModelProto, steps: int = COMPARED_STEPS, dtype: torch.dtype = torch.float32
) -> np.ndarray:
    """Those of PyTorch's first steps, where the captured step `model` starts with seed 0."""
    make = step.started(model, dtype)
    return np.array([make(*batch) for _, batch in zip(range(steps), step.batches(dtype), strict=False)])
