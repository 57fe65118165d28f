"""What the ops that draw random numbers share: the 53-bit numbers of a seed, and how an op of them is computed.

Elements 2j and 2j + 1 of a tensor have the two numbers of block j of the generator, whatever its dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.primitives import inlined
from onnx_ops.loops.records import CHUNK, OK, REFUSED, Job, Kernel
from onnx_ops.loops.shapes import give_shape, size_of
from onnx_ops.ops.philox import HALF, LOW, SEED_TYPES, check_draw, philox, words, written

BITS = 53
"""Those of a random number: a float64 has as many."""
LOWEST = 64 - BITS
"""Bits of two words that are left out."""
UNIT = 2.0**-BITS

INPUTS = (
    Input("self", "Tensor of the shape and dtype wanted; its elements are not used."),
    Input("seed", "Seed of the random numbers, a scalar.", dtypes=SEED_TYPES),
)
OFFSET = attribute("offset", 0, "Distinguishes draws with one seed.")

LARGEST = float(np.finfo(np.float32).max)

SELF, SEED = range(2)
ELEMENTS = 16 * CHUNK
"""Elements per task."""


def check_number(call: Call, name: str) -> float:
    """The value of an attribute; an error if it is not finite."""
    number = call.attributes[name]
    if not -LARGEST <= number <= LARGEST:
        raise call.error(f"attribute '{name}' is {number}, expected a finite number")
    return float(number)


def outputs(call: Call) -> tuple[TensorType, ...]:
    """The types of the outputs of a call, whose seed and offset are checked."""
    check_draw(call)
    return (TensorType(call.dtype("self"), call.shape("self")),)


def numbers(seed: np.ndarray, offset: int, count: int) -> np.ndarray:
    """(count,) the first random numbers of a seed and an offset, uint64 below 2**53."""
    high, low = words(int(seed), offset, 2 * count).reshape(-1, 2).T
    return (high << np.uint64(32) | low) >> np.uint64(LOWEST)


@inlined
def two_numbers(block: Any, stream: Any, key: Any) -> tuple[Any, Any]:
    """The numbers of elements 2 * block and 2 * block + 1; all are uint64."""
    w0, w1, w2, w3 = philox(block & LOW, block >> HALF, stream & LOW, stream >> HALF, key & LOW, key >> HALF)
    return ((w0 << HALF) | w1) >> np.uint64(LOWEST), ((w2 << HALF) | w3) >> np.uint64(LOWEST)


def plan(kernel: Kernel, job: Job) -> int:
    """Set the shape of the output; one task per ELEMENTS elements."""
    if job.rank[SEED] != 0:
        return REFUSED
    give_shape(job, 0, SELF)
    job.tasks = (size_of(job, SELF) + ELEMENTS - 1) // ELEMENTS
    return OK


def tasks(task: Callable[[Job, int], None]) -> Tasks:
    return Tasks(plan, task, in_place=(("self", "out"),))


def written_count(b: Body) -> Value:
    """The number of elements of `self`, int64; onnxruntime has no Size of bfloat16."""
    sizes = b.op("Concat", b.op("Shape", b.inputs["self"]), [1], name="sizes", axis=0)
    return b.op("ReduceProd", sizes, name="count", keepdims=0)


def written_numbers(b: Body, count: Value) -> tuple[Value, Value]:
    """The numbers of elements 2j, and of elements 2j + 1, in standard operators, int64.

    Args:
        b: the body.
        count: int64, a scalar: the number of elements.
    """
    blocks = b.op("Range", 0, ((count + 1) / 2).named("blocks"), 1, name="block")
    w0, w1, w2, w3 = written(b, b.load_as("seed", TensorProto.INT64), b.value_of("offset"), blocks)
    keep = 2 ** (BITS - 32)
    pairs = [(high * keep + low / 2**LOWEST).named("number") for high, low in ((w0, w1), (w2, w3))]
    return pairs[0], pairs[1]
