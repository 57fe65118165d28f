"""Arrays and shapes to call ops with. All random numbers of the tests come from here, seeded by what they are for."""

from __future__ import annotations

import contextlib
import contextvars
import math
import zlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tests.ops._shared.numbers import Array

Shape = tuple[int, ...]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
INF, NAN = math.inf, math.nan

# (first, second): shapes that broadcast with each other, rank 0 to 8, size-1 axes, empty tensors, scalars.
BROADCASTS: tuple[tuple[Shape, Shape], ...] = (
    ((), ()),
    ((), (5,)),
    ((5,), ()),
    ((1,), (4,)),
    ((3, 1), (1, 4)),
    ((4,), (3, 4)),
    ((2, 1, 3), (5, 1)),
    ((2, 3, 4), (2, 3, 4)),
    ((1, 3, 1, 2), (4, 1, 5, 2)),
    ((2, 1, 2, 1, 2), (1, 3, 1, 3, 1)),
    ((2, 3), (1, 1, 1, 1, 2, 3)),
    ((2, 1, 2, 1, 2, 1, 2), (3, 1, 2, 1, 2, 1)),
    ((2, 1, 2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2, 1, 2)),
    ((1, 1, 1, 1, 1, 1, 1, 1), ()),
    ((), (2, 1, 2, 1, 2, 1, 2, 3)),
    ((0,), (1,)),
    ((0,), ()),
    ((3, 0), (1, 1)),
    ((2, 1), (2, 0)),
    ((0, 4), (4,)),
    ((2, 0, 3), (1, 0, 1)),
    ((33, 1), (1, 70)),
    ((1, 70), (33, 1)),
)

# (own, into): shapes that broadcast to another one.
INTO: tuple[tuple[Shape, Shape], ...] = (
    ((), ()),
    ((), (5,)),
    ((1,), (5,)),
    ((5,), (3, 5)),
    ((3, 1), (3, 5)),
    ((1, 5), (3, 5)),
    ((3, 5), (3, 5)),
    ((1, 1), (3, 5)),
    ((4, 1), (2, 4, 3)),
    ((2, 1, 3), (2, 4, 3)),
    ((2, 1, 2, 1), (3, 2, 2, 2, 2)),
    ((1, 2, 1, 2, 1, 2, 1, 2), (2, 2, 2, 2, 2, 2, 2, 2)),
    ((), (0, 3)),
    ((1, 3), (0, 3)),
    ((40, 1), (40, 90)),
    ((90,), (40, 90)),
)


def text_of(*parts: Any) -> str:
    """Shapes and other values as a label."""
    return "-".join(map(str, parts)).replace(" ", "")


_besides: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("besides", default=())


@contextlib.contextmanager
def other_numbers(*key: Any) -> Iterator[None]:
    """Within, the same keys have other generators, those of this key too."""
    token = _besides.set(key)
    try:
        yield
    finally:
        _besides.reset(token)


def rng(*key: Any) -> np.random.Generator:
    """The generator that belongs to a key; all random numbers of the tests come from here."""
    return np.random.default_rng(zlib.crc32(repr((*key, *_besides.get())).encode()))


def normal(shape: Shape, dtype: npt.DTypeLike, *key: Any, scale: float = 1.0) -> Array:
    """Normal numbers, rounded to `dtype`."""
    return np.asarray(rng("normal", shape, *key).normal(size=shape) * scale).astype(dtype)


def uniform(shape: Shape, dtype: npt.DTypeLike, *key: Any, low: float = 0.0, high: float = 1.0) -> Array:
    """Evenly spread numbers, rounded to `dtype`."""
    return np.asarray(rng("uniform", shape, *key).uniform(low, high, shape)).astype(dtype)


def extreme(shape: Shape, dtype: npt.DTypeLike, *key: Any) -> Array:
    """Numbers of both signs, over all exponents of a dtype; some are 0, 1, or the largest number."""
    generator, limits = rng("extreme", shape, dtype, *key), ml_dtypes.finfo(dtype)
    lowest = math.log2(float(limits.smallest_subnormal))
    sizes = np.exp2(generator.uniform(lowest, math.log2(float(limits.max)) - 0.01, shape))
    sizes = np.choose(generator.choice(4, shape, p=[0.85, 0.05, 0.05, 0.05]), [sizes, 0.0, 1.0, float(limits.max)])
    return np.asarray(sizes * generator.choice([-1.0, 1.0], shape)).astype(dtype)


def all_bits(dtype: npt.DTypeLike) -> Array:
    """Every number of a 16-bit dtype, in the order of the bit patterns (65536,)."""
    return np.arange(65536, dtype=np.uint32).astype(np.uint16).view(dtype)
