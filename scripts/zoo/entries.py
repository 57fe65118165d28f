"""What a model of the zoo is: a small builder in a file of its package, registered in a table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.export import Dim

from onnx_ops.torch.base.arguments import DynamicShapes

SAMPLES = 3
"""Samples of the batch that a step is captured with; other batches have one more or less."""
ROWS = Dim("samples")

Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A model with random weights, its loss, and random batches.

    Attributes:
        model: in the mode in which it is trained.
        loss: `loss(model, *batch)` returns a scalar.
        batch: returns the arguments of the loss for a number of samples (of nodes, for a graph network).
        axes: the dynamic axes of each argument; default: axis 0 of all, `rows`.
        rows: the dimension of samples.
        rate: learning rate of the ten steps.
        inference: whether the model is exported too; False for one that computes something else in evaluation mode.
    """

    model: nn.Module
    loss: Loss
    batch: Callable[[int], tuple[torch.Tensor, ...]]
    axes: tuple[Mapping[int, Dim], ...] | None = None
    rows: Dim = ROWS
    rate: float = 0.01
    inference: bool = True

    def dynamic_shapes(self) -> DynamicShapes:
        """`axes`, by the names of the arguments."""
        names = list(inspect.signature(self.loss).parameters)[1:]
        return dict(zip(names, self.axes or [{0: self.rows}] * len(names), strict=True))


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        package: the distribution that the model is from.
        name: of the model, for the table.
        build: returns a new model, the same one after the same `torch.manual_seed`.
        workaround: what to change to capture a model that is rejected.
    """

    package: str
    name: str
    build: Callable[[], Case]
    workaround: str = ""

    @property
    def key(self) -> str:
        """The name on the command line and of files: "package.builder"."""
        return f"{self.package}.{self.build.__name__}"


@dataclass(frozen=True)
class Models:
    """The models of a package; a decorator that adds a builder."""

    package: str
    entries: list[Entry] = field(default_factory=list)

    def __call__(self, name: str, *, workaround: str = "") -> Callable[[Callable[[], Case]], Callable[[], Case]]:
        def add(build: Callable[[], Case]) -> Callable[[], Case]:
            self.entries.append(Entry(self.package, name, build, workaround))
            return build

        return add
