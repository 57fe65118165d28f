"""Tensors in files, which are read only when they are needed, directly into the memory that they are for."""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BLOCK = 2**20
"""Bytes that are read at once where the contents of a tensor are processed block by block."""


class _SelfClosingFile(io.FileIO):
    """A file that is closed, without a warning, when nothing refers to it."""

    __del__ = io.FileIO.close


class OpenFile:
    """A file that stays open for reading as long as this object exists, also if another file replaces it.

    Attributes:
        path: its path when it was opened.
        size: its size then, in bytes.

    Raises:
        OSError: a file that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _SelfClosingFile(path)
        self.size = os.fstat(self._file.fileno()).st_size

    def read_into(self, offset: int, memory: memoryview) -> None:
        """Fill memory with the bytes from an offset on; OSError if the file ends before."""
        self._file.seek(offset)
        while memory:
            count = self._file.readinto(memory)
            if not count:
                raise self._shortened()
            memory = memory[count:]

    def read(self, offset: int, length: int) -> bytes:
        """A part of the file; OSError if the file ends before."""
        self._file.seek(offset)
        parts = []
        while length:
            parts.append(self._file.read(length))
            length -= len(parts[-1])
            if not parts[-1]:
                raise self._shortened()
        return b"".join(parts)

    def _shortened(self) -> OSError:
        return OSError(errno.EIO, "the file was shortened while it was read", str(self.path))


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, whose elements are contiguous and little-endian.

    Attributes:
        file: the file.
        offset: of its first byte.
        dtype, shape: as of an array.
    """

    file: OpenFile
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read_into(self, array: np.ndarray) -> None:
        """Fill a contiguous array of the same dtype and shape."""
        self.file.read_into(self.offset, _bytes(array))

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """The tensor as a new array."""
        array = np.empty(self.shape, self.dtype)
        self.read_into(array)
        return array if dtype is None else array.astype(dtype, copy=False)


Source = np.ndarray | StoredTensor
"""A tensor in memory or in a file; both have dtype, shape and nbytes."""


def copy_into(array: np.ndarray, source: Source) -> None:
    """Fill a contiguous array with a tensor of the same dtype and shape."""
    if isinstance(source, StoredTensor):
        source.read_into(array)
    else:
        array[...] = source


def copy_into_zeros(array: np.ndarray, source: Source) -> None:
    """As `copy_into` for an array of zeros, whose pages are not touched where the tensor is 0 too."""
    target = _bytes(array)
    for number, block in enumerate(_aligned(source)):
        if np.frombuffer(block, np.uint8).any():
            target[number * BLOCK : number * BLOCK + len(block)] = block


def blocks(source: Source) -> Iterator[memoryview]:
    """The bytes of a tensor, in order; each block is valid until the next one."""
    if isinstance(source, StoredTensor):
        memory = memoryview(bytearray(min(BLOCK, source.nbytes)))
        for start in range(0, source.nbytes, BLOCK):
            part = memory[: source.nbytes - start]
            source.file.read_into(source.offset + start, part)
            yield part
    else:
        yield _bytes(np.asarray(source, order="C"))


def same_bits(one: Source, other: Source) -> bool:
    """Whether two tensors have the same dtype, shape and bytes."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.hasobject:
        return one is other
    return all(np.array_equal(a, b) for a, b in zip(_aligned(one), _aligned(other), strict=True))


def _aligned(source: Source) -> Iterator[memoryview]:
    """As `blocks`, each of BLOCK bytes except for the last one."""
    for block in blocks(source):
        yield from (block[start : start + BLOCK] for start in range(0, len(block), BLOCK))


def _bytes(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data
