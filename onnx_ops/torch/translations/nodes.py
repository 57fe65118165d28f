"""Nodes of standard operators, as translations write them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import opset18 as op  # in which the exporter writes; it converts the whole graph afterwards

from onnx_ops.torch.errors import CaptureError

__all__ = ["integers", "number", "op", "sizes", "spatial", "taps", "tensor"]


def tensor(array: Any, like: Any) -> Any:
    """A constant of the dtype of another value."""
    return op.Constant(value=ir.tensor(np.asarray(array).astype(like.dtype.numpy())))


def number(value: float, like: Any) -> Any:
    """A scalar of the dtype of another value."""
    return tensor(value, like)


def integers(values: Sequence[int]) -> Any:
    """A constant that says sizes, axes or places."""
    return op.Constant(value=ir.tensor(np.array(values, np.int64)))


def sizes(value: Any) -> list[int]:
    """The shape of a value; -1 for what only a run will tell."""
    return [size if isinstance(size, int) else -1 for size in value.shape]


def spatial(value: Any, operator: str, count: int) -> list[int]:
    """The sizes of the last axes, which must not be dynamic."""
    found = sizes(value)[len(value.shape) - count :]
    if -1 in found:
        raise CaptureError(
            f"{operator} needs sizes of space that are not dynamic, its input has {value.shape}: leave those axes out"
            " of dynamic_shapes"
        )
    return found


def taps(
    x: Any,
    axes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    out: Sequence[int],
) -> Iterator[Any]:
    """For each place of a kernel what it sees as it moves over `axes` of x, which is padded already."""
    trivial = all(k == 1 for k in kernel) and all(s == 1 for s in stride)
    for places in itertools.product(*map(range, kernel)):
        starts = [place * d for place, d in zip(places, dilation, strict=True)]
        ends = [start + (size - 1) * s + 1 for start, size, s in zip(starts, out, stride, strict=True)]
        yield x if trivial else op.Slice(x, integers(starts), integers(ends), integers(axes), integers(stride))
