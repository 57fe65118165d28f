"""DropoutV3: sets random elements to 0 and scales the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, OutputType, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import (
    FLOAT,
    address_of,
    allocate,
    array_at,
    copy_bytes,
    free,
    item_size,
    read_numbers,
    record_at,
    write_numbers,
)
from onnx_ops.loops.primitives import ZERO
from onnx_ops.loops.records import CHUNK, KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape, size_of
from onnx_ops.ops.philox import (
    HALF,
    LOW,
    SEED_TYPES,
    WORD,
    WORDS,
    check_draw,
    key_at,
    laid_out,
    philox,
    words,
    written,
)
from onnx_ops.ops.references import rounded

SIGNATURE = Signature(
    "DropoutV3",
    """
Dropout (aclnnDropoutV3): sets each element to 0 with probability p and scales the others, so that the expected value is
unchanged. The mask is a function of the seed.

    mask   = word[i] >= round(p * 2^32)  for the i-th element in memory
    output = input * scale  where mask
             0              elsewhere
    scale  = 1 / (1 - p), rounded to float; 0 for p = 1

The word of element i is word i mod 4 of Philox4x32-10 (Salmon et al. 2011) for the counter (i/4, offset), of 64 bits
each with the low half first, and the key `seed`. So the mask is the same on every machine, for any dtype and for any
number of threads.

Shapes: `input`, `output` and `mask` of one shape, rank 0 to 8; `seed` a scalar.

Dtypes: `input` float16, bfloat16, float or double, `output` the same; `seed` int64 or int32, with the same mask for
equal values; `mask` bool.

Edge rules: `p` 0 keeps all elements, `p` 1 none. Elements set to 0 are +0, also where `input` is NaN or infinite. The
probability is the float32 `p`, rounded to a multiple of 2^-32. Several dropouts with one seed use different values of
`offset`, of which there are 2^63. Masks of different shapes have equal beginnings. A `p` outside [0, 1] or a negative
`offset` is an error. To drop whole channels, multiply by the dropout of a tensor of ones with one element per channel.

Without a kernel: the results are the same for inputs of less than 2^34 elements.
""",
    inputs=(
        Input("input", "Any floating tensor."),
        Input("seed", "Seed of the mask, a scalar.", dtypes=SEED_TYPES),
    ),
    outputs=(
        Output("output", "`input`, scaled or set to 0.", "input"),
        Output("mask", "Whether each element is kept.", OutputType("bool.", dtypes=(TensorProto.BOOL,)), optional=True),
    ),
    attributes=(
        attribute("p", 0.5, "Probability that an element is set to 0."),
        attribute("offset", 0, "Distinguishes dropouts with one seed."),
    ),
)


def threshold_of(p: float) -> int:
    """Elements with a word below it are set to 0."""
    return int(np.rint(np.float64(np.float32(p)) * WORD))


def scale_of(p: float) -> np.float32:
    """Factor of the elements that are kept."""
    kept = 1 - np.float64(np.float32(p))
    return np.float32(1 / kept if kept > 0 else 0)


def reference(
    input: np.ndarray, seed: np.ndarray, *, p: float = 0.5, offset: int = 0, dtype: npt.DTypeLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64.

    Args:
        input: floating array.
        seed: integer scalar.
        p: read as a float32.
        offset: as in the schema.
        dtype: dtype of the output instead of input's.

    Returns:
        output and mask, arrays of input's shape.
    """
    mask = (words(int(seed), offset, input.size) >= np.uint64(threshold_of(p))).reshape(input.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = input.astype(np.float64) * np.float64(scale_of(p))
    return rounded(np.where(mask, scaled, 0.0), input.dtype, dtype), mask


# --- the kernel: one task per block of elements -----------------------------------------------------------------------

INPUT, SEED = range(2)
OUTPUT, MASK = range(2)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
ELEMENTS = 16 * CHUNK
"""Elements per task."""


def plan(kernel: Kernel, job: Job) -> int:
    """Set the shapes of the outputs; one task per ELEMENTS elements."""
    if job.rank[SEED] != 0:
        return REFUSED
    for k in range(2):
        give_shape(job, k, INPUT)
    job.tasks = (size_of(job, INPUT) + ELEMENTS - 1) // ELEMENTS
    return OK


def task(job: Job, number: int) -> None:
    """Elements from ELEMENTS * number on."""
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    key, stream = key_at(job.data[SEED], kernel.element_type[SEED]), np.uint64(attributes.offset)
    p = np.float64(attributes.p)
    threshold = np.uint64(np.rint(p * 4294967296.0))
    scale = np.float32(1.0 / (1.0 - p)) if p < 1.0 else ZERO
    element_type, size = kernel.element_type[INPUT], item_size(kernel.element_type[INPUT])
    total = size_of(job, INPUT)

    memory, numbers, kept = allocate((CHUNK, np.float64), (CHUNK, np.uint8))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    own = address_of(numbers)
    for start in range(number * ELEMENTS, min((number + 1) * ELEMENTS, total), CHUNK):
        count = min(CHUNK, total - start)
        for i in range(CHUNK // WORDS):
            block = np.uint64(start // WORDS + i)
            w0, w1, w2, w3 = philox(block & LOW, block >> HALF, stream & LOW, stream >> HALF, key & LOW, key >> HALF)
            kept[WORDS * i] = w0 >= threshold
            kept[WORDS * i + 1] = w1 >= threshold
            kept[WORDS * i + 2] = w2 >= threshold
            kept[WORDS * i + 3] = w3 >= threshold
        source, target = job.data[INPUT] + start * size, job.output[OUTPUT] + start * size
        if element_type == FLOAT:
            results = own if job.in_place else target
            x, out = array_at(source, count, np.float32), array_at(results, count, np.float32)
            for i in range(count):
                out[i] = x[i] * scale if kept[i] else ZERO
            if job.in_place:  # LLVM's vectors are not used where memory overlaps
                copy_bytes(own, target, 4 * count)
        else:
            read_numbers(kernel.read, source, element_type, count, own)
            for i in range(count):
                numbers[i] = numbers[i] * np.float64(scale) if kept[i] else 0.0
            write_numbers(kernel.write, own, element_type, count, target)
        if job.output[MASK] != 0:
            mask = array_at(job.output[MASK] + start, count, np.uint8)
            for i in range(count):
                mask[i] = kept[i]
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, in_place=(("input", "output"),))


# --- the function body ------------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    x, p = b.load("input"), b.attribute("p")
    if p is not None:
        threshold, scale = b.constant(threshold_of(p), name="threshold"), b.constant(scale_of(p), b.compute)
    else:
        given = b.value_of("p").cast(TensorProto.DOUBLE)
        threshold = b.op("Round", given * np.float64(WORD), name="rounded").cast(TensorProto.INT64).named("threshold")
        scale = (np.float64(1) / (np.float64(1) - given)).cast(TensorProto.FLOAT).cast(b.compute).named("scale")
    count = b.op("Size", x, name="count")
    blocks = b.op("Range", 0, ((count + (WORDS - 1)) / WORDS).named("blocks"), 1, name="block")
    drawn = written(b, b.load_as("seed", TensorProto.INT64), b.value_of("offset"), blocks)
    passes = tuple(word.greater_or_equal(threshold).named("passes") for word in drawn)
    mask = laid_out(b, passes, count, x)
    b.store("output", b.op("Where", mask, (x * scale).named("scaled"), 0.0, name="dropped"), "input")
    b.give("mask", mask)


def infer(call: Call) -> tuple[TensorType, ...]:
    check_draw(call)
    p = call.attributes["p"]
    if not 0 <= p <= 1:
        raise call.error(f"attribute 'p' is {p}, expected a number from 0 to 1")
    shape = call.shape("input")
    return TensorType(call.dtype("input"), shape), TensorType(TensorProto.BOOL, shape)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Test vector of the authors of Philox for counter and key 0: 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8.
        # Only the first word is below 2^31.
        {"input": [1.0, 2.0, 3.0, 4.0], "seed": 0},
        {"output": [0.0, 4.0, 6.0, 8.0], "mask": [False, True, True, True]},
    ),
    body_opset=18,  # the first with BitwiseXor
)
