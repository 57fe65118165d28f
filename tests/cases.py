"""What the tests of several ops share: seeded arrays, shapes, and strategies for them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import golden
import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from onnx.defs import OpSchema

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

GOLDEN = golden.load_golden()

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


def rng(*key: Any) -> np.random.Generator:
    """The generator that belongs to a key; all random numbers of the tests come from here."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def normal(shape: Shape, dtype: Any, *key: Any, scale: float = 1.0) -> Array:
    """Normal numbers, rounded to `dtype`."""
    return np.asarray(rng("normal", shape, *key).normal(size=shape) * scale).astype(dtype)


def uniform(shape: Shape, dtype: Any, *key: Any, low: float = 0.0, high: float = 1.0) -> Array:
    """Evenly spread numbers, rounded to `dtype`."""
    return np.asarray(rng("uniform", shape, *key).uniform(low, high, shape)).astype(dtype)


def allowed_types(schema: OpSchema, parameter: OpSchema.FormalParameter) -> set[str]:
    """What FormalParameter.types says, which cannot be asked for in onnx 1.20."""
    return {t for c in schema.type_constraints if c.type_param_str == parameter.type_str for t in c.allowed_type_strs}


def extreme(shape: Shape, dtype: Any, *key: Any) -> Array:
    """Numbers of both signs, over all exponents of a dtype; some are 0, 1, or the largest number."""
    generator, limits = rng("extreme", shape, dtype, *key), ml_dtypes.finfo(dtype)
    lowest = math.log2(float(limits.smallest_subnormal))
    sizes = np.exp2(generator.uniform(lowest, math.log2(float(limits.max)) - 0.01, shape))
    sizes = np.choose(generator.choice(4, shape, p=[0.85, 0.05, 0.05, 0.05]), [sizes, 0.0, 1.0, float(limits.max)])
    return np.asarray(sizes * generator.choice([-1.0, 1.0], shape)).astype(dtype)


def shape_id(value: Any) -> str | None:
    """Test id of a shape: 2x3, or scalar."""
    if isinstance(value, tuple) and all(isinstance(d, int) for d in value):
        return "x".join(map(str, value)) or "scalar"
    if isinstance(value, np.dtype):
        return value.name
    return None


def all_bits(dtype: Any) -> Array:
    """Every number of a 16-bit dtype, in the order of the bit patterns (65536,)."""
    return np.arange(65536, dtype=np.uint32).astype(np.uint16).view(dtype)


# --- strategies ----------------------------------------------------------------------------------------------------


@st.composite
def broadcast_pairs(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Two shapes that broadcast with each other, rank 0 to 8, sizes 0 to 4."""
    shapes = draw(mutually_broadcastable_shapes(num_shapes=2, max_dims=8, min_side=0, max_side=4)).input_shapes
    return tuple(shapes[0]), tuple(shapes[1])


@st.composite
def shapes_into(draw: st.DrawFn, shape: Shape) -> Shape:
    """A shape that broadcasts to `shape`."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(1 if draw(st.booleans()) else d for d in kept)


@st.composite
def small_shapes(draw: st.DrawFn, min_rank: int = 0, min_side: int = 0) -> Shape:
    """Any shape of at most 8 dimensions and a few thousand elements."""
    shape = draw(st.lists(st.integers(min_side, 5), min_size=min_rank, max_size=8).map(tuple))
    return shape if math.prod(shape) <= 5000 else tuple(min(d, 2) for d in shape)


def golden_cases(op: str) -> Sequence[golden.Golden]:
    """PyTorch's stored results for an op, by its snake_case name."""
    found = [case for case in GOLDEN if case.op == op]
    assert found
    return found
