"""What the gradients of depthwise convolutions share: places of filters, and attributes that no filters have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.ops._shared.arrays import Shape
from tests.ops._shared.record import Refusal

Numbers = tuple[int, ...]


def places(length: int, size: int, stride: int, before: int, after: int, dilation: int) -> int:
    """How many places a filter has along an axis: as long as its last element is in the padded input."""
    starts = itertools.takewhile(
        lambda start: start + dilation * (size - 1) < length + before + after, itertools.count(0, stride)
    )
    return sum(1 for _ in starts)


def counts_of(lengths: Shape, filter_size: Numbers, strides: Numbers, pads: Numbers, dilations: Numbers) -> Shape:
    """The same along all axes; attributes that are empty are at their defaults."""
    rank = len(filter_size)
    strides, pads, dilations = strides or (1,) * rank, pads or (0,) * 2 * rank, dilations or (1,) * rank
    return tuple(
        places(*axis) for axis in zip(lengths, filter_size, strides, pads[:rank], pads[rank:], dilations, strict=True)
    )


def wrong_windows() -> Iterator[Refusal]:
    """Attributes that are wrong where there are two spatial axes."""
    for name, value, words in (
        ("strides", (1,), "2 numbers"),
        ("strides", (0, 1), "at least 1"),
        ("pads", (1, 1), "4 numbers"),
        ("pads", (0, 0, -1, 0), "at least 0"),
        ("dilations", (1, 1, 1), "2 numbers"),
        ("dilations", (1, -1), "at least 1"),
    ):
        label = f"{name}_{value}".replace(" ", "")
        yield Refusal(label, (f"'{name}'", f" {value},", words), attributes={name: value})
