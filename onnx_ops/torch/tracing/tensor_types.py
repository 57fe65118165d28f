"""PyTorch's types of tensors, such as torch.FloatTensor, called with sequences and arrays of numbers without values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import _numpy

from onnx_ops.torch.tracing.importers import Importers
from onnx_ops.torch.tracing.mathematics import SIZES
from onnx_ops.torch.tracing.modes import leaves_of

ORIGINS: dict[str, Any] = {
    f"{name}Tensor": getattr(torch, f"{name}Tensor")
    for name in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
}
"""The types by their names in the module torch."""
IMPORTERS = Importers(ORIGINS)


class TensorType(type):
    """The metaclass of a replacement of such a type, which is equal to it."""

    origin: Any

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if _are_symbolic(args, options):
            return torch.tensor(args[0], dtype=cls.origin.dtype)
        return cls.origin(*args, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.origin)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.origin, name)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.origin

    def __hash__(cls) -> int:
        return hash(cls.origin)


def replacements(kind: type[TensorType]) -> dict[str, TensorType]:
    """Replacements of all types, by their names in the module torch.

    Args:
        kind: their metaclass.
    """
    # Tensor.type() takes a type of tensors by its name.
    return {name: kind(f"torch.{name}", (), {"origin": origin}) for name, origin in ORIGINS.items()}


_TYPES = replacements(TensorType)


@contextlib.contextmanager
def symbolic_tensor_types() -> Iterator[None]:
    """A context in which these types, and torch.Tensor, make tensors of sequences of symbolic numbers and tensors."""
    with IMPORTERS.replaced(_TYPES), mock.patch.object(torch.Tensor, "__new__", _new):
        yield


_own_new = torch.Tensor.__new__


def _new(cls: type[torch.Tensor], *args: Any, **options: Any) -> Any:
    if cls is torch.Tensor and _are_symbolic(args, options):
        return torch.tensor(args[0], dtype=torch.get_default_dtype())
    return _own_new(cls, *args, **options)


def _are_symbolic(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether arguments are a sequence or an array with numbers without values. A torch.Size is none: it is a shape."""
    if len(args) != 1 or options:
        return False
    (numbers,) = args
    if isinstance(numbers, _numpy.ndarray):
        return True
    if isinstance(numbers, np.ndarray):
        return numbers.dtype == object
    leaves = leaves_of(numbers) if type(numbers) in (list, tuple) else []
    return any(isinstance(leaf, (*SIZES, torch.Tensor)) for leaf in leaves)
