"""The PyTorch side of a training, to capture or to run eagerly. Requires torch and onnxscript, `onnx-ops[torch]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from models.training import COMPARED_STEPS, Training
from onnx_ops.torch import Capture, load_into_torch, training_step


@dataclass(frozen=True)
class TorchStep:
    """The PyTorch side of a training.

    Attributes:
        training: data set and initial state.
        network: returns the module; its weights are replaced by the initial state.
        loss: takes the module and the tensors of a batch, in the order and with the names of the training's samples.
        optimizer: returns an optimizer of the module's parameters.
        dynamic_shapes: of the batch, as for `torch.export.export`.
    """

    training: Training
    network: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    dynamic_shapes: tuple[dict[int, torch.export.Dim], ...]

    def capture(self, dtype: torch.dtype = torch.float32) -> Capture:
        """Capture the step with this floating-point dtype."""
        module = self.network().to(dtype)
        batch = next(self.batches(dtype))
        return training_step(module, self.loss, batch, self.optimizer(module), dynamic_shapes=self.dynamic_shapes)

    def batches(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, ...]]:
        """The batches of the training with seed 0, epoch after epoch, without end."""
        samples, epoch = self.training.in_batches(self.training.samples(0)), 0
        while True:
            order = samples.order(0, epoch)
            for number in range(samples.steps):
                tensors = map(torch.from_numpy, samples.batch(order, number).values())
                yield tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)
            epoch += 1

    def started(self, model: onnx.ModelProto, dtype: torch.dtype = torch.float32) -> EagerStep:
        """The eager step, with the initial state of the captured step `model` for seed 0."""
        module = self.network().to(dtype)
        optimizer = self.optimizer(module)
        load_into_torch(self.training.state(model, 0), module, optimizer)
        return EagerStep(module, self.loss, optimizer)


@dataclass(frozen=True)
class EagerStep:
    """A training step in PyTorch eager mode."""

    module: nn.Module
    loss: Callable[..., Tensor]
    optimizer: torch.optim.Optimizer

    def __call__(self, *batch: Tensor) -> float:
        """Run one step; returns the loss."""
        self.optimizer.zero_grad()
        loss = self.loss(self.module, *batch)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def first_losses(
    step: TorchStep, model: onnx.ModelProto, steps: int = COMPARED_STEPS, dtype: torch.dtype = torch.float32
) -> np.ndarray:
    """The first losses in PyTorch, (steps,), from the initial state of the captured step `model` for seed 0."""
    run = step.started(model, dtype)
    return np.array([run(*batch) for _, batch in zip(range(steps), step.batches(dtype), strict=False)])
