"""Containers that a step adds to, such as a history that the next step reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from onnx_ops.torch.tracing.preserving import CONTAINERS, Container


def containers_of(model: torch.nn.Module, loss: Callable[..., Any]) -> Iterator[tuple[str, Container]]:
    """Those in attributes of the model's modules, and in variables of the loss, with their names."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, CONTAINERS):
                yield f"{path}.{name}" if path else name, value
    for name, value in _variables(loss).items():
        if isinstance(value, CONTAINERS):
            yield name, value


def _variables(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables that a function of Python reads from outside of it."""
    if not inspect.isfunction(function):
        return {}
    try:
        found = inspect.getclosurevars(function)
    except ValueError:  # one of them has no value
        return {}
    return {**found.globals, **found.nonlocals}


def identities(container: Container) -> list[int]:
    """Which objects a container and those within it have; no references to them, so that those it drops are freed."""
    return [id(leaf) for leaf in tree_leaves(list(container) if isinstance(container, set) else container)]


def lengths(model: torch.nn.Module, loss: Callable[..., Any]) -> dict[str, int]:
    """The numbers of objects in each of `containers_of`, by name."""
    return {name: len(identities(value)) for name, value in containers_of(model, loss)}
