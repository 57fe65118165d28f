"""The arguments of a loss as named tensors, and dynamic_shapes by these names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from onnx_ops.core.step_format import INPUT
from onnx_ops.torch.base.errors import CaptureError

if TYPE_CHECKING:
    from torch.export.dynamic_shapes import _DimHint

Dimension: TypeAlias = "torch.export.Dim | _DimHint"
"""A dynamic dimension as torch.export denotes it: Dim("batch"), or a hint such as Dim.AUTO."""
DynamicShapes: TypeAlias = Mapping[str, Any] | Sequence[Any] | None
"""The argument dynamic_shapes of torch.export.export."""


def bound(function: Callable[..., Any], args: tuple[Any, ...], *, skip: int = 0) -> dict[str, Any]:
    """Positional arguments by the names of a function's parameters.

    Args:
        function: its signature has the names; a built-in function without one gets `input`, or `input.0`, `input.1`.
        args: the arguments.
        skip: number of parameters before the first argument.

    Returns:
        The arguments by name; those of a `*batch` are `batch.0`, `batch.1` and so on.

    Raises:
        CaptureError: more arguments than parameters.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built in, without a signature
        return {f"{INPUT}.{i}" if len(args) > 1 else INPUT: arg for i, arg in enumerate(args)}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][skip:]
    rest = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    if len(args) > len(positional) and rest is None:
        raise CaptureError(
            f"{len(args)} arguments were given, expected {len(positional)}: {[p.name for p in positional]}"
        )
    named = {p.name: arg for p, arg in zip(positional, args, strict=False)}
    if rest is not None and len(args) > len(positional):
        named |= {f"{rest.name}.{i}": arg for i, arg in enumerate(args[len(positional) :])}
    return named


def shapes_by_name(given: Mapping[str, Any], shapes: DynamicShapes) -> dict[str, Any] | None:
    """dynamic_shapes by the names of the arguments.

    Args:
        given: the arguments by name.
        shapes: a mapping by name, or a list or tuple in the order of the arguments.

    Raises:
        CaptureError: a list or tuple of another length than the arguments.
    """
    if shapes is None:
        return None
    if not isinstance(shapes, Mapping):
        if len(shapes) != len(given):
            raise CaptureError(f"dynamic_shapes has {len(shapes)} entries, expected {len(given)}: {', '.join(given)}")
        return dict(zip(given, shapes, strict=True))
    named: dict[str, Any] = {}
    for name, shape in shapes.items():
        if name not in given and f"{name}.0" in given:  # a parameter `*batch`
            named |= {f"{name}.{i}": each for i, each in enumerate(shape or ())}
        else:
            named[name] = shape
    return named


def children(value: object) -> dict[str, Any] | None:
    """The items of a container by index, key or field; None for a value that is no container."""
    if isinstance(value, Mapping):
        return {str(key): child for key, child in value.items()}
    if isinstance(value, list | tuple):
        return {str(i): child for i, child in enumerate(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def leaves(value: object) -> Iterator[Any]:
    """What nested containers hold."""
    held = children(value)
    if held is None:
        yield value
    for child in (held or {}).values():
        yield from leaves(child)


def tensors(value: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors in nested containers by path, such as `batch.x` or `batch.0`."""
    if isinstance(value, torch.Tensor):
        yield name, value
    for key, child in (children(value) or {}).items():
        yield from tensors(child, f"{name}.{key}" if name else key)


def replaced(value: Any, new: Mapping[str, Any], name: str = "") -> Any:
    """A copy of nested containers with other tensors, which `new` has by path."""
    if isinstance(value, torch.Tensor):
        return new[name]
    held = children(value)
    if held is None:
        return value
    inner = {key: replaced(child, new, f"{name}.{key}" if name else key) for key, child in held.items()}
    if isinstance(value, Mapping):
        pairs = dict(zip(value, inner.values(), strict=True))
        return pairs if type(value) is dict else type(value)(pairs)  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*inner.values())
    if isinstance(value, list | tuple):
        return type(value)(inner.values())
    return dataclasses.replace(value, **inner)


def dimensions(value: object, shapes: Any, name: str = "") -> Iterator[tuple[str, dict[int, Dimension]]]:
    """The path of each tensor in nested containers, with its dynamic dimensions by axis.

    Args:
        value: the containers.
        shapes: their entry of dynamic_shapes, as for torch.export.export.
        name: the path of `value`.

    Raises:
        CaptureError: entries that `value` does not have, or an axis that is not in [-rank, rank).
    """
    if isinstance(value, torch.Tensor):
        yield name, _dynamic(value, shapes, name)
        return
    held = children(value)
    if held is None:
        return
    given = {} if shapes is None else children(shapes)
    if given is None or not set(given) <= set(held):
        raise CaptureError(
            f"dynamic_shapes of {name or 'the arguments'} is {shapes!r}, expected entries of {sorted(held)}"
        )
    for key, child in held.items():
        yield from dimensions(child, given.get(key), f"{name}.{key}" if name else key)


def _dynamic(tensor: torch.Tensor, shapes: Mapping[int, Any] | Sequence[Any] | None, name: str) -> dict[int, Dimension]:
    if shapes is None:
        return {}
    pairs = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes)
    found: dict[int, Dimension] = {}
    for axis, dim in pairs:
        if not isinstance(axis, int) or not -tensor.dim() <= axis < tensor.dim():
            raise CaptureError(f"dynamic_shapes of {name} names the axis {axis!r}, but its rank is {tensor.dim()}")
        if dim is not None and not isinstance(dim, int) and dim is not torch.export.Dim.STATIC:
            found[axis % tensor.dim()] = dim
    return found
