"""How PyTorch's functions name a reduction, and how operators number it."""

from __future__ import annotations

from torch.nn import _reduction

from onnx_ops.core.reduction import Reduction


def number(reduction: str, size_average: bool | None = None, reduce: bool | None = None) -> int:
    """The number of a reduction; the two flags are the older way of PyTorch's functions to say it."""
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce, emit_warning=False)
    return int(Reduction[reduction.upper()])
