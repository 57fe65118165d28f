"""Where a step may keep what the next one reads, beside parameters and buffers: attributes and variables of Python."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from onnx_ops.torch.tracing.frames import is_class_of_user, is_object_of_user
from onnx_ops.torch.tracing.preserving import CONTAINERS, Container

Number = bool | int | float | str

MOST = 10_000
"""Elements of a container up to which it is looked through: a larger one is a data set or vocabulary."""


def numbers(model: torch.nn.Module, loss: Callable[..., Any], *, inherited: bool = False) -> dict[str, Number]:
    """The attributes and variables that are numbers or strings, by their names.

    With `inherited`, objects have those of their classes too: `self.count += 1` makes such a number their own.
    """
    return {name: value for name, value in _variables(model, loss, inherited) if isinstance(value, Number)}


def containers(model: torch.nn.Module, loss: Callable[..., Any]) -> dict[str, Container]:
    """The attributes and variables that are lists, dictionaries, sets and deques, without data sets, by their names."""
    return {name: value for name, value in _variables(model, loss) if isinstance(value, CONTAINERS) and is_small(value)}


def objects(model: torch.nn.Module, loss: Callable[..., Any]) -> list[Any]:
    """The user's objects beside the model's modules that these and the loss refer to."""
    seen = {id(module) for module in model.modules()}
    found = {id(value): value for _, value in _variables(model, loss) if is_object_of_user(value)}
    return [value for key, value in found.items() if key not in seen]


def identities(container: Container) -> list[int]:
    """Which objects a container and those within it have; no references to them, so that those it drops are freed."""
    return [id(leaf) for leaf in tree_leaves(list(container) if isinstance(container, set) else container)]


def lengths(model: torch.nn.Module, loss: Callable[..., Any]) -> dict[str, int]:
    """How many floating numbers there are in each of `containers`, by name; integers count calls in most of them."""
    return {
        name: sum(isinstance(leaf, float) for leaf in tree_leaves(value))
        for name, value in containers(model, loss).items()
    }


def tensors_of(model: torch.nn.Module, loss: Callable[..., Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in attributes of modules, and in variables of the loss and in modules of these, with their names."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            yield from ((f"{path}.{name}" if path else name, leaf) for leaf in _tensors(value))
    for name, value in _of_function(loss).items():
        yield from ((name, leaf) for leaf in _tensors(value))
        if isinstance(value, torch.nn.Module):
            yield from ((f"{name}.{own}", tensor) for own, tensor in value.named_parameters())
            yield from ((f"{name}.{own}", tensor) for own, tensor in value.named_buffers())


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, CONTAINERS) and not is_small(value):
        return []
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def is_small(value: object) -> bool:
    """Whether a value is no container, whose class may refuse len(), or one of no more than MOST elements."""
    return not isinstance(value, CONTAINERS) or sum(1 for _ in itertools.islice(value, MOST + 1)) <= MOST


def _variables(model: torch.nn.Module, loss: Callable[..., Any], inherited: bool = False) -> Iterator[tuple[str, Any]]:
    """The attributes of modules, and of the user's objects that they and the loss refer to; variables of the loss."""
    attributes = _with_inherited if inherited else vars
    namespaces: list[tuple[str, Mapping[str, Any]]] = [("", _of_function(loss))]
    namespaces += [(f"{path}." if path else "", attributes(module)) for path, module in model.named_modules()]
    kinds = {kind for module in model.modules() for kind in type(module).__mro__ if is_class_of_user(kind)}
    namespaces += [(f"{kind.__name__}.", vars(kind)) for kind in kinds]
    seen = {id(module) for module in model.modules()}
    while namespaces:
        prefix, namespace = namespaces.pop()
        for name, value in list(namespace.items()):
            yield f"{prefix}{name}", value
            if id(value) not in seen and is_object_of_user(value):
                seen.add(id(value))
                namespaces.append((f"{prefix}{name}.", attributes(value)))


def _with_inherited(value: object) -> dict[str, Any]:
    """The attributes of an object, and the numbers and strings of its class."""
    kinds = [kind for kind in reversed(type(value).__mro__) if is_class_of_user(kind)]
    return {name: item for kind in kinds for name, item in vars(kind).items() if isinstance(item, Number)} | vars(value)


def _of_function(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of a function beside those of a call, and the object whose method it is, or that is called."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isfunction(function):
        return {"self": getattr(function, "__self__", function)}
    defaults = {name: given.default for name, given in inspect.signature(function).parameters.items()}
    try:
        found = inspect.getclosurevars(function)
    except ValueError:  # one of them has no value
        return defaults | vars(function)
    return {**defaults, **vars(function), **found.globals, **found.nonlocals}
