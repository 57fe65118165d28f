"""InplaceUniform: random numbers of a uniform distribution."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from onnx.helper import np_dtype_to_tensor_dtype

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import (
    DOUBLE,
    FLOAT,
    FLOAT16,
    address_of,
    allocate,
    free,
    item_size,
    record_at,
    write_numbers,
)
from onnx_ops.loops.primitives import helper
from onnx_ops.loops.records import CHUNK, KERNEL, NO_MEMORY, Job, attributes_of
from onnx_ops.loops.shapes import size_of
from onnx_ops.ops.philox import key_at, laid_out
from onnx_ops.ops.random_numbers._draws import (
    BITS,
    ELEMENTS,
    INPUTS,
    OFFSET,
    SEED,
    SELF,
    UNIT,
    check_number,
    numbers,
    outputs,
    tasks,
    two_numbers,
    written_count,
    written_numbers,
)
from onnx_ops.ops.references import rounded

SIGNATURE = Signature(
    "InplaceUniform",
    """
Uniform random numbers (aclnnInplaceUniform): numbers from `low` on, below `high`, as a function of a seed. aclnn calls
these `from` and `to`, and overwrites `self`.

    out = low + (high - low) * floor(number[i] / 2^(53 - digits)) / 2^digits  for the i-th element in memory
    digits = 11 for float16, 8 for bfloat16, 24 for float, 53 for double

The numbers are from 0 to 2^53 - 1: for elements 2j and 2j + 1 the upper 53 bits of w0 * 2^32 + w1 and of
w2 * 2^32 + w3, where w0 to w3 are the words of Philox4x32-10 (Salmon et al. 2011) for the counter (j, offset), of 64
bits each with the low half first, and the key `seed`. So the results are the same on every machine and for any
number of threads.

Shapes: `self` and `out` of one shape, rank 0 to 8; `seed` a scalar.

Dtypes: `self` float16, bfloat16, float or double, `out` the same; `seed` int64 or int32, with the same numbers for
equal values.

Edge rules: elements of `self` are not used, and may be NaN. With `low` 0 and `high` 1 the results are exact, and all
multiples of 2^-digits from 0 to 1 - 2^-digits are equally likely; otherwise they are rounded to the dtype once, which
may give `high`. `low` and `high` are float32 numbers. Several draws with one seed use different values of `offset`, of
which there are 2^63; an InplaceNormal, too, uses another. Tensors of different shapes begin alike. A `low` or `high`
that is not finite, a `high` below `low` and a negative `offset` are errors.

Without a kernel: the results are the same for tensors of less than 2^33 elements.
""",
    inputs=INPUTS,
    outputs=(Output("out", "Random numbers, of the shape of `self`.", "self"),),
    attributes=(
        attribute("low", 0.0, "Least number."),
        attribute("high", 1.0, "Upper bound of the numbers."),
        OFFSET,
    ),
)
FLOATING = int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16), FLOAT, DOUBLE
DIGITS = (11, 8, 24, 53)
"""Bits of the significand of the dtypes in FLOATING."""


def reference(
    self: np.ndarray,
    seed: np.ndarray,
    *,
    low: float = 0.0,
    high: float = 1.0,
    offset: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64.

    Args:
        self: floating array; its shape and dtype are used.
        seed: integer scalar.
        low, high: read as float32 numbers.
        offset: as in the schema.
        dtype: dtype of the result instead of self's.

    Returns:
        Array of self's shape.
    """
    spare = np.uint64(BITS - DIGITS[FLOATING.index(np_dtype_to_tensor_dtype(self.dtype))])
    drawn = (numbers(seed, offset, self.size) >> spare << spare).astype(np.float64) * UNIT
    least = np.float64(np.float32(low))
    return rounded((least + (np.float64(np.float32(high)) - least) * drawn).reshape(self.shape), self.dtype, dtype)


# --- the kernel: one task per block of elements -----------------------------------------------------------------------

ATTRIBUTES = attributes_of(SIGNATURE.schema)


@helper
def digits_of(element_type: int) -> int:
    """Bits of the significand."""
    if element_type == FLOAT:
        return DIGITS[2]
    if element_type == DOUBLE:
        return DIGITS[3]
    return DIGITS[0] if element_type == FLOAT16 else DIGITS[1]


def task(job: Job, number: int) -> None:
    """Elements from ELEMENTS * number on."""
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    key, stream = key_at(job.data[SEED], kernel.element_type[SEED]), np.uint64(attributes.offset)
    element_type, size = kernel.element_type[SELF], item_size(kernel.element_type[SELF])
    digits = digits_of(element_type)
    spare = np.uint64(BITS - digits)
    unit = UNIT * np.float64(1 << (BITS - digits))
    low = np.float64(attributes.low)
    width = np.float64(attributes.high) - low
    total = size_of(job, SELF)

    memory, drawn = allocate((CHUNK, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    for start in range(number * ELEMENTS, min((number + 1) * ELEMENTS, total), CHUNK):
        for i in range(CHUNK // 2):
            first, second = two_numbers(np.uint64(start // 2 + i), stream, key)
            drawn[2 * i] = low + width * (np.float64(first >> spare) * unit)
            drawn[2 * i + 1] = low + width * (np.float64(second >> spare) * unit)
        target = job.output[0] + start * size
        write_numbers(kernel.write, address_of(drawn), element_type, min(CHUNK, total - start), target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return tasks(task)


# --- the function body ------------------------------------------------------------------------------------------------


def _spare(b: Body) -> Value:
    """2 ** (53 - digits), int64: of the dtype of `self` in all calls, else found out by which numbers it holds."""
    divisors = {digits: 2 ** (BITS - digits) for digits in sorted(DIGITS)}
    dtypes = {call.dtype("self") for call in b.calls}
    if len(dtypes) == 1 and (dtype := dtypes.pop()) is not None:
        return b.constant(divisors[DIGITS[FLOATING.index(dtype)]], name="spare")
    needed = b.constant(np.array([1 + 2.0 ** (1 - digits) for digits in divisors]), TensorProto.DOUBLE)
    holds = b.op_like(needed, "self").cast(TensorProto.DOUBLE).equal(needed).named("holds")
    last = b.op("ReduceSum", holds.cast(TensorProto.INT64), name="dtypes", keepdims=0) - 1
    return b.op("Gather", np.array(list(divisors.values())), last, name="spare")


def body(b: Body) -> None:
    b.widen()
    like, spare = b.inputs["self"], _spare(b)
    low, high = b.value_of("low"), b.value_of("high")
    count = written_count(b)
    first, second = written_numbers(b, count)
    unit = (spare.cast(TensorProto.DOUBLE) * UNIT).named("unit")
    parts = tuple(((n / spare).named("digits").cast(TensorProto.DOUBLE) * unit).named("part") for n in (first, second))
    b.store("out", low + (high - low) * laid_out(b, parts, count, like), "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    low, high = check_number(call, "low"), check_number(call, "high")
    if high < low:
        raise call.error(f"attribute 'high' is {high}, expected at least 'low', {low}")
    return outputs(call)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Test vector of the authors of Philox for counter and key 0: 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8.
        {"self": [0.0, 0.0], "seed": 0},
        {"out": [0x6627E8 / 2**24, 0xBC57AC / 2**24]},
    ),
    body_opset=18,  # the first with BitwiseXor
)
