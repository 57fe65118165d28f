"""What is known of sizes in a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

Size: TypeAlias = int | torch.SymInt
Number: TypeAlias = float | torch.SymInt | torch.SymFloat
"""A number, which may depend on dynamic sizes or data."""
Setting: TypeAlias = Size | Sequence[Size]
"""A setting of a convolution or pool along each axis of space, or one for all of them."""


def of_each_axis(value: Size | Sequence[Any], rank: int) -> list[Any]:
    """A setting of a convolution or pool along each axis of space, of which one may be given for all."""
    values = [value] if isinstance(value, int | torch.SymInt) else list(value)
    return values * rank if len(values) == 1 else values


def in_example(size: Size) -> int:
    """A size in the example; 2 for one that depends on data."""
    return size if isinstance(size, int) else size.node.hint if size.node.has_hint() else 2


def may_be_zero(size: Size) -> bool:
    return not statically_known_true(size >= 1)


def may_be_empty(size: Size) -> bool:
    """Whether a size may be 0, dynamic ones among them that a trace takes to be 2 or more."""
    if not isinstance(size, torch.SymInt):
        return size < 1
    return size.node.shape_env.may_be_empty(size.node.expr)  # of a RecordedShapes
