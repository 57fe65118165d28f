"""Sort: the elements along an axis in order, and where they were."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, OutputType, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Reference
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import DOUBLE, FLOAT, FLOAT16, allocate, array_at, free, item_size, record_at
from onnx_ops.loops.primitives import Array, Number, ceil_divide, choose, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel, attribute_record
from onnx_ops.loops.shapes import give_shape, size_of, volume
from onnx_ops.ops.axes import axis_attributes, axis_of, check_axis
from onnx_ops.ops.references import rounded

ATTRIBUTES = (*axis_attributes(), attribute("descending", 0, "1: the largest element first; 0: the smallest."))
SIGNATURE = Signature(
    "Sort",
    """
The elements along an axis in order, and the places they had (aclnnSort). The gradient of `values` is that of a gather
by `indices`.

    values[..., i, ...] = self[..., indices[..., i, ...], ...]

Shapes: `values` and `indices` have the shape of `self`, rank 1 to 8.

Dtypes: `self` float16, bfloat16, float or double, `values` the same; `indices` int64. The results are exact.

Edge rules: equal elements keep their order, 0 and -0 too, which are equal, in both directions. NaN is larger than any
number, and all NaN are equal. An axis of size 0 gives empty outputs.

Without a kernel: as above.
""",
    inputs=(Input("self", "The elements."),),
    outputs=(
        Output("values", "The elements in order.", "self"),
        Output("indices", "The index along the axis that each had.", OutputType("int64.", dtypes=(TensorProto.INT64,))),
    ),
    attributes=ATTRIBUTES,
)


def infer(call: Call) -> tuple[TensorType, ...]:
    shape = check_axis(call, "self")
    if call.attributes["descending"] not in (0, 1):
        raise call.error(f"attribute 'descending' is {call.attributes['descending']}, expected 0 or 1")
    return TensorType(call.dtype("self"), shape), TensorType(TensorProto.INT64, shape)


def reference(
    self: np.ndarray, *, dim: int = -1, descending: int = 0, dtype: npt.DTypeLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """NumPy definition.

    Args:
        self: floating array.
        dim: the axis.
        descending: whether the largest element is the first.
        dtype: dtype of the values instead of self's.

    Returns:
        The values and their indices, of self's shape.
    """
    x = self.astype(np.float64)
    if descending:
        indices = x.shape[dim] - 1 - np.flip(np.argsort(np.flip(x, dim), dim, kind="stable"), dim)
    else:
        indices = np.argsort(x, dim, kind="stable")
    return rounded(np.take_along_axis(x, indices, dim), self.dtype, dtype), indices.astype(np.int64)


# --- the kernel: one task for some vectors along the axis -------------------------------------------------------------

SETTINGS = attribute_record(ATTRIBUTES)
WORK = 1 << 14
"""Elements that a task sorts, if a vector does not have more."""
SHORT = 64
"""Elements up to which it is fastest to count for each element those before it; more are sorted digit by digit."""
BASE = 256


@helper
def vectors_per_task(length: int) -> int:
    return max(WORK // max(length, 1), 1)


def plan(kernel: Kernel, job: Job) -> int:
    settings = record_at(kernel.attributes, SETTINGS)
    axis = axis_of(settings.dim, job.rank[0])
    if axis < 0 or settings.descending < 0 or settings.descending > 1:
        return REFUSED
    give_shape(job, 0, 0)
    give_shape(job, 1, 0)
    length = job.dims[0, axis]
    vectors = size_of(job, 0) // max(length, 1)
    job.tasks = ceil_divide(vectors, vectors_per_task(length))
    return OK


@helper
def key_of(bits: Number, magnitude: int, infinity: int, descending: int) -> Number:
    """An integer in the order of floating numbers, of the bits of one; of NaN the largest.

    Args:
        bits: the number as a signed integer: sign and magnitude.
        magnitude: the bits that are not the sign.
        infinity: the bits of infinity.
        descending: 1 for the other order.
    """
    size = bits & magnitude
    key = choose(size > infinity, magnitude, choose(bits < 0, -size, size))
    return choose(descending == 1, -key - 1, key)


@helper
def write_keys(source: int, apart: int, count: int, element_type: int, descending: int, keys: Array) -> None:
    """The keys of every `apart`-th element from an address on."""
    if element_type == DOUBLE:
        doubles = array_at(source, (count - 1) * apart + 1, np.int64)
        for i in range(count):
            keys[i] = key_of(doubles[i * apart], 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000, descending)
    elif element_type == FLOAT:
        singles = array_at(source, (count - 1) * apart + 1, np.int32)
        for i in range(count):
            keys[i] = key_of(np.int64(singles[i * apart]), 0x7FFFFFFF, 0x7F800000, descending)
    else:
        infinity = 0x7C00 if element_type == FLOAT16 else 0x7F80
        halves = array_at(source, (count - 1) * apart + 1, np.uint16)
        for i in range(count):
            bits = np.int64(halves[i * apart])
            keys[i] = key_of(bits - ((bits & 0x8000) << 1), 0x7FFF, infinity, descending)


@helper
def order_by_rank(keys: Array, count: int, places: Array) -> None:
    """The places of the elements in order: of each element the number of those before it is counted."""
    for i in range(count):
        key, rank = keys[i], 0
        for j in range(i):
            rank += 1 if keys[j] <= key else 0
        for j in range(i + 1, count):
            rank += 1 if keys[j] < key else 0
        places[rank] = i


@helper
def order_by_digit(
    keys: Array, places: Array, count: int, shift: int, flip: int, counts: Array, to_keys: Array, to_places: Array
) -> bool:
    """Order by eight bits of the keys; returns whether that changes anything.

    Args:
        flip: 128 for the digit with the sign, else 0.
    """
    for digit in range(BASE):
        counts[digit] = 0
    for i in range(count):
        counts[((keys[i] >> shift) & 255) ^ flip] += 1
    if counts[((keys[0] >> shift) & 255) ^ flip] == count:
        return False
    total = 0
    for digit in range(BASE):
        own = counts[digit]
        counts[digit] = total
        total += own
    for i in range(count):
        digit = ((keys[i] >> shift) & 255) ^ flip
        at = counts[digit]
        counts[digit] = at + 1
        to_keys[at], to_places[at] = keys[i], places[i]
    return True


@helper
def write_values(source: int, apart: int, places: Array, count: int, size: int, target: int) -> None:
    """The elements in the order of their places, as words."""
    span = (count - 1) * apart + 1
    if size == 8:
        doubles, out8 = array_at(source, span, np.int64), array_at(target, span, np.int64)
        for i in range(count):
            out8[i * apart] = doubles[places[i] * apart]
    elif size == 4:
        singles, out4 = array_at(source, span, np.int32), array_at(target, span, np.int32)
        for i in range(count):
            out4[i * apart] = singles[places[i] * apart]
    else:
        halves, out2 = array_at(source, span, np.uint16), array_at(target, span, np.uint16)
        for i in range(count):
            out2[i * apart] = halves[places[i] * apart]


def task(job: Job, number: int) -> None:
    """Some vectors."""
    kernel = record_at(job.kernel, KERNEL)
    element_type, size = kernel.element_type[0], item_size(kernel.element_type[0])
    settings = record_at(kernel.attributes, SETTINGS)
    axis = axis_of(settings.dim, job.rank[0])
    length, apart = job.dims[0, axis], volume(job, 0, axis + 1, job.rank[0])
    if length == 0:
        return
    memory, keys, places, to_keys, to_places, counts = allocate(
        (length, np.int64), (length, np.int64), (length, np.int64), (length, np.int64), (BASE, np.int64)
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    step = vectors_per_task(length)
    for vector in range(number * step, min((number + 1) * step, size_of(job, 0) // length)):
        first = vector // apart * apart * length + vector % apart
        source = job.data[0] + first * size
        write_keys(source, apart, length, element_type, settings.descending, keys)
        if length <= SHORT:
            order_by_rank(keys, length, places)
        else:
            for i in range(length):
                places[i] = i
            for digit in range(size):
                flip = 128 if digit == size - 1 else 0
                if order_by_digit(keys, places, length, 8 * digit, flip, counts, to_keys, to_places):
                    keys, to_keys = to_keys, keys
                    places, to_places = to_places, places
        if job.output[0] != 0:
            write_values(source, apart, places, length, size, job.output[0] + first * size)
        if job.output[1] != 0:
            indices = array_at(job.output[1] + first * 8, (length - 1) * apart + 1, np.int64)
            for i in range(length):
                indices[i * apart] = places[i]
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """TopK keeps the order of equal elements. ONNX does not say where it has NaN, so another one orders these."""
    x = b.load("self")
    axis, largest = Reference("dim", AttributeProto.INT), Reference("descending", AttributeProto.INT)
    shape = b.op("Shape", x, name="shape")
    size = b.op("Gather", shape, b.op("Reshape", b.value_of("dim"), [1]), name="size")
    # TopK of onnxruntime 1.23 divides by the number of vectors.
    size = b.op("Where", b.op("Equal", b.op("Size", x), 0), 0, size, name="count")
    is_nan = b.op("IsNaN", x, name="is_nan")
    numbers = b.op("Where", is_nan, np.inf, x, name="numbers")
    _, order = b.several("TopK", numbers, size, names=("in_order", "order"), axis=axis, largest=largest)
    last = b.op("GatherElements", is_nan.cast(TensorProto.FLOAT), order, name="last", axis=axis)
    _, moved = b.several("TopK", last, size, names=("flags", "moved"), axis=axis, largest=largest)
    ordered = b.op("GatherElements", x, order, name="ordered", axis=axis)
    values = b.op("GatherElements", ordered, moved, axis=axis)
    indices = b.op("GatherElements", order, moved, axis=axis)
    b.store("values", b.op("Reshape", values, shape, allowzero=1), "self")
    b.give("indices", b.op("Reshape", indices, shape, allowzero=1))


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"self": [[3.0, 1.0, 2.0], [0.5, 0.5, -1.0]]},
        {"values": [[1.0, 2.0, 3.0], [-1.0, 0.5, 0.5]], "indices": [[1, 2, 0], [2, 0, 1]]},
    ),
)
