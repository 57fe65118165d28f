"""Conditions on sizes where PyTorch raises an error otherwise, as that a maximum has elements."""

from __future__ import annotations

from collections.abc import Iterable

import sympy
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from onnx_ops.torch.base.sizes import Size


def require_elements(tensor: Tensor, axes: Iterable[int] | None = None) -> None:
    """Require that sizes of a tensor are 1 or more, as `require_size`.

    Args:
        tensor: in a trace, or with data.
        axes: those that must not be empty; None for all of them.
    """
    if not tensor.dim():
        return
    for axis in range(tensor.dim()) if axes is None else axes:
        require_size(tensor.shape[axis], 1)


def require_size(size: Size, least: Size) -> None:
    """Require that a size is not less than another one.

    For sizes that depend on data that becomes a condition of the step. Dynamic sizes that do not fulfil it are refused,
    0 and 1 among them: of x.shape[0] those below 3 where x[2:] must have elements.
    """
    torch._check(size >= least)
    dynamic = [each for each in (size, least) if isinstance(each, torch.SymInt)]
    if dynamic and not any(map(free_unbacked_symbols, dynamic)):
        dynamic[0].node.shape_env.require(*map(sympy.sympify, (size, least)))  # of a RecordedShapes
