"""Conditions on sizes where PyTorch raises an error otherwise, as that a maximum has elements."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols


def require_elements(tensor: Tensor, axes: Iterable[int] | None = None) -> None:
    """Require that sizes of a tensor are 1 or more.

    For sizes that depend on data that becomes a condition of the step. Of other dynamic sizes 0 is refused, and 1 if
    what is computed from it is 0 then, as `x[1:].shape[0]`.

    Args:
        tensor: in a trace, or with data.
        axes: those that must not be empty; None for all of them.
    """
    if not tensor.dim():
        return
    for axis in range(tensor.dim()) if axes is None else axes:
        size = tensor.shape[axis]
        if not isinstance(size, torch.SymInt) or free_unbacked_symbols(size):
            torch._check(size >= 1)
        else:
            size.node.shape_env.require_elements(size.node.expr)  # of a RecordedShapes
