"""Conditions on sizes where PyTorch raises an error otherwise, as that a maximum has elements."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols


def require_elements(tensor: Tensor, axes: Iterable[int] | None = None) -> None:
    """Require that sizes of a tensor are 1 or more.

    For sizes that depend on data that becomes a condition of the step. Other dynamic sizes are 1 or more, but those
    computed from them may be 0, as `x[1:].shape[0]`: where x.shape[0] = 1 is the cause, that size of it is refused.

    Args:
        tensor: in a trace, or with data.
        axes: those that must not be empty; None for all of them.
    """
    if not tensor.dim():
        return
    for axis in range(tensor.dim()) if axes is None else axes:
        condition = tensor.shape[axis] >= 1
        if not isinstance(condition, torch.SymBool) or free_unbacked_symbols(condition):
            torch._check(condition)
        else:
            condition.node.shape_env.note(condition.node.expr)  # of a RecordedShapes
