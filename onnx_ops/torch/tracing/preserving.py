"""Restores the attributes of a model's modules after a run."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch

from onnx_ops.torch.tracing.frames import is_object_of_user

OF_PYTORCH = frozenset(vars(torch.nn.Module()))
"""Attributes of each module, such as its parameters."""


@contextlib.contextmanager
def preserved(model: torch.nn.Module) -> Iterator[None]:
    """Restore the attributes of a model's modules, and the containers and objects in them, on exit.

    The training mode is one of them. Elements of tensors are not restored.
    """
    before = [(container, _contents(container)) for container in _containers(model)]
    try:
        yield
    finally:
        for container, contents in before:
            _restore(container, contents)


Container: TypeAlias = dict[Any, Any] | list[Any] | set[Any] | deque[Any]
CONTAINERS = (dict, list, set, deque)


def _containers(model: torch.nn.Module) -> list[Any]:
    """The attribute dictionaries of all modules, and of the user's objects in them; the mutable containers in these."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [vars(module) for module in model.modules()]
    while waiting:
        value = waiting.pop()
        if id(value) not in found and isinstance(value, (*CONTAINERS, tuple)):
            found[id(value)] = value
            for child in value.values() if isinstance(value, dict) else value:  # a class may refuse len(value)
                waiting.append(vars(child) if is_object_of_user(child) else child)
    return [value for value in found.values() if not isinstance(value, tuple)]


def _contents(container: Container) -> list[Any]:
    return list(container.items() if isinstance(container, dict) else container)


def _restore(container: Container, contents: list[Any]) -> None:
    now = _contents(container)
    if len(now) == len(contents) and all(map(_same, now, contents)):
        return
    container.clear()
    if isinstance(container, dict | set):
        container.update(contents)
    else:
        container.extend(contents)


def _same(now: object, before: object) -> bool:
    """Whether an element is the same object, or a pair of key and value has the same objects."""
    if type(now) is type(before) is tuple and len(now) == len(before):
        return all(one is other for one, other in zip(now, before, strict=True))
    return now is before
