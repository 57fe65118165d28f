"""Sequences of numbers whose length is a dynamic size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.table import replaces


@replaces(torch.linspace)
def _linspace(start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """PyTorch's takes no dynamic number; each half is counted from its end, as there."""
    kind = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(steps, torch.SymInt) or not kind.is_floating_point or options.keys() - {"device"}:
        return torch.linspace(start, end, steps, dtype=dtype, **options)
    places, last = torch.arange(steps, **options), torch.sym_max(steps - 1, 1)
    difference = end - start
    low = start + difference * (places.to(kind) / last)
    high = end - difference * ((last - places).to(kind) / last)
    return torch.where(2 * places < steps, low, high).to(kind)
