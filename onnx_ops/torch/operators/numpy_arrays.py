"""NumPy arrays of tensors whose values are known while a step is traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._mode_utils import no_dispatch

from onnx_ops.torch.base.table import replaces


@replaces(torch.Tensor.numpy)
def _numpy(input: torch.Tensor, *, force: bool = False) -> np.ndarray:
    with no_dispatch():
        return _known(input).numpy(force=force)


@replaces(torch.Tensor.__array__)
def _array(input: torch.Tensor, dtype: Any = None) -> np.ndarray:
    return np.asarray(_numpy(input), dtype)


def _known(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its values, if they are known."""
    value = getattr(tensor, "constant", None)
    return tensor if value is None else value
