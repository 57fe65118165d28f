"""Philox 4x32-10, by which the ops draw random numbers, written with Python's integers."""

from __future__ import annotations

import functools

import numpy as np

from tests.ops._shared.numbers import Array

WHOLE = (np.dtype(np.int64), np.dtype(np.int32))
"""The dtypes of seeds."""
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Binary digits of a number below 1 that each dtype holds."""


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox 4x32-10 (Salmon et al. 2011, section 3.3 and table 2), written with Python's whole numbers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second % 2**32, first >> 32 ^ c[3] ^ k[1], first % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return tuple(c)


@functools.cache
def words(seed: int, offset: int, count: int) -> Array:
    """The first `count` words of a seed and an offset (count,)."""
    drawn = [
        word
        for block in range((count + 3) // 4)
        for word in philox(
            (block % 2**32, block >> 32, offset % 2**32, offset >> 32), (seed % 2**32, (seed >> 32) % 2**32)
        )
    ]
    return np.array(drawn[:count], np.uint64)


@functools.cache
def numbers(seed: int, offset: int, count: int) -> tuple[int, ...]:
    """The first `count` numbers of 53 bits of a seed and an offset: the upper ones of two words."""
    drawn = list(map(int, words(seed, offset, 2 * count)))
    return tuple((first * 2**32 + second) // 2**11 for first, second in zip(drawn[::2], drawn[1::2], strict=True))
