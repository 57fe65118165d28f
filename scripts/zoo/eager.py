"""The training of a case in PyTorch, in float32 or float64."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnx_ops.core.step_format import optimizer_name
from onnx_ops.torch.base.arguments import tensors
from onnx_ops.torch.base.pairs import as_real
from onnx_ops.torch.verification.widening import Float64Computation
from scripts.zoo.entries import Case, Entry

MOMENTUM = 0.9
BUFFER = "momentum_buffer"
"""PyTorch's name of the state of this optimizer."""
NEAR = 1e-6
"""Relative change of parameters, larger than rounding to float32."""
DRAWS = 3
"""Random changes that are tried: a few signs of inputs of ReLUs change with each."""

Batch = tuple[torch.Tensor, ...]


def build(entry: Entry) -> Case:
    """The model of an entry, the same one each time."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (the generator that packages draw from)
    case = entry.build()
    without_dropout(case.model)
    return case


def without_dropout(model: nn.Module) -> None:
    """Turn dropout off: a captured step draws other masks than PyTorch's."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):  # an argument of torch.nn.functional.dropout
                setattr(module, name, 0.0)


def optimizer(case: Case) -> torch.optim.SGD:
    """SGD with momentum: after one step its state is the gradient."""
    trained = [parameter for parameter in case.model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, lr=case.rate, momentum=MOMENTUM)


def batch_of(case: Case, samples: int, seed: int) -> Batch:
    torch.manual_seed(seed)
    return case.batch(samples)


def cast(batch: Batch, dtype: torch.dtype) -> Batch:
    """A batch with floating tensors of a dtype."""
    return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in batch)


def feeds(case: Case, batch: Batch) -> dict[str, np.ndarray]:
    """A batch by the names of the step's inputs."""
    names = list(inspect.signature(case.loss).parameters)[1:]
    return {name: tensor.numpy() for name, tensor in zip(names, batch, strict=True)}


class Training:
    """The training of an entry in PyTorch.

    Args:
        entry: its model is built anew.
        dtype: of parameters, buffers and floating arguments; with float64, of all that is computed.
    """

    def __init__(self, entry: Entry, dtype: torch.dtype = torch.float32) -> None:
        self.case, self.dtype = build(entry), dtype
        self.model = self.case.model if dtype == torch.float32 else self.case.model._apply(self._of_dtype)
        self.optimizer = optimizer(self.case)

    def step(self, batch: Batch) -> dict[str, np.ndarray]:
        """Make a step; returns its loss and all that it changes, with the gradients in the state of the optimizer."""
        self.optimizer.zero_grad()
        with self._computing():
            loss = self.case.loss(self.model, *self._cast(batch))
            loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach().numpy(), **self.state()}

    def state(self) -> dict[str, np.ndarray]:
        """Parameters, buffers and momentum by the names of the step's inputs, without those that have none."""
        found = {name: tensor for name, tensor in self.model.state_dict().items() if isinstance(tensor, torch.Tensor)}
        for name, parameter in self.model.named_parameters():
            momentum = self.optimizer.state.get(parameter, {}).get(BUFFER)
            if momentum is not None:
                found[optimizer_name(BUFFER, name)] = momentum
        return {name: as_real(tensor.detach()).numpy().copy() for name, tensor in found.items()}

    def disturb(self, amount: float, seed: int = 0) -> None:
        """Change parameters by relative changes up to `amount`; zeros become small numbers, as they hide gradients."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                noise = 2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1
                size = parameter.abs().max() if parameter.numel() else 0.0
                start = torch.where(parameter == 0, 0.1 * amount * (size or 1.0) * noise, parameter)
                parameter.copy_(start.to(parameter.dtype) * (1 + amount * noise))

    def inference(self, batch: Batch) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        """Set evaluation mode; the arguments of the loss's first call of the model by name, and the model's results."""
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        hook = self.model.register_forward_pre_hook(
            lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
        )
        self.model.eval()
        with torch.no_grad(), self._computing():
            self.case.loss(self.model, *self._cast(batch))
            hook.remove()
            args, kwargs = calls[0]
            result = self.model(*args, **kwargs)
        given = inspect.signature(self.model.forward).bind_partial(*args).arguments | kwargs
        return (
            {name: tensor.numpy() for name, tensor in tensors(given)},
            [tensor.numpy() for _, tensor in tensors(result)],
        )

    def _computing(self) -> contextlib.AbstractContextManager[Any]:
        return Float64Computation() if self.dtype == torch.float64 else contextlib.nullcontext()

    def _of_dtype(self, tensor: Tensor) -> Tensor:
        """A parameter or buffer in the dtype, a complex one in the complex dtype of that precision."""
        if tensor.is_complex():
            return tensor.to(self.dtype.to_complex())
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _cast(self, batch: Batch) -> Batch:
        return cast(batch, self.dtype)


def references(entry: Entry, wide: torch.dtype, disturbance: float = 0.0) -> dict[str, Training]:
    """Trainings of an entry by name: "single" in float32, "exact" in the dtype `wide`, and the others, in `wide` too,
    from parameters that differ by NEAR.

    Args:
        entry: the model.
        wide: float64, or float32 for a model that requires it.
        disturbance: of the parameters of all.
    """
    near = [f"near.{i}" for i in range(DRAWS)]
    trainings = {"single": Training(entry)} | {name: Training(entry, wide) for name in ("exact", *near)}
    if disturbance:
        for training in trainings.values():
            training.disturb(disturbance)
    for seed, name in enumerate(near, 1):
        trainings[name].disturb(NEAR, seed)
    return trainings
