"""Pairs of features that are rotated together: where they are, and which cosines and sines a row of features has.

The features of a position of a head, the last axis, make up a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

import numpy as np

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import MAX_RANK, Shape
from onnx_ops.graph.builder import Value
from onnx_ops.loops.memory import allocate, free, item_size, record_at, tail
from onnx_ops.loops.primitives import Array, Floating, ceil_divide, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, Numbers, record_of
from onnx_ops.loops.shapes import same_shape, volume
from onnx_ops.ops.elements import deliver, destination, elements

HALF, INTERLEAVE, QUARTER, INTERLEAVE_HALF = range(4)
MODES = {HALF: "half", INTERLEAVE: "interleave", QUARTER: "quarter", INTERLEAVE_HALF: "interleave-half"}
MODE = attribute(
    "mode", HALF, "Which features make up a pair: 0 half, 1 interleave, 2 quarter, 3 interleave-half, see above."
)

WORK, BATCH = 1 << 15, 1 << 11
"""Approximate numbers of elements per task, and of those that are converted to the computing dtype at once."""
FEATURES, COS, SIN = range(3)
"""Inputs of both ops: rows of features, or gradients with respect to them, cosines and sines."""
Turn = Callable[[Any, Any, Any, int, int, Any], None]
"""turn(x, cos, sin, width, mode, out): a row, from a row of features, of cosines and of sines."""


def check_pairs(call: Call, name: str) -> Shape | None:
    """The shape of an input; raises OpError unless its features make up pairs, and 'cos' and 'sin' fit it."""
    shape, cos = call.shape(name), call.shape("cos")
    multiple = 4 if call.attributes["mode"] == QUARTER else 2
    for own in (name, "cos"):
        sizes = call.shape(own)
        if sizes is None:
            continue
        if len(sizes) == 0:
            raise call.shape_error(own, "at least one dimension")
        features = sizes[-1]
        if isinstance(features, int) and features % multiple != 0:
            mode = MODES[call.attributes["mode"]]
            raise call.shape_error(own, f"a multiple of {multiple} at the last axis, for mode '{mode}'")
    call.same_shape("sin", cos, "the shape of 'cos'")
    call.broadcast_to("cos", shape, f"the shape of '{name}'")
    if shape is not None and cos is not None:
        call.same_shape("cos", (*cos[:-1], shape[-1]), f"with the last axis of '{name}'")
    return shape


# --- in NumPy ---------------------------------------------------------------------------------------------------------


def gathered(x: np.ndarray, mode: int) -> np.ndarray:
    """The features in the order of the result: those with an even index first, in mode INTERLEAVE_HALF."""
    return np.concatenate((x[..., ::2], x[..., 1::2]), axis=-1) if mode == INTERLEAVE_HALF else x


def scattered(x: np.ndarray, mode: int) -> np.ndarray:
    """Inverse of `gathered`."""
    if mode != INTERLEAVE_HALF:
        return x
    result, half = np.empty_like(x), x.shape[-1] // 2
    result[..., ::2], result[..., 1::2] = x[..., :half], x[..., half:]
    return result


def quarter_turn(x: np.ndarray, mode: int, clockwise: bool = False) -> np.ndarray:
    """(-b, a) for each pair (a, b) of what `gathered` returns, or (b, -a)."""
    features = x.shape[-1]
    inner = {INTERLEAVE: 1, QUARTER: features // 4}.get(mode, features // 2)
    outer = features // 2 if mode == INTERLEAVE else 2 if mode == QUARTER else 1
    pairs = x.reshape(*x.shape[:-1], outer, 2, inner)
    first, second = pairs[..., 0, :], pairs[..., 1, :]
    return np.stack((second, -first) if clockwise else (-second, first), axis=-2).reshape(x.shape)


# --- in kernels -------------------------------------------------------------------------------------------------------


class Rows(Protocol):
    """The layout of a run."""

    width: int  # features of a row
    rows: int
    step: int  # rows of a task
    axes: int  # of the rows
    size: Annotated[Numbers, MAX_RANK]
    stride: Annotated[Numbers, MAX_RANK]  # rows of cosines from one index to the next: 0 where there is one for all
    angles: int  # rows of cosines
    angle_step: int  # of a task that adds up their gradients


LAYOUT = record_of(Rows)


@helper
def lay_out(layout: Rows, job: Job, mode: int) -> bool:
    """Write the layout of the rows, and the number of tasks; returns whether the shapes of cosines and sines fit."""
    rank, own = job.rank[FEATURES], job.rank[COS]
    if rank < 1 or own < 1 or own > rank or not same_shape(job, SIN, COS):
        return False
    width = job.dims[FEATURES, rank - 1]
    if job.dims[COS, own - 1] != width or width % (4 if mode == QUARTER else 2) != 0:
        return False
    angles = 1
    for k in range(2, rank + 1):  # axes from the last but one on
        size = job.dims[COS, own - k] if k <= own else 1
        if size != 1 and size != job.dims[FEATURES, rank - k]:
            return False
        layout.size[rank - k] = job.dims[FEATURES, rank - k]
        layout.stride[rank - k] = 0 if size == 1 else angles
        angles *= size
    layout.width, layout.axes, layout.angles = width, rank - 1, angles
    layout.rows = volume(job, FEATURES, 0, rank - 1)
    layout.step = max(WORK // max(width, 1), 1)
    layout.angle_step = max(WORK // max(width * ceil_divide(layout.rows, max(angles, 1)), 1), 1)
    job.tasks = 0 if width == 0 else ceil_divide(layout.rows, layout.step)
    return True


@helper
def angles_of(layout: Rows, row: int, index: Array) -> int:
    """The row of cosines of a row, whose index is written to `index`."""
    angle = 0
    for k in range(layout.axes):
        axis = layout.axes - 1 - k
        size = layout.size[axis]
        index[axis] = row % size
        angle += index[axis] * layout.stride[axis]
        row //= size
    return angle


@helper
def next_angles(layout: Rows, angle: int, index: Array) -> int:
    """The row of cosines of the next row, whose index replaces `index`."""
    for k in range(layout.axes):
        axis = layout.axes - 1 - k
        index[axis] += 1
        angle += layout.stride[axis]
        if index[axis] < layout.size[axis]:
            break
        angle -= layout.stride[axis] * layout.size[axis]
        index[axis] = 0
    return angle


@helper
def rows_of(
    kernel: Kernel, job: Job, i: int, first: int, count: int, width: int, converted: Array, dtype: Floating
) -> Any:
    """Rows of input i in a computing dtype: where they are, if it has it, else in `converted`."""
    element_type = kernel.element_type[i]
    address = job.data[i] + first * width * item_size(element_type)
    return elements(kernel, address, element_type, count * width, converted, dtype)


@helper
def turn_rows(job: Job, number: int, turn: Turn, mode: int, dtype: Floating) -> None:
    """Some rows of the first output, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    width, element_type, in_place = layout.width, kernel.element_type[FEATURES], job.in_place != 0
    several = max(BATCH // width, 1)
    some_rows = (several * width, dtype)
    memory, index, features, cosines, sines, result = allocate(
        (MAX_RANK, np.int64), some_rows, some_rows, some_rows, some_rows
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    begin = number * layout.step
    end = min(begin + layout.step, layout.rows)
    angle, low, high = angles_of(layout, begin, index), 0, 0
    cos = rows_of(kernel, job, COS, low, 0, width, cosines, dtype)
    sin = rows_of(kernel, job, SIN, low, 0, width, sines, dtype)
    for first in range(begin, end, several):
        count = min(several, end - first)
        x = rows_of(kernel, job, FEATURES, first, count, width, features, dtype)
        target = job.output[0] + first * width * item_size(element_type)
        out = destination(target, element_type, count * width, in_place, result, dtype)
        for k in range(count):
            if angle < low or angle >= high:
                low, high = angle, min(angle + several, layout.angles)
                cos = rows_of(kernel, job, COS, low, high - low, width, cosines, dtype)
                sin = rows_of(kernel, job, SIN, low, high - low, width, sines, dtype)
            row, turned = k * width, (angle - low) * width
            turn(tail(x, row), tail(cos, turned), tail(sin, turned), width, mode, tail(out, row))
            angle = next_angles(layout, angle, index)
        deliver(kernel, result, count * width, target, element_type, in_place, dtype)
    free(memory)


# --- in function bodies -----------------------------------------------------------------------------------------------


class Pairs:
    """Shapes of an input, by which its features become pairs, in a function body."""

    def __init__(self, b: Body, name: str) -> None:
        self._b = b
        self._mode: int | None = b.attribute("mode")
        self.whole = b.op("Shape", b.inputs[name], name="whole")
        self._features = b.op("Shape", b.inputs[name], name="features", start=-1)
        leading = b.op("Shape", b.inputs[name], name="leading", end=-1)
        self._rows = b.op("ReduceProd", leading, name="rows", keepdims=1)

    def _by_mode(self, values: dict[int, Value], other: Value) -> Value:
        """A value by the attribute `mode`."""
        if self._mode is not None:
            return values.get(self._mode, other)
        for mode, value in values.items():
            is_mode = self._b.value_of("mode").equal(mode).named(f"is_mode_{mode}")
            other = self._b.op("Where", is_mode, value, other, name="by_mode")
        return other

    def _divided(self, divisor: int) -> Value:
        return (self._features / self._b.constant([divisor])).named(f"features_over_{divisor}")

    def gathered(self, x: Value) -> Value:
        """The features in the order of the result."""
        return self._exchanged(x, inverse=False)

    def scattered(self, x: Value) -> Value:
        """Inverse of `gathered`."""
        return self._exchanged(x, inverse=True)

    def _exchanged(self, x: Value, inverse: bool) -> Value:
        """Rows as matrices of two columns, transposed; or the other way round."""
        b = self._b
        if self._mode not in (None, INTERLEAVE_HALF):
            return x
        columns = self._by_mode({INTERLEAVE_HALF: b.constant([2])}, b.constant([1]))
        lines = (self._features / columns).named("lines")
        sizes = b.op("Concat", self._rows, *((columns, lines) if inverse else (lines, columns)), axis=0)
        exchanged = b.op("Transpose", b.op("Reshape", x, sizes, allowzero=1), name="exchanged", perm=[0, 2, 1])
        return self.reshaped(exchanged, "scattered" if inverse else "gathered")

    def quarter_turn(self, x: Value, clockwise: bool = False) -> Value:
        """(-b, a) for each pair (a, b) of what `gathered` returns, or (b, -a)."""
        b = self._b
        one, two, half = b.constant([1]), b.constant([2]), self._divided(2)
        inner = self._by_mode({INTERLEAVE: one, QUARTER: self._divided(4)}, half)
        outer = self._by_mode({INTERLEAVE: half, QUARTER: two}, one)
        sizes = b.op("Concat", (self._rows * outer).named("groups"), two, inner, axis=0)
        pairs = b.op("Reshape", x, sizes, name="pairs", allowzero=1)
        first, second = b.several("Split", pairs, [1, 1], names=("first", "second"), axis=1)
        turned = (second, -first) if clockwise else (-second, first)
        return self.reshaped(b.op("Concat", *turned, name="turned", axis=1), "turned_rows")

    def reshaped(self, x: Value, name: str) -> Value:
        """The shape of the input."""
        return self._b.op("Reshape", x, self.whole, name=name, allowzero=1)
