"""InplaceNormal: random numbers of a normal distribution."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import address_of, allocate, free, item_size, record_at, write_numbers
from onnx_ops.loops.primitives import choose, inlined, log
from onnx_ops.loops.records import CHUNK, KERNEL, NO_MEMORY, Job, attributes_of
from onnx_ops.loops.shapes import size_of
from onnx_ops.ops.philox import key_at, laid_out
from onnx_ops.ops.random_numbers._draws import (
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
    "InplaceNormal",
    """
Normal random numbers (aclnnInplaceNormal), as a function of a seed, by the method of Box and Muller (1958). aclnn
overwrites `self`.

    r          = sqrt(-2 * log((number[2j] + 1) / 2^53))
    u          = number[2j + 1] / 2^53
    out[2j]    = mean + std * r * cos(2 * pi * u)
    out[2j + 1] = mean + std * r * sin(2 * pi * u)

for the elements in the order of memory. The numbers are from 0 to 2^53 - 1: the upper 53 bits of w0 * 2^32 + w1 and of
w2 * 2^32 + w3, where w0 to w3 are the words of Philox4x32-10 (Salmon et al. 2011) for the counter (j, offset), of 64
bits each with the low half first, and the key `seed`. So the results do not depend on the number of threads.

Shapes: `self` and `out` of one shape, rank 0 to 8; `seed` a scalar.

Dtypes: `self` float16, bfloat16, float or double, `out` the same; `seed` int64 or int32, with the same numbers for
equal values. Computed in double, and rounded once.

Edge rules: elements of `self` are not used, and may be NaN. No result is further from `mean` than 8.6 times `std`;
`std` 0 gives `mean`. `mean` and `std` are float32 numbers. Several draws with one seed use different values of
`offset`, of which there are 2^63; an InplaceUniform, too, uses another. Tensors of different shapes begin alike. A
`mean` or `std` that is not finite, a negative `std` and a negative `offset` are errors.

Without a kernel: the results are the same but for their last bits, for tensors of less than 2^33 elements.
""",
    inputs=INPUTS,
    outputs=(Output("out", "Random numbers, of the shape of `self`.", "self"),),
    attributes=(
        attribute("mean", 0.0, "Mean of the distribution."),
        attribute("std", 1.0, "Standard deviation of the distribution."),
        OFFSET,
    ),
)
QUARTER = 4 * UNIT
"""A number times this is in quarters of a turn."""
QUARTER_TURN = math.pi / 2


def reference(
    self: np.ndarray,
    seed: np.ndarray,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    offset: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64.

    Args:
        self: floating array; its shape and dtype are used.
        seed: integer scalar.
        mean, std: read as float32 numbers.
        offset: as in the schema.
        dtype: dtype of the result instead of self's.

    Returns:
        Array of self's shape.
    """
    drawn = numbers(seed, offset, self.size + self.size % 2).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((drawn[:, 0] + np.uint64(1)).astype(np.float64) * UNIT))
    turn = drawn[:, 1].astype(np.float64) * QUARTER
    quarter = np.floor(turn + 0.5)
    angle = (turn - quarter) * QUARTER_TURN
    cosine, sine = np.cos(angle), np.sin(angle)
    quarter = quarter.astype(np.int64) % 4
    directions = (
        np.choose(quarter, [cosine, -sine, -cosine, sine]),
        np.choose(quarter, [sine, cosine, -sine, -cosine]),
    )
    values = np.stack([radius * direction for direction in directions], axis=-1).reshape(-1)[: self.size]
    scaled = np.float64(np.float32(mean)) + np.float64(np.float32(std)) * values
    return rounded(scaled.reshape(self.shape), self.dtype, dtype)


# --- the kernel: one task per block of elements -----------------------------------------------------------------------

ATTRIBUTES = attributes_of(SIGNATURE.schema)


@inlined
def cosine_and_sine(turn: np.float64) -> tuple[np.float64, np.float64]:
    """cos and sin of `turn` quarters of a turn, turn in [0, 4): Taylor series around a multiple of a quarter.

    Relative error: 3 ulp. The terms that are left out are less than 2e-18 of the result.
    """
    quarter = np.floor(turn + 0.5)
    x = (turn - quarter) * QUARTER_TURN
    s = x * x
    sine = 1 / 355687428096000.0
    sine = sine * s - 1 / 1307674368000.0
    sine = sine * s + 1 / 6227020800.0
    sine = sine * s - 1 / 39916800.0
    sine = sine * s + 1 / 362880.0
    sine = sine * s - 1 / 5040.0
    sine = sine * s + 1 / 120.0
    sine = sine * s - 1 / 6.0
    sine = x + x * (sine * s)
    cosine = 1 / 20922789888000.0
    cosine = cosine * s - 1 / 87178291200.0
    cosine = cosine * s + 1 / 479001600.0
    cosine = cosine * s - 1 / 3628800.0
    cosine = cosine * s + 1 / 40320.0
    cosine = cosine * s - 1 / 720.0
    cosine = cosine * s + 1 / 24.0
    cosine = cosine * s - 0.5
    cosine = 1.0 + cosine * s
    odd = (quarter == 1.0) | (quarter == 3.0)
    c, n = choose(odd, sine, cosine), choose(odd, cosine, sine)
    return choose((quarter == 1.0) | (quarter == 2.0), -c, c), choose((quarter == 2.0) | (quarter == 3.0), -n, n)


def task(job: Job, number: int) -> None:
    """Elements from ELEMENTS * number on."""
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    key, stream = key_at(job.data[SEED], kernel.element_type[SEED]), np.uint64(attributes.offset)
    element_type, size = kernel.element_type[SELF], item_size(kernel.element_type[SELF])
    mean, std = np.float64(attributes.mean), np.float64(attributes.std)
    total = size_of(job, SELF)

    memory, drawn = allocate((CHUNK, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    for start in range(number * ELEMENTS, min((number + 1) * ELEMENTS, total), CHUNK):
        for i in range(CHUNK // 2):
            first, second = two_numbers(np.uint64(start // 2 + i), stream, key)
            radius = np.sqrt(-2.0 * log(np.float64(first + np.uint64(1)) * UNIT))
            cosine, sine = cosine_and_sine(np.float64(second) * QUARTER)
            drawn[2 * i] = mean + std * (radius * cosine)
            drawn[2 * i + 1] = mean + std * (radius * sine)
        target = job.output[0] + start * size
        write_numbers(kernel.write, address_of(drawn), element_type, min(CHUNK, total - start), target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return tasks(task)


# --- the function body ------------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    b.widen()
    like = b.inputs["self"]
    count = written_count(b)
    first, second = written_numbers(b, count)
    uniform = ((first + 1).cast(TensorProto.DOUBLE) * UNIT).named("uniform")
    radius = b.op("Sqrt", b.op("Log", uniform) * -2.0, name="radius")
    turn = (second.cast(TensorProto.DOUBLE) * QUARTER).named("turn")
    quarter = b.op("Floor", turn + 0.5, name="quarter")
    angle = ((turn - quarter) * QUARTER_TURN).named("angle")
    half = b.op("Sin", angle * 0.5, name="sine_of_half")
    # onnxruntime 1.23 has no Cos of double.
    cosine, sine = (1.0 - 2.0 * half * half).named("cosine"), b.op("Sin", angle, name="sine")

    def is_one_of(x: float, y: float) -> Value:
        return b.op("Or", quarter.equal(x), quarter.equal(y), name="is_one_of")

    def negative_if(condition: Value, value: Value) -> Value:
        return b.op("Where", condition, b.op("Neg", value), value, name="signed")

    odd = is_one_of(1.0, 3.0)
    directions = (
        negative_if(is_one_of(1.0, 2.0), b.op("Where", odd, sine, cosine, name="turned")),
        negative_if(is_one_of(2.0, 3.0), b.op("Where", odd, cosine, sine, name="turned")),
    )
    values = laid_out(b, tuple((radius * direction).named("value") for direction in directions), count, like)
    b.store("out", b.value_of("mean") + b.value_of("std") * values, "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    check_number(call, "mean")
    if (std := check_number(call, "std")) < 0:
        raise call.error(f"attribute 'std' is {std}, expected at least 0")
    return outputs(call)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Test vector of the authors of Philox for counter and key 0: 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8.
        # r = sqrt(-2 * log(0.399046...)) = 1.355490..., u = 0.735713...
        {"self": [0.0, 0.0], "seed": 0},
        {"out": [-0.121517976, -1.35003266]},
    ),
    body_opset=18,  # the first with BitwiseXor
)
