"""What max pooling with indices and its gradient share: windows, written as slow and obvious loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ops._shared.arrays import Shape, normal
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import Attribute, DType, Refusal
from tests.ops._shared.settings import Settings

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Setting(Settings):
    """The attributes of a pooling."""

    NAMES = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")

    kernel_size: Numbers
    stride: Numbers = ()
    padding: Numbers = ()
    dilation: Numbers = ()
    ceil_mode: int = 0


SETTINGS = (
    Setting((2, 2)),
    Setting((3, 3), (2, 2), (1, 1)),
    Setting((3, 2), (1, 2), (), (2, 1), 1),
    Setting((2, 3), (3, 1), (1, 0), (), 1),
    Setting((3,), (2,), (1,), (), 1),
    Setting((2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2)),
)
MODES = Attribute(0, (0, 1), (-1, 2))


def window_starts(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: int) -> list[int]:
    """Where windows begin along an axis: as long as they fit, or with ceil_mode as long as they begin before the end
    of the input, or of the padding before it, and one more reaches beyond the padding, by less than the stride."""
    reach = dilation * (kernel - 1) + 1
    starts = []
    for start in itertools.count(-padding, stride):
        if start + reach > size + padding:
            # The first that does not fit is the last one, if it is to be there and begins in the input.
            beyond = start + reach - (size + padding)
            if ceil_mode and beyond < stride and start < size:
                starts.append(start)
            return starts
        starts.append(start)
    raise AssertionError


def axes_of(setting: Setting, sizes: Shape) -> list[tuple[list[int], int, int]]:
    """The starts, the size and the dilation of the windows along each axis."""
    kernels, spatial = setting.kernel_size, len(setting.kernel_size)
    strides, paddings = setting.stride or kernels, setting.padding or (0,) * spatial
    return [
        (window_starts(size, kernel, stride, padding, dilation, setting.ceil_mode), kernel, dilation)
        for size, kernel, stride, padding, dilation in zip(
            sizes, kernels, strides, paddings, setting.dilation or (1,) * spatial, strict=True
        )
    ]


def pooled(x: Array, setting: Setting) -> tuple[Array, Array]:
    """Maxima and their places in the plane: the last NaN of a window if there is one, else the first greatest."""
    spatial = len(setting.kernel_size)
    lead, sizes = x.shape[: x.ndim - spatial], x.shape[x.ndim - spatial :]
    axes = axes_of(setting, sizes)
    shape = (*lead, *(len(starts) for starts, _, _ in axes))
    out, indices = np.empty(shape, x.dtype), np.empty(shape, np.int64)
    for plane in np.ndindex(lead):
        for window in np.ndindex(shape[len(lead) :]):
            steps = [
                [p for p in (starts[o] + j * d for j in range(kernel)) if 0 <= p < size]
                for (starts, kernel, d), o, size in zip(axes, window, sizes, strict=True)
            ]
            best = None
            for place in itertools.product(*steps):
                value = x[plane + place]
                if best is None or value > x[plane + best] or np.isnan(value):
                    best = place
            assert best is not None
            out[plane + window] = x[plane + best]
            indices[plane + window] = np.ravel_multi_index(best, sizes)
    return out, indices


def in_whole_tensor(indices: Array, shape: Shape, spatial: int) -> Array:
    """Indices in a plane as ONNX's MaxPool has them."""
    plane = math.prod(shape[len(shape) - spatial :])
    lead = shape[: len(shape) - spatial]
    begins = plane * np.arange(math.prod(lead)).reshape(lead + (1,) * spatial)
    return np.asarray(indices + begins)


def input_of(lead: Shape, size: int, spatial: int, dtype: DType, *key: Any) -> Array:
    """Few different numbers, so that maxima are often there twice."""
    shape = (*lead, *range(size, size + spatial))
    return np.asarray(np.round(normal(shape, np.float64, "pool", *key) * 3) / 2).astype(dtype)


def wrong_attributes(known: dict[str, Any]) -> Iterator[Refusal]:
    """Attributes that no windows have, besides some that are right."""
    for name, value, words in (
        ("stride", (2,), ("'kernel_size'", "2")),
        ("padding", (0, 0, 0), ("'kernel_size'", "2")),
        ("dilation", (1, 1, 1), ("'kernel_size'", "2")),
        ("kernel_size", (0, 2), ("at least 1",)),
        ("stride", (1, 0), ("at least 1",)),
        ("dilation", (-1, 1), ("at least 1",)),
        ("padding", (-1, 0), ("at least 0",)),
        ("padding", (0, 2), ("at most half",)),
        ("kernel_size", (2**31, 1), ("at most 2147483647",)),
        ("stride", (2**63 - 1, 1), ("at most 2147483647",)),
        ("dilation", (2**48, 1), ("at most 2147483647",)),
        ("padding", (2**62, 0), ("at most 2147483647",)),
        ("kernel_size", (1, 1, 1, 1), ("at most 3",)),
    ):
        label = f"{name}_{'_'.join(map(str, value))}"
        yield Refusal(label, (f"'{name}'", f"{value},", *words), attributes={**known, name: value})
