"""What the steps of synchronized batch norm share. Channels are on axis 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tests.ops._shared.arrays import BFLOAT16, FLOAT16, FLOAT32, Shape, normal, uniform
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import Call, Choice, DType, Input, Refusal

COUNTS = Input((np.dtype(np.int32), FLOAT16, BFLOAT16, FLOAT32))
FORMS: dict[str, Shape] = {
    "plain": (2, 3),
    "images": (3, 4, 7),
    "planes": (2, 3, 4, 5),
    "one_channel": (5, 1, 3),
    "rank_8": (2, 3, 1, 2, 1, 2, 1, 2),
    "single": (1, 2),
}
# What a channel's numbers are like, by the name of the input.
SIGNED = ("mean", "weight", "bias", "running_mean")
POSITIVE = ("invstd", "running_var")
SUMS = ("sum_dy", "sum_dy_xmu")


def axes(shape: Shape) -> tuple[int, ...]:
    """All but the channels'."""
    return (0, *range(2, len(shape)))


def per_channel_input(name: str, channels: int, dtype: DType) -> Array:
    if name in POSITIVE:
        return uniform((channels,), dtype, name, low=0.3, high=3.0)
    return normal((channels,), dtype, name, scale=20.0 if name in SUMS else 1.0)


def operands(names: tuple[str, ...], choice: Choice) -> dict[str, Array | None]:
    """Inputs by name: tensors of the shape of the form, numbers per channel, counts of workers."""
    shape: Shape = choice.form
    made: dict[str, Array | None] = {}
    for name in names:
        kind = choice.dtypes[name]
        if kind is None:
            made[name] = None
        elif name in ("grad_out", "input"):
            made[name] = normal(shape, kind, name)
        elif name == "counter":
            made[name] = np.array([5, 32], kind)
        else:
            made[name] = per_channel_input(name, shape[1], kind)
    return made


def of_shape(op: str, names: tuple[str, ...], shape: Shape, label: str, dtype: DType = FLOAT32) -> Call:
    kinds = {name: np.dtype(np.int32) if name == "counter" else dtype for name in names}
    return Call(op, operands(names, Choice(kinds, {}, shape)), label=label)


def large(op: str, names: tuple[str, ...], dtype: DType) -> Iterator[Call]:
    """216,611 elements, a multiple of no block; many rows, and few; planes of few places."""
    for shape in ((53, 61, 67), (3000, 71), (1, 3, 70_001), (40, 7, 19)):
        yield of_shape(op, names, shape, f"large_{shape[0]}", dtype)


def refusals(plain: Call) -> Iterator[Refusal]:
    """Shapes that do not fit; the plain call's input is (2, 3)."""
    names = list(plain.inputs)
    channels = [n for n in names if n in (*SIGNED, *POSITIVE, *SUMS)]

    def wrong(name: str, shape: Shape, *words: str, by_rank: bool = False, others: Mapping[str, Shape] = {}) -> Refusal:
        text = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
        change: dict[str, Array | None] = {n: np.zeros(s, np.float32) for n, s in {**others, name: shape}.items()}
        label = f"{name}_of_{'x'.join(map(str, shape)) or 'rank_0'}"
        return Refusal(label, (f"'{name}'", text, "expected", *words), change, by_rank=by_rank)

    with_grad = "grad_out" in names
    for shape in ((3,), ()):
        others = {"grad_out": shape} if with_grad else {}
        yield wrong("input", shape, "2 to 8 dimensions", by_rank=True, others=others)
    none = {name: (0,) for name in channels} | ({"grad_out": (2, 0)} if with_grad else {})
    yield wrong("input", (2, 0), "channel", others=none)
    if with_grad:
        yield wrong("grad_out", (2, 1), "(2, 3)", "'input'")
        yield wrong("grad_out", (2, 3, 1), "(2, 3)", "'input'", by_rank=True)
    for name in channels:
        yield wrong(name, (2,), "(3,)", "channel")
        yield wrong(name, (1,), "(3,)", "channel")
        yield wrong(name, (1, 3), "(3,)", "channel", by_rank=True)


CHANNELS, PIXELS = 64, 28 * 28


def images(elements: int) -> Shape:
    """The shape of a batch of images of 64 channels, 28 pixels wide and high where there are enough elements."""
    pixels = min(PIXELS, elements // CHANNELS + 1)
    return max(elements // (CHANNELS * pixels), 1), CHANNELS, pixels


SMALL_PLANES: dict[str, Shape] = {"16x512x4x4": (16, 512, 4, 4), "32x256x7x7": (32, 256, 7, 7)}
"""Of the last layers of nets for images."""


def benchmark_inputs(names: tuple[str, ...], size: int | Shape, dtype: DType) -> dict[str, Array | None]:
    """Statistics in float32 beside 16-bit images, of a shape or of a number of elements."""
    shape = images(size) if isinstance(size, int) else size
    wide = np.promote_types(dtype, np.float32)
    made: dict[str, Array | None] = {}
    for name in names:
        if name in ("grad_out", "input"):
            made[name] = normal(shape, dtype, name)
        elif name == "counter":
            made[name] = np.array([math.prod(shape) // shape[1]] * 2, np.int32)
        else:
            made[name] = uniform((shape[1],), wide, name, low=0.5, high=1.5)
    return made


def torch_wide(torch: ModuleType, tensor: Any) -> Any:
    """16-bit tensors in float32, as statistics are kept."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def torch_axes(this: Any) -> tuple[int, ...]:
    return axes(tuple(this.shape))


def column(values: Any, rank: int) -> Any:
    """Numbers per channel as torch broadcasts them along axis 1."""
    return values.view(-1, *[1] * (rank - 2))
