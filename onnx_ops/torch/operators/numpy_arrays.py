"""NumPy arrays of tensors while a step is traced: of values that are known, or of numbers that are read from data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from onnx_ops.torch.base.table import replaces

MAX_READ = 64
"""Maximal number of elements of an array of numbers that are read from data."""


@replaces(torch.Tensor.numpy)
def _numpy(input: torch.Tensor, *, force: bool = False) -> np.ndarray:
    count = input.numel()
    if isinstance(input, FakeTensor):
        if input.constant is None and isinstance(count, int) and count <= MAX_READ:
            return np.array(input.tolist(), object)
    elif active_fake_mode() is None and count <= MAX_READ:
        input.tolist()  # so that the numbers of the example are recorded, one by one as they are read in a trace
    with no_dispatch():
        return _known(input).numpy(force=force)


@replaces(torch.Tensor.__array__)
def _array(input: torch.Tensor, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    return np.asarray(_numpy(input), dtype)


def _known(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its values, if they are known."""
    value = getattr(tensor, "constant", None)
    return tensor if value is None else value
