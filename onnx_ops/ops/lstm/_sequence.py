"""Sequences of an LSTM: their sizes, and products of the states of a step with weights that are packed once.

The weights of a product become [block of columns, term, LANES]; for a single sample, where reading them takes all of
the time, they are left as they are. A task has some samples, of all steps, so that it waits for no other.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Default, Input
from onnx_ops.core.types import Dim, Shape
from onnx_ops.graph.builder import Value
from onnx_ops.loops.memory import (
    LANES,
    address_of,
    allocate,
    array_at,
    computing_size,
    copy_bytes,
    free,
    interleave,
    item_size,
    read_floats,
    size_of,
    tail,
    whole_lines,
)
from onnx_ops.loops.primitives import Array, Floating, add_any_order, ceil_divide, helper, like
from onnx_ops.loops.records import Job, Kernel, record_of
from onnx_ops.loops.tiles import PANEL, ROWS, multiply_tile
from onnx_ops.ops.lstm._cell import GATES

FORWARDS, BACKWARDS = 0, 1
DIRECTIONS = {FORWARDS: "UNIDIRECTIONAL", BACKWARDS: "REDIRECTIONAL"}
CACHED = 1 << 21
"""Bytes of weights that stay in the cache of a core from one step to the next. Of more, each step of a task reads all
once more from memory, so that tasks have more samples, up to TILES tiles, as far as there are TASKS tasks."""
TASKS, TILES = 4, 4
BLOCKS = 4
"""Blocks of columns of weights that a task packs."""


class Steps(Protocol):
    """The layout of a run."""

    steps: int
    samples: int
    width: int
    step_of_mask: int  # bytes from one step to the next, and from one sample to the next; 0 where the mask broadcasts
    sample_of_mask: int
    terms: int  # of the sums of the product
    columns: int
    weights: int  # address of the packed weights; of the weights as they are for a single sample
    is_packed: int
    backward: int
    per_task: int  # samples of a task


LAYOUT = record_of(Steps)


def direction() -> OpSchema.Attribute:
    return attribute(
        "direction", FORWARDS, "The first step: that at 0 (0 UNIDIRECTIONAL) or at T - 1 (1 REDIRECTIONAL)."
    )


def mask() -> Input:
    return Input(
        "mask", "Which steps each sample has; broadcasts to (T, N).", dtypes=(TensorProto.BOOL,), default=Default(1.0)
    )


# --- sizes ------------------------------------------------------------------------------------------------------------


@helper
def vectors_of(columns: int) -> int:
    """Blocks of columns, which are the vectors of a row of a product."""
    return ceil_divide(columns, LANES)


@helper
def write_sequence(
    layout: Steps, kernel: Kernel, job: Job, gates: int, weight: int, state: int, mask: int, backward: bool
) -> bool:
    """Write the layout, and to the job the numbers of tasks; returns whether the shapes fit.

    Args:
        gates, weight, state, mask: indices of inputs (T, N, 4*H), (4*H, H), (N, H) and (T, N).
        backward: whether the product is that of gates with the weights.
    """
    element_type, masked = kernel.element_type[gates], kernel.element_type[mask] != 0
    if job.rank[gates] != 3 or job.rank[weight] != 2 or job.rank[state] != 2 or (masked and job.rank[mask] > 2):
        return False
    steps, samples, width = job.dims[gates, 0], job.dims[gates, 1], job.dims[state, 1]
    wide = GATES * width
    fits = job.dims[gates, 2] == wide and job.dims[state, 0] == samples
    if not fits or job.dims[weight, 0] != wide or job.dims[weight, 1] != width:
        return False
    layout.steps, layout.samples, layout.width = steps, samples, width
    layout.step_of_mask, layout.sample_of_mask = 0, 0
    if masked and job.rank[mask] > 0:
        last = job.rank[mask] - 1
        layout.sample_of_mask = int(job.dims[mask, last] != 1)
        if job.dims[mask, last] != 1 and job.dims[mask, last] != samples:
            return False
        if last == 1:
            layout.step_of_mask = job.dims[mask, 1] * int(job.dims[mask, 0] != 1)
            if job.dims[mask, 0] != 1 and job.dims[mask, 0] != steps:
                return False
    layout.terms, layout.columns = width, wide
    if backward:
        layout.terms, layout.columns = wide, width
    layout.backward, layout.is_packed = int(backward), int(samples > 1 or item_size(element_type) == 2)
    layout.weights = job.scratch + whole_lines(size_of(LAYOUT)) if layout.is_packed else job.data[weight]
    packed = layout.is_packed * vectors_of(layout.columns) * layout.terms * LANES * computing_size(element_type)
    tiles = 1 if packed <= CACHED else min(max(samples // (ROWS * TASKS), 1), TILES)
    layout.per_task = ROWS * tiles
    job.scratch_bytes = whole_lines(size_of(LAYOUT)) + packed
    job.prepare_tasks = layout.is_packed * ceil_divide(vectors_of(layout.columns), BLOCKS)
    job.tasks = ceil_divide(samples, layout.per_task) if width > 0 else 0
    return True


@helper
def place_of(layout: Steps, n: int, reverse: int) -> int:
    """The place in the sequence of step n."""
    return int(layout.steps - 1 - n if reverse != 0 else n)


@helper
def has_step(layout: Steps, masked: bool, mask: int, t: int, sample: int) -> bool:
    """Whether a sample has a step, by the mask at an address."""
    if not masked:
        return True
    return bool(array_at(mask + t * layout.step_of_mask + sample * layout.sample_of_mask, 1, np.uint8)[0] != 0)


@helper
def write_zeros(target: int, size: int) -> None:
    """Write `size` bytes of 0 at an address."""
    numbers = array_at(target, size, np.uint8)
    for i in range(size):
        numbers[i] = 0


# --- products ---------------------------------------------------------------------------------------------------------


@helper
def pack_weights(layout: Steps, number: int, source: int, element_type: int, backward: bool, dtype: Floating) -> bool:
    """A task: pack some blocks of columns of the weights at an address; returns whether there was memory."""
    memory, rows = allocate((LANES, np.int64))
    if memory == 0:
        return False
    terms, columns, size, own = layout.terms, layout.columns, size_of(dtype), item_size(element_type)
    for block in range(number * BLOCKS, min((number + 1) * BLOCKS, vectors_of(columns))):
        first = block * LANES
        out = array_at(layout.weights + first * terms * size, terms * LANES, dtype)
        if backward:  # columns of the matrix (terms, columns)
            count = min(LANES, columns - first)
            for k in range(terms):
                row, target = source + (k * columns + first) * own, tail(out, k * LANES)
                if size == 8:
                    copy_bytes(row, address_of(target), count * own)
                else:
                    read_floats(row, element_type, count, address_of(target))
                for lane in range(count, LANES):
                    target[lane] = like(0, out[0])
        else:  # rows of the matrix (columns, terms)
            for lane in range(LANES):
                rows[lane] = source + min(first + lane, columns - 1) * terms * own
            interleave(rows, element_type, 0, terms, out, 0)
    free(memory)
    return True


@helper
def multiply_row(layout: Steps, source: int, out: Array, dtype: Floating) -> None:
    """The product of a row at an address with weights that are not packed."""
    terms, columns, size = layout.terms, layout.columns, size_of(dtype)
    x = array_at(source, terms, dtype)
    if not layout.backward:  # with rows of the matrix (columns, terms)
        for j in range(columns):
            row, total = array_at(layout.weights + j * terms * size, terms, dtype), like(0, x[0])
            for k in range(terms):
                total = add_any_order(total, x[k] * row[k])
            out[j] = total
        return
    for j in range(columns):
        out[j] = like(0, x[0])
    for k in range(0, terms, GATES):  # rows of the matrix (terms, columns), whose number is a multiple of 4
        at = layout.weights + k * columns * size
        a, b = array_at(at, columns, dtype), array_at(at + columns * size, columns, dtype)
        c, d = array_at(at + 2 * columns * size, columns, dtype), array_at(at + 3 * columns * size, columns, dtype)
        e, f, g, h = x[k], x[k + 1], x[k + 2], x[k + 3]
        for j in range(columns):
            out[j] = out[j] + e * a[j] + f * b[j] + g * c[j] + h * d[j]


@helper
def multiply_rows(
    layout: Steps, source: int, rows: Array, tiles: int, starts: Array, out: Array, places: Array, dtype: Floating
) -> None:
    """Products of rows with the packed weights.

    Args:
        source: address of the rows.
        rows: where each row begins, in elements; ROWS for each of the tiles.
        starts: 0.
        out: the products, rows of whole vectors.
        places: in vectors, where each of them begins.
    """
    if not layout.is_packed:
        multiply_row(layout, source, out, dtype)
        return
    terms, vectors = layout.terms, vectors_of(layout.columns)
    image = array_at(source, 1, dtype)
    for first in range(0, vectors, PANEL):
        weights = array_at(layout.weights + first * terms * LANES * size_of(dtype), 1, dtype)
        for tile in range(tiles):
            multiply_tile(
                image, rows, tile * ROWS, 1, terms, LANES, weights, starts, 0, terms * LANES, 1,
                tail(out, first * LANES), places, tile * ROWS, 1, min(vectors - first, PANEL),
            )  # fmt: skip


@helper
def write_rows(
    first: int, count: int, row: int, vectors: int, tiles: int, rows: Array, starts: Array, places: Array
) -> None:
    """Write for `multiply_rows` where rows of `row` elements begin, [first, first + count); tiles repeat the last."""
    starts[0] = 0
    for r in range(tiles * ROWS):
        rows[r], places[r] = (first + min(r, count - 1)) * row, r * vectors


# --- checks, and the loop of a function body --------------------------------------------------------------------------


def check_sequence(call: Call, gates: str, states: tuple[str, ...], sequences: tuple[str, ...]) -> tuple[Shape, Shape]:
    """Raise OpError for shapes that do not fit.

    Args:
        gates: name of the input (T, N, 4*H).
        states: names of inputs (N, H).
        sequences: names of inputs (T, N, H).

    Returns:
        The shapes (T, N, H) of a sequence of states and (N, H) of a state.
    """
    call.check_choice("direction", DIRECTIONS)
    given = call.shape(gates)
    if given is not None and len(given) != 3:
        raise call.shape_error(gates, "(T, N, 4*H)")
    steps, samples, wide = given or (None, None, None)
    weight = call.shape("weight")
    if weight is not None and len(weight) != 2:
        raise call.shape_error("weight", "(4*H, H)")
    width: Dim = None if weight is None else weight[1]
    if width is None and isinstance(wide, int) and wide % GATES == 0:
        width = wide // GATES
    of_gates = GATES * width if isinstance(width, int) else None
    call.same_shape("weight", (of_gates, width), "(4*H, H)")
    call.same_shape(gates, (steps, samples, of_gates), "(T, N, 4*H) for 'weight' (4*H, H)")
    for name in states:
        if call.present(name):
            call.same_shape(name, (samples, width), f"(N, H) for '{gates}' (T, N, 4*H)")
    for name in sequences:
        if call.present(name):
            call.same_shape(name, (steps, samples, width), f"(T, N, H) for '{gates}' (T, N, 4*H)")
    if call.present("mask"):
        call.broadcast_to("mask", (steps, samples), f"(T, N) of '{gates}'")
    return (steps, samples, width), (samples, width)


class Scanned:
    """A Scan over the steps, in a function body.

    Attributes:
        steps: T, 1-D.
    """

    def __init__(self, b: Body, gates: Value, backward: bool) -> None:
        """For an input or output (T, N, 4*H); `backward`: from the last step to the first."""
        self._b = b
        shape = b.op("Shape", gates, name="shape", end=2)
        self.steps = b.op("Slice", shape, [0], [1], name="steps")
        self._plane, self._order = shape, self._found_order(backward)

    def _found_order(self, backward: bool) -> Value | None:
        """The places of the steps; None if they are in order."""
        b = self._b
        agreed = b.attribute("direction")
        if agreed is not None and (agreed == BACKWARDS) == backward:
            return None
        count = b.op("Squeeze", self.steps, [0], name="count")
        places = b.op("Range", 0, count, 1, name="places")
        turned = (count - 1 - places).named("turned_places")
        if agreed is not None:
            return turned
        is_turned = b.value_of("direction").equal(FORWARDS if backward else BACKWARDS).named("is_turned")
        return b.op("Where", is_turned, turned, places, name="order")

    def ordered(self, value: Value, name: str) -> Value:
        return value if self._order is None else self._b.op("Gather", value, self._order, name=name, axis=0)

    def sequence(self, value: Value) -> Value:
        """A sequence (T, N, ...) in the order of the steps, and one more step of 0, as onnxruntime rejects none."""
        return self._b.op("Pad", self.ordered(value, "ordered"), [0, 0, 0, 1, 0, 0], 0.0, name="and_one")

    def state(self, value: Value, name: str) -> Value:
        """A state (N, H), surely of two axes: onnxruntime ends the process if a state of Scan has too many."""
        b = self._b
        samples = b.op("Slice", self._plane, [1], [2], name="samples")
        shape = b.op("Concat", samples, b.op("Shape", value, start=-1), name="state_shape", axis=0)
        return b.op("Reshape", value, shape, name=name, allowzero=1)

    def mask(self) -> Value:
        """The mask as a sequence (T, N, 1) of 0 and 1."""
        b = self._b
        given = b.inputs["mask"] if b.has("mask") else b.constant(True)
        whole = b.op("Expand", given, self._plane, name="whole_mask")
        return self.sequence(b.op("Unsqueeze", whole.cast(b.compute), [2], name="mask_columns"))

    def stack(self, value: Value, name: str) -> Value:
        """A result of all steps in the order of the sequence."""
        b = self._b
        return self.ordered(b.op("Slice", value, [0], self.steps, [0], name=f"{name}_of_steps"), name)
