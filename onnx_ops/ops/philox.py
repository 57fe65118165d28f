"""Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).

A counter-based generator: a function of a 128-bit counter and a 64-bit key that returns four 32-bit words, without
state, so that threads draw words in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.graph.builder import Value
from onnx_ops.loops.memory import array_at
from onnx_ops.loops.primitives import helper, inlined

ROUNDS = 10
FIRST, SECOND = 0xD2511F53, 0xCD9E8D57
"""Multipliers of the rounds."""
FIRST_STEP, SECOND_STEP = 0x9E3779B9, 0xBB67AE85
"""Increments of the key per round (Weyl sequence): bits of the golden ratio and of sqrt(3) - 1."""
WORD = 2**32
WORDS = 4

# Typed for native code, where an int64 and a uint64 promote to float64.
A, B, A_STEP, B_STEP = np.uint64(FIRST), np.uint64(SECOND), np.uint64(FIRST_STEP), np.uint64(SECOND_STEP)
LOW, HALF = np.uint64(WORD - 1), np.uint64(32)

SEED_TYPES = INT64, INT32 = int(TensorProto.INT64), int(TensorProto.INT32)


def check_draw(call: Call) -> None:
    """Check the input `seed` and the attribute `offset` of an op that draws random numbers."""
    call.same_shape("seed", (), "a scalar")
    offset = call.attributes["offset"]
    if offset < 0:
        raise call.error(f"attribute 'offset' is {offset}, expected at least 0")


@helper
def key_at(address: int, element_type: int) -> Any:
    """The key, uint64, of a seed of int64 or int32 at a memory address."""
    if element_type == INT64:
        return np.uint64(array_at(address, 1, np.int64)[0])
    return np.uint64(np.int64(array_at(address, 1, np.int32)[0]))


@inlined
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """The four words of a counter and a key, all uint64 below 2**32."""
    for _ in range(ROUNDS):
        a, b = A * c0, B * c2
        c0, c1, c2, c3 = (b >> HALF) ^ c1 ^ k0, b & LOW, (a >> HALF) ^ c3 ^ k1, a & LOW
        k0, k1 = (k0 + A_STEP) & LOW, (k1 + B_STEP) & LOW
    return c0, c1, c2, c3


def words(seed: int, offset: int, count: int) -> np.ndarray:
    """(count,) the first words of a seed and an offset: word i is word i % 4 of counter i // 4."""
    key, stream = (np.asarray(value, np.int64).astype(np.uint64) for value in (seed, offset))
    blocks = np.arange((count + WORDS - 1) // WORDS, dtype=np.uint64)
    counter = (blocks & LOW, blocks >> HALF, stream & LOW, stream >> HALF)
    return np.stack(philox(*counter, key & LOW, key >> HALF), axis=-1).reshape(-1)[:count]


def written(b: Body, seed: Value, offset: Value, blocks: Value) -> tuple[Value, ...]:
    """`philox` in standard operators, in int64.

    Args:
        b: the body.
        seed, offset: int64 scalars, offset >= 0.
        blocks: counters, int64 in [0, 2**32).

    Returns:
        The four words of each counter, int64.
    """

    def low(value: Value) -> Value:
        return b.op("BitwiseAnd", value, WORD - 1, name="low")

    def halves(value: Value) -> tuple[Value, Value]:
        """High and low half. The dividend is a multiple, so the division is exact also in runtimes that use float64."""
        low_half = low(value)
        return ((value - low_half) / WORD).named("high"), low_half

    def xor(first: Value, *others: Value) -> Value:
        for other in others:
            first = b.op("BitwiseXor", first, other, name="mixed")
        return first

    def multiplied(word: Value, factor: int) -> tuple[Value, Value]:
        """High and low half of a product, which exceeds int64: of word * (factor - 2**32) + 2**62."""
        high_half, low_half = halves((word * b.constant(factor - WORD) + 2**62).named("product"))
        return (high_half + (word - 2**30)).named("high"), low_half

    c0, c1, (c3, c2) = blocks, b.constant(0), halves(offset)
    high_key, k0 = halves(seed)
    k1 = low(high_key)  # the high half of a negative seed is negative
    for _ in range(ROUNDS):
        (a_high, a_low), (b_high, b_low) = multiplied(c0, FIRST), multiplied(c2, SECOND)
        c0, c1, c2, c3 = xor(b_high, c1, k0), b_low, xor(a_high, c3, k1), a_low
        k0, k1 = low(k0 + FIRST_STEP), low(k1 + SECOND_STEP)
    return c0, c1, c2, c3


def laid_out(b: Body, columns: tuple[Value, ...], count: Value, like: Value) -> Value:
    """The first `count` values of columns, read row by row, in the shape of another value.

    Args:
        b: the body.
        columns: of one length, which suffices for `count` values.
        count: int64, a scalar.
        like: has `count` elements.
    """
    rows = b.op("Concat", *(b.op("Unsqueeze", column, [1], name="column") for column in columns), name="rows", axis=1)
    number = b.op("Reshape", count, [1], name="number")
    flat = b.op("Slice", b.op("Reshape", rows, [-1], name="row"), [0], number, [0], name="values")
    return b.op("Reshape", flat, b.op("Shape", like), name="laid_out", allowzero=1)
