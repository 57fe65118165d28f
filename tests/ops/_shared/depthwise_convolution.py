"""What the gradients of depthwise convolutions share: places of filters, PyTorch's gradients, and wrong attributes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tests.ops._shared.arrays import Shape
from tests.ops._shared.record import Benchmark, Call, Refusal

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """Samples, channels, filters of each, and the first spatial size."""

    samples: int
    channels: int
    filters: int
    size: int


FORMS = {
    "few": Form(3, 2, 1, 6),
    "multiplied": Form(2, 3, 2, 5),
    "as_many_as_lanes": Form(1, 8, 2, 7),
    "more_than_lanes": Form(2, 19, 1, 6),
    "many_samples": Form(35, 1, 1, 5),
}

# As ConvNeXt has them.
LARGE_FILTERS = {"8x384x14x14": (8, 384, 14, 14), "8x96x56x56": (8, 96, 56, 56)}


def places(length: int, size: int, stride: int, before: int, after: int, dilation: int) -> int:
    """How many places a filter has along an axis: as long as its last element is in the padded input."""
    starts = itertools.takewhile(
        lambda start: start + dilation * (size - 1) < length + before + after, itertools.count(0, stride)
    )
    return sum(1 for _ in starts)


def with_defaults(rank: int, strides: Numbers, pads: Numbers, dilations: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Attributes for so many spatial axes; those that are empty are at their defaults."""
    return strides or (1,) * rank, pads or (0,) * 2 * rank, dilations or (1,) * rank


def counts_of(lengths: Shape, filter_size: Numbers, strides: Numbers, pads: Numbers, dilations: Numbers) -> Shape:
    """The same along all axes; attributes that are empty are at their defaults."""
    rank = len(filter_size)
    strides, pads, dilations = with_defaults(rank, strides, pads, dilations)
    return tuple(
        places(*axis) for axis in zip(lengths, filter_size, strides, pads[:rank], pads[rank:], dilations, strict=True)
    )


def torch_backward(torch: ModuleType, call: Call, x: Any, weights: Any, grad: Any, by: int) -> Callable[[], Any] | None:
    """PyTorch's gradient by the input, 0, or by the filters, 1; None of a call that PyTorch does not take."""
    rank = grad.ndim - 2
    given = (call.attributes.get(name, ()) for name in ("strides", "pads", "dilations"))
    strides, pads, dilations = with_defaults(rank, *given)
    if not x.dtype == weights.dtype == grad.dtype or pads[:rank] != pads[rank:]:
        return None
    window = strides, pads[:rank], dilations, False, (0,) * rank, x.shape[1]
    wanted = [place == by for place in range(3)]
    backward = functools.partial(torch.ops.aten.convolution_backward, grad, x, weights, None, *window, wanted)
    return lambda: backward()[by]


SIZES = {
    "8x16x28x28": (8, 16, 28, 28),
    "32x64x28x28": (32, 64, 28, 28),
    "32x96x56x56": (32, 96, 56, 56),
}
"""Of inputs, for benchmarks."""


def benchmarks(make: Callable[..., Call]) -> tuple[Benchmark, ...]:
    """Those of plain filters of 3x3, with strides of two, and of 7x7: make(shape, dtype, strides=(), width=3)."""
    return (
        Benchmark(make, SIZES),
        Benchmark(functools.partial(make, strides=(2, 2)), SIZES, "strides of two"),
        Benchmark(functools.partial(make, width=7), LARGE_FILTERS, "filters of 7x7"),
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
        ("strides", (2**62, 1), "at most 2147483647"),
        ("pads", (2**62, 0, 0, 0), "at most 2147483647"),
        ("pads", (0, 0, 2**30, 0), "at most 268435456 elements"),
        ("dilations", (2**63 - 1, 1), "at most 2147483647"),
    ):
        label = f"{name}_{value}".replace(" ", "")
        yield Refusal(label, (f"'{name}'", f" {value},", words), attributes={name: value})
