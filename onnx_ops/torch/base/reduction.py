"""How PyTorch's functions name a reduction."""

from __future__ import annotations

from torch.nn import _reduction

from onnx_ops.core.reduction import Reduction

DEFAULT_REDUCTION = Reduction.NONE
"""That of torch.kl_div and others in Python, though the schemas of their operators say 1, mean."""


def reduction_of(reduction: str, size_average: bool | None = None, reduce: bool | None = None) -> Reduction:
    """A reduction by its name; the two flags are the older way of PyTorch's functions to say it."""
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce, emit_warning=False)
    elif reduction not in ("none", "mean", "sum", "batchmean"):
        _reduction.get_enum(reduction)  # which refuses it
    return Reduction[reduction.upper()]
