"""Python's max and min of tensors of one number, as in `max(weights.sum(), 1)`, without a branch on data."""

from __future__ import annotations

import builtins
import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor


@contextlib.contextmanager
def extremes_of_tensors() -> Iterator[None]:
    """A context in which max and min of such tensors, and of these and numbers, are tensors."""
    with (
        mock.patch.object(builtins, "max", _Extreme(builtins.max, operator.gt)),
        mock.patch.object(builtins, "min", _Extreme(builtins.min, operator.lt)),
    ):
        yield


class _Extreme:
    """max or min, which returns the first of equal arguments, as Python does.

    Args:
        original: the function.
        precedes: whether its result is its second argument, as an operator on them in the other order.
    """

    def __init__(self, original: Callable[..., Any], precedes: Callable[[Any, Any], Any]) -> None:
        self._original, self._precedes = original, precedes

    def __call__(self, *args: Any, **options: Any) -> Any:
        given = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
        if options or len(given) < 2 or not _are_numbers(given):
            return self._original(*args, **options)
        found = given[0]
        for other in given[1:]:
            found = torch.where(self._precedes(other, found), other, found)
        return found


def _are_numbers(given: Sequence[Any]) -> bool:
    """Whether these are tensors of one number, of one dtype, and numbers of Python that leave it as it is."""
    tensors = [one for one in given if isinstance(one, Tensor)]
    if not tensors or any(one.dim() or one.dtype is not tensors[0].dtype for one in tensors):
        return False
    kinds = (int, float) if tensors[0].is_floating_point() else (int,)
    return all(isinstance(one, Tensor) or type(one) in kinds for one in given)
