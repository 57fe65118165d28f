"""What tests of several rooms share: PyTorch's stored results, parameters, and strategies for shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import golden
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from onnx.defs import OpSchema

from tests.ops._shared.arrays import FLOATS, Shape

Row = TypeVar("Row")
GOLDEN = golden.load_golden()


def allowed_types(schema: OpSchema, parameter: OpSchema.FormalParameter) -> set[str]:
    """What FormalParameter.types says, which cannot be asked for in onnx 1.20."""
    return {t for c in schema.type_constraints if c.type_param_str == parameter.type_str for t in c.allowed_type_strs}


def shape_id(value: Any) -> str | None:
    """Test id of a shape: 2x3, or scalar."""
    if isinstance(value, tuple) and all(isinstance(d, int) for d in value):
        return "x".join(map(str, value)) or "scalar"
    if isinstance(value, np.dtype):
        return value.name
    return None


def names_with(full: Collection[Any], names: Iterable[Any]) -> list[Any]:
    """The names, or numbers, as parameters of a test, which `make test` runs without those of `full`."""
    return [pytest.param(name, marks=pytest.mark.full) if name in full else name for name in names]


def narrow_and_wide(ops: Iterable[str]) -> list[Any]:
    """Ops with each dtype, of which `make test` runs float16 and float32 for every second op, else the other two."""
    return [
        pytest.param(op, dtype, marks=[] if (number + place) % 2 else pytest.mark.full)
        for number, op in enumerate(ops)
        for place, dtype in enumerate(FLOATS)
    ]


def check_each(check: Callable[[Row], object], rows: Iterable[Row]) -> None:
    """Check the rows of one test; failures are raised when all are done, with the rows' names.

    For rows that take less time than a test of its own takes in pytest.

    Raises:
        BaseExceptionGroup: the first failures, of which each names its row in a note.
    """
    failures: dict[str, BaseException] = {}
    for row in rows:
        try:
            check(row)
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"Row: {row}")
            failures[str(row)] = error
    if failures:
        shown = list(failures.values())[:5]
        raise BaseExceptionGroup(f"{len(failures)} rows fail: {', '.join(failures)}", shown)


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
