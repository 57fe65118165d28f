"""The functions of a heap (`runtime.heap`), in native code.

Blocks lie one after another. Each begins with a header of one cache line, followed by what a caller gets. Free blocks
that are adjacent are joined, and the last block is in use: after it there is only address space.
"""

from __future__ import annotations

import mmap

from numba import njit, types

from onnx_ops.loops.memory import LINE, whole_lines
from onnx_ops.runtime.compiler import Function
from onnx_ops.runtime.heap_record import Record
from onnx_ops.runtime.memory import i8_at
from onnx_ops.runtime.native import OPTIONS, call


def _place(field: str) -> int:
    """Index of a field of a Record, in 64-bit words."""
    return int(getattr(Record, field).offset) // 8


MUTEX = int(Record.mutex.offset)
BEGIN, END, TOP, LAST, FREE_BLOCKS = map(_place, ("begin", "end", "top", "last", "free_blocks"))
BLOCKS, RETURNS, CLOSED, PAGE, INFO = map(_place, ("blocks", "returns", "closed", "page", "info"))
LOCK, UNLOCK, ADVISE, UNMAP, NEW, DELETE = map(_place, ("lock", "unlock", "advise", "unmap", "new", "delete"))
MUTEX = 8 * _place("mutex")

# The header of a block, in 64-bit words: its bytes, header included; the block before it, 0 for none; whether it is
# free; neighbours in the list of free blocks, 0 for none.
SIZE, BEFORE, IS_FREE, NEXT, PREVIOUS = range(5)
LEAST = 2 * LINE
"""Bytes of the smallest block."""
DONT_NEED = getattr(mmap, "MADV_DONTNEED", 0)


@njit(**OPTIONS)
def _list(heap, block):
    """Make a block the first one in the list of free blocks."""
    header, following = i8_at(block), heap[FREE_BLOCKS]
    header[IS_FREE], header[NEXT], header[PREVIOUS] = 1, following, 0
    if following != 0:
        i8_at(following)[PREVIOUS] = block
    heap[FREE_BLOCKS] = block


@njit(**OPTIONS)
def _unlist(heap, block):
    """Remove a block from the list of free blocks."""
    header = i8_at(block)
    following, previous = header[NEXT], header[PREVIOUS]
    header[IS_FREE] = 0
    if following != 0:
        i8_at(following)[PREVIOUS] = previous
    if previous != 0:
        i8_at(previous)[NEXT] = following
    else:
        heap[FREE_BLOCKS] = following


@njit(**OPTIONS)
def _taken(heap, size):
    """A block of `size` bytes: of the free ones the smallest that is large enough, or a new one; 0 if there is no room.

    Of several of one size it is the first one in memory.
    """
    block, smallest, other = 0, 0, heap[FREE_BLOCKS]
    while other != 0:
        found = i8_at(other)[SIZE]
        if found >= size and (block == 0 or found < smallest or (found == smallest and other < block)):
            block, smallest = other, found
        other = i8_at(other)[NEXT]
    if block == 0:
        block = heap[TOP]
        if size > heap[END] - block:
            return 0
        header = i8_at(block)
        header[SIZE], header[BEFORE], header[IS_FREE] = size, heap[LAST], 0
        heap[TOP], heap[LAST] = block + size, block
    else:
        _unlist(heap, block)
        if smallest - size >= LEAST:
            rest = block + size
            i8_at(block)[SIZE], i8_at(rest)[SIZE], i8_at(rest)[BEFORE] = size, smallest - size, block
            i8_at(block + smallest)[BEFORE] = rest
            _list(heap, rest)
    heap[BLOCKS] += 1
    return block


@njit(**OPTIONS)
def _put_back(heap, block):
    """Make a block free, and join it with free neighbours."""
    first, end, page = block, block + i8_at(block)[SIZE], heap[PAGE]
    least, most = block // page * page, -(-end // page) * page
    before = i8_at(block)[BEFORE]
    if before != 0 and i8_at(before)[IS_FREE] != 0:
        _unlist(heap, before)
        first = before
    if end < heap[TOP] and i8_at(end)[IS_FREE] != 0:
        _unlist(heap, end)
        end += i8_at(end)[SIZE]
    if end == heap[TOP]:
        heap[TOP], heap[LAST] = first, i8_at(first)[BEFORE]
    else:
        i8_at(first)[SIZE] = end - first
        i8_at(end)[BEFORE] = first
        _list(heap, first)
    heap[BLOCKS] -= 1
    if heap[RETURNS] != 0:
        # The pages of free neighbours have been returned; those that a block shares with a neighbour are now free too.
        start = max(least, -(-(first + LINE) // page) * page)
        stop = min(most, end // page * page)
        if start < stop:
            call(heap[ADVISE], (start, stop - start, DONT_NEED))


def allocate(own, size):
    """Alloc of an OrtAllocator: the address of a block of at least `size` bytes, aligned for any vector.

    If there is no room, C++ allocates it, or throws an exception through this function.
    """
    heap = i8_at(own)
    if size == 0:
        return 0
    if 0 < size <= heap[END] - heap[BEGIN]:
        call(heap[LOCK], (own + MUTEX,))
        block = _taken(heap, whole_lines(size) + LINE)
        call(heap[UNLOCK], (own + MUTEX,))
        if block != 0:
            return block + LINE
    return call(heap[NEW], (size, LINE))


def free(own, address):
    """Free of an OrtAllocator; of a closed heap also unmaps the address space if no block is in use."""
    heap = i8_at(own)
    if address != 0 and not heap[BEGIN] <= address < heap[END]:
        call(heap[DELETE], (address, LINE))
        return
    call(heap[LOCK], (own + MUTEX,))
    if address != 0:
        _put_back(heap, address - LINE)
    if heap[CLOSED] != 0 and heap[BLOCKS] == 0:
        begin, end = heap[BEGIN], heap[END]
        heap[BEGIN] = heap[END] = heap[TOP] = 0
        if begin != 0:
            call(heap[UNMAP], (begin, end - begin))
    call(heap[UNLOCK], (own + MUTEX,))


def info(own):
    """Info of an OrtAllocator."""
    return i8_at(own)[INFO]


FUNCTIONS: dict[str, Function] = {
    "allocate": (allocate, types.int64(types.int64, types.int64)),
    "free": (free, types.void(types.int64, types.int64)),
    "info": (info, types.int64(types.int64)),
}
"""By the fields of `heap_record.Functions`."""
