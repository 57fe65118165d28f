"""NumPy arrays of tensors while a step is traced: of values that are known, or of numbers that are read from data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import _numpy
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from onnx_ops.torch.base.table import replaces

MAX_READ = 64
"""Maximal number of elements of an array of integers that are read from data one by one."""

_DEPENDS: ContextVar[Callable[[torch.Tensor], bool] | None] = ContextVar("_DEPENDS", default=None)
"""Whether a trace has not the values of a tensor, in a run with data that records what the trace reads later."""


@contextlib.contextmanager
def recorded_arrays(depends: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """A context in which the arrays of tensors for which `depends` is True are as in a trace."""
    token = _DEPENDS.set(depends)
    try:
        yield
    finally:
        _DEPENDS.reset(token)


@replaces(torch.Tensor.numpy)
def _numpy_of(input: torch.Tensor, *, force: bool = False) -> Any:
    """Of numbers that depend on data an array of torch._numpy; of a few integers, which may be sizes, of numbers."""
    if _is_known(input):
        with no_dispatch():
            return _known(input).numpy(force=force)
    count = input.numel()
    if input.is_floating_point() or input.is_complex() or not isinstance(count, int) or count > MAX_READ:
        return _numpy.ndarray(input.detach())
    numbers = input.tolist()  # in a run with data, so that the numbers of the example are recorded
    return np.array(numbers, object if isinstance(input, FakeTensor) else None)


@replaces(torch.Tensor.__array__)
def _array(input: torch.Tensor, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    return np.asarray(_numpy_of(input), dtype)


def array_of(array: _numpy.ndarray, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
    """The array with its numbers, which other code than functions of NumPy requires; TypeError in a trace."""
    if isinstance(array.tensor, FakeTensor) and array.tensor.constant is None:
        raise TypeError(".numpy() is not available in a trace")
    with torch._C.DisableTorchFunction(), no_dispatch():
        return np.asarray(_known(array.tensor).numpy(), dtype)


def _is_known(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, FakeTensor):
        return tensor.constant is not None
    depends = _DEPENDS.get()
    return depends is None or not depends(tensor)


def _known(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its values, if they are known."""
    value = getattr(tensor, "constant", None)
    return tensor if value is None else value
