"""Python's max and min of tensors of one number and of dynamic sizes, as in `max(weights.sum(), 1)`, without a branch.

On data a graph cannot branch; a condition on a size would become one on the sizes for which the graph is valid.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from onnx_ops.torch.base.sizes import Number
from onnx_ops.torch.tracing.certainty import is_certain
from onnx_ops.torch.tracing.mathematics import SIZES


@contextlib.contextmanager
def symbolic_extremes() -> Iterator[None]:
    """A context in which max and min of such tensors, and of these and numbers, are tensors, and of sizes are sizes."""
    with (
        mock.patch.object(builtins, "max", _Extreme(builtins.max, operator.gt, operator.le, torch.sym_max)),
        mock.patch.object(builtins, "min", _Extreme(builtins.min, operator.lt, operator.ge, torch.sym_min)),
    ):
        yield


@dataclass(frozen=True)
class _Extreme:
    """max or min, which returns the first of equal arguments, as Python does.

    Attributes:
        original: the function.
        precedes: whether the second of two arguments is the result, of these in the other order.
        follows: whether the first one is.
        of_sizes: the function of two numbers, one of which depends on a dynamic size.
    """

    original: Callable[..., Any]
    precedes: Callable[[Any, Any], Any]
    follows: Callable[[Any, Any], Any]
    of_sizes: Callable[[Any, Any], Any]

    def __call__(self, *args: Any, **options: Any) -> Any:
        given = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
        if not options and _are_numbers(given):
            return functools.reduce(self._tensor, given)
        if not options and _are_sizes(given) and not _is_called_by_pytorch():
            return functools.reduce(self._size, given)
        return self.original(*args, **options)

    def _tensor(self, found: Tensor | Number, other: Tensor | Number) -> Tensor | Number:
        if not isinstance(found, Tensor) and not isinstance(other, Tensor):
            return self._size(found, other)
        dtype = next(one.dtype for one in (found, other) if isinstance(one, Tensor))
        found, other = (torch.full((), one, dtype=dtype) if isinstance(one, SIZES) else one for one in (found, other))
        return torch.where(self.precedes(other, found), other, found)

    def _size(self, found: Number, other: Number) -> Number:
        if not isinstance(found, SIZES) and not isinstance(other, SIZES):
            return self.original(found, other)
        if _is_certain(self.follows(other, found)):
            return found
        return other if _is_certain(self.precedes(other, found)) else self.of_sizes(found, other)


def _are_numbers(given: Sequence[Any]) -> bool:
    """Whether these are tensors of one number, of one dtype, and numbers that leave it as it is."""
    tensors = [one for one in given if isinstance(one, Tensor)]
    if len(given) < 2 or not tensors or any(one.dim() or one.dtype is not tensors[0].dtype for one in tensors):
        return False
    kinds = (int, float, *SIZES) if tensors[0].is_floating_point() else (int, torch.SymInt)
    return all(isinstance(one, Tensor) or type(one) in kinds for one in given)


def _are_sizes(given: Sequence[Any]) -> bool:
    """Whether these are numbers, some of which depend on dynamic sizes."""
    return (
        len(given) > 1
        and any(isinstance(one, SIZES) for one in given)
        and all(isinstance(one, (int, float, *SIZES)) for one in given)
    )


def _is_called_by_pytorch() -> bool:
    """Whether PyTorch's code, but that of layers, calls max or min, of sizes of which it then wants to know more."""
    module = sys._getframe(2).f_globals.get("__name__", "")
    return bool(module.startswith("torch.") and not module.startswith("torch.nn."))


def _is_certain(condition: bool | torch.SymBool) -> bool:
    if isinstance(condition, bool):
        return condition
    return is_certain(condition.node.expr, condition.node.shape_env.from_one())
