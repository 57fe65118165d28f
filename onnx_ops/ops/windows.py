"""Windows that move over spatial axes: the bounds of their attributes, within which no arithmetic of kernels wraps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx_ops.core.call import Call
from onnx_ops.core.types import Dim
from onnx_ops.loops.primitives import helper

AXES = 3
"""Greatest number of spatial axes. With fewer, axes of size 1 precede them in kernels, with windows of size 1."""
LEAD = 2
"""Axes before the spatial ones, in the tensors of convolutions."""
MAX_PADDING = 2**28
"""Elements that padding may add to a plane which has fewer. A function body makes a tensor of the padded plane."""


@helper
def volume(sizes: Sequence[int]) -> int:
    """Product of the sizes along the spatial axes."""
    return int(sizes[0] * sizes[1] * sizes[2])


@helper
def adds_too_much(inside: float, padded: float) -> bool:
    """Whether padding adds too many elements to a plane of so many; exact in float64, as far as it does not."""
    return padded - inside > max(MAX_PADDING, inside)


def check_padding(call: Call, attribute: str, sizes: Sequence[Dim], added: Sequence[int]) -> None:
    """Refuse an attribute that adds too much padding to the spatial sizes, as far as they are known.

    Args:
        call: whose attributes are at most MAX_NUMBER.
        attribute: its name.
        sizes: along each spatial axis.
        added: the padding of both ends of each axis.
    """
    known = [size if isinstance(size, int) else 0 for size in sizes]
    padded = [size + more for size, more in zip(known, added, strict=True)]
    if adds_too_much(math.prod(known), math.prod(padded)):
        problem = f"attribute '{attribute}' is {call.attributes[attribute]}"
        raise call.error(f"{problem}, expected padding of at most {MAX_PADDING} elements, or as many as a plane has")
