"""Dynamic dimensions of tensors whose sizes are multiples of those of the inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._sympy.numbers import int_oo

from onnx_ops.torch.base.arguments import Dimension


def dimensions(
    sizes: Mapping[str, Mapping[int, torch.SymInt]], symbols: Mapping[Any, Dimension]
) -> dict[str, dict[int, Dimension]]:
    """The dynamic dimensions of the sizes of tensors, by their names and axes.

    A size that is an integer multiple of a dimension of the inputs, as after a concatenation along it, is that multiple
    of it, or of a new dimension if all multiples of it have a common factor. Dim.AUTO for other computed sizes.

    Args:
        sizes: by the names and axes of tensors.
        symbols: the symbol of each dynamic dimension of the inputs, with the dimension.
    """
    found = {name: {axis: _multiple(size, symbols) for axis, size in axes.items()} for name, axes in sizes.items()}
    factors: dict[str, list[int]] = {}
    for dim, factor in (multiple for axes in found.values() for multiple in axes.values()):
        factors.setdefault(getattr(dim, "__name__", ""), []).append(factor)

    def dimension(dim: Dimension, factor: int) -> Dimension:
        others = factors[getattr(dim, "__name__", "")]
        common = math.gcd(*others)
        if factor == 1 or not isinstance(dim, torch.export.Dim):
            return dim
        if common > 1 and len(others) == 1:
            return torch.export.Dim.AUTO
        if common > 1:
            most = dim.max if dim.max == int_oo else common * dim.max
            dim = torch.export.Dim(f"{dim.__name__}_times_{common}", min=common * dim.min, max=most)
        return dim if factor == common else factor // common * dim

    return {name: {axis: dimension(*of) for axis, of in axes.items()} for name, axes in found.items()}


def _multiple(size: torch.SymInt, symbols: Mapping[Any, Dimension]) -> tuple[Dimension, int]:
    """The dynamic dimension of which a size is a multiple, with the factor; Dim.AUTO and 1 if there is none."""
    replaced = size.node.shape_env.replace  # one symbol for those that the trace has found to be equal
    for symbol, dim in symbols.items():
        factor = size.node.expr / replaced(symbol)
        if factor == 1 or (factor.is_Integer and factor > 1 and isinstance(dim, torch.export.Dim)):
            return dim, int(factor)
    return torch.export.Dim.AUTO, 1
