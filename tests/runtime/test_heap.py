"""The heap of a trainer's sessions: its blocks, the pages it returns, and who uses it."""

from __future__ import annotations

import ctypes
import gc
import mmap
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import built_library
import numpy as np
import onnxruntime as ort
import pytest
import steps
from backends import LIBRARY, WITH_KERNELS, Backend, assert_same_bits, kernel_options
from onnx import parser

from onnx_ops import Trainer
from onnx_ops.integrations import prebuilt
from onnx_ops.integrations.sessions import new_heap, session_options
from onnx_ops.runtime import heap as heap_module
from onnx_ops.runtime.heap import Heap
from onnx_ops.training import step_sessions
from scripts.memory.peaks import peak, reset_peak, resident

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="heaps are for Linux")
LARGE = 1 << 26


class Memory(NamedTuple):
    """A heap, and its functions as onnxruntime calls them."""

    heap: Heap
    allocate: Callable[[int], int]
    free: Callable[[int], None]

    @property
    def size(self) -> int:
        """Bytes up to the end of the last block."""
        return int(self.heap._record.top - self.heap._record.begin)


@pytest.fixture(params=WITH_KERNELS, ids=str)
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Memory:
    library: Backend = request.param
    monkeypatch.setenv(prebuilt.VARIABLE, str(built_library.library()) if library is LIBRARY else "")
    return new_memory()


def new_memory() -> Memory:
    heap = new_heap(session_options())
    assert heap is not None
    record = heap._record
    own = ctypes.addressof(record)
    take = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)(record.Alloc)
    give = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t)(record.Free)
    return Memory(heap, lambda size: take(own, size), lambda address: give(own, address))


# --- blocks -----------------------------------------------------------------------------------------------------------


def exchange(memory: Memory, seed: int, count: int) -> None:
    """Take and free blocks in random order; each keeps what is written to it as long as it is in use."""
    choices = random.Random(seed)
    blocks: dict[int, bytes] = {}
    for _ in range(count):
        if len(blocks) < 40 and choices.random() < 0.6:
            size = choices.choice((1, 63, 64, 65, 4096, choices.randrange(1, 50_000)))
            address = memory.allocate(size)
            assert address % 64 == 0
            blocks[address] = choices.randbytes(size)
            ctypes.memmove(address, blocks[address], size)
        elif blocks:
            address = choices.choice(list(blocks))
            assert ctypes.string_at(address, len(blocks[address])) == blocks.pop(address)
            memory.free(address)
    for address, content in blocks.items():
        assert ctypes.string_at(address, len(content)) == content
        memory.free(address)


@pytest.mark.parametrize("returns", [True, False])
def test_blocks_keep_their_contents_and_are_joined_once_they_are_free(memory: Memory, returns: bool) -> None:
    memory.heap.return_pages(returns)
    for seed in range(5):
        exchange(memory, seed, 1000)
        assert (memory.size, memory.heap._record.free_blocks, memory.heap._record.blocks) == (0, 0, 0)


def test_several_threads_use_a_heap_at_the_same_time(memory: Memory) -> None:
    threads = [threading.Thread(target=exchange, args=(memory, seed, 1000)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (memory.size, memory.heap._record.blocks) == (0, 0)


def test_the_smallest_free_block_that_suffices_is_taken(memory: Memory) -> None:
    sizes = (4096, 64, 1024, 64, 2048, 64)
    blocks = [memory.allocate(size) for size in sizes]
    for i in (0, 2, 4):
        memory.free(blocks[i])
    before = memory.size
    assert memory.allocate(1500) == blocks[4]
    assert memory.allocate(1024) == blocks[2]
    assert memory.allocate(4096) == blocks[0]
    assert memory.size == before


def test_nothing_is_allocated_for_no_bytes(memory: Memory) -> None:
    assert memory.allocate(0) == 0
    memory.free(0)
    assert memory.heap._record.blocks == 0


def test_pages_of_freed_blocks_are_returned_as_long_as_that_is_wanted(memory: Memory) -> None:
    """Between blocks in use, up to the pages that a block shares with its neighbours."""
    for wanted in (True, False):
        memory.heap.return_pages(wanted)
        first, block, last = (memory.allocate(size) for size in (100, LARGE, 100))
        before = resident()
        ctypes.memset(block, 1, LARGE)
        assert resident() - before > LARGE * 0.9
        memory.free(block)
        assert (resident() - before < LARGE * 0.1) == wanted
        if wanted:
            again = memory.allocate(LARGE)
            assert ctypes.string_at(again + mmap.PAGESIZE, 8) == bytes(8)
            memory.free(again)
        for address in (first, last):
            memory.free(address)


def test_the_address_space_is_unmapped_with_the_last_block(memory: Memory) -> None:
    begin = memory.heap._record.begin
    block = memory.allocate(LARGE)
    ctypes.memset(block, 1, LARGE)
    heap_module._close(memory.heap._record)  # as when the heap is deleted, which the fixture holds
    assert is_mapped(begin)
    assert ctypes.string_at(block, 1) == b"\1"
    memory.free(block)
    assert not is_mapped(begin)
    elsewhere = memory.allocate(100)  # by a session that still has the allocator
    ctypes.memset(elsewhere, 1, 100)
    memory.free(elsewhere)


def is_mapped(address: int) -> bool:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)


# --- sessions ---------------------------------------------------------------------------------------------------------


def expanding() -> bytes:
    """y is the sum of n ones, whose memory is allocated."""
    text = """
        <ir_version: 8, opset_import: ["" : 18]>
        expanding (float[1] x, int64[1] n) => (float y) {
            all = Expand(x, n)
            kept = Relu(all)
            y = ReduceSum<keepdims = 0>(kept)
        }"""
    return parser.parse_model(text).SerializeToString()


def total(session: ort.InferenceSession, count: int) -> float:
    return float(session.run(None, {"x": np.ones(1, np.float32), "n": np.array([count])})[0])


def test_what_exceeds_the_memory_of_the_machine_raises_an_error_of_onnxruntime(memory: Memory) -> None:
    made = ort.SessionOptions()
    with memory.heap.serving(made):
        session = ort.InferenceSession(expanding(), made, providers=["CPUExecutionProvider"])
    assert total(session, 1 << 20) == 1 << 20
    with pytest.raises(Exception, match="bad_alloc"):
        total(session, 1 << 43)
    assert total(session, 1 << 20) == 1 << 20


def test_other_sessions_do_not_use_the_heap(memory: Memory) -> None:
    """Neither those with an allocator of the environment, nor later ones with the options of a trainer."""
    own, others = ort.SessionOptions(), ort.SessionOptions()
    others.add_session_config_entry(heap_module.SHARED_ALLOCATORS, "1")
    with memory.heap.serving(own):
        session = ort.InferenceSession(expanding(), own, providers=["CPUExecutionProvider"])
    memory.heap.return_pages(False)
    assert takes_memory_of_the_heap(memory, session)
    for options in (own, others):
        other = ort.InferenceSession(expanding(), options, providers=["CPUExecutionProvider"])
        assert not takes_memory_of_the_heap(memory, other)


def takes_memory_of_the_heap(memory: Memory, session: ort.InferenceSession) -> bool:
    """Whether a run writes to the first bytes of the heap, where a large value would be."""
    place = memory.allocate(LARGE)
    ctypes.memset(place, 0, 1 << 20)
    memory.free(place)
    assert total(session, 1 << 20) == 1 << 20
    place = memory.allocate(LARGE)
    found = ctypes.string_at(place, 1 << 20) != bytes(1 << 20)
    memory.free(place)
    return found


def test_options_with_another_allocator_get_no_heap() -> None:
    for_all, without = ort.SessionOptions(), ort.SessionOptions()
    for_all.add_session_config_entry(heap_module.SHARED_ALLOCATORS, "1")
    without.enable_cpu_mem_arena = False
    assert new_heap(for_all) is None
    assert new_heap(without) is None


def test_without_address_space_there_is_no_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_module.os, "sysconf", lambda name: 1 << 45)
    options = kernel_options()
    assert new_heap(options) is None
    Trainer(steps.whole_step(), options).step(**steps.batch(3))


# --- trainers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[ort.ExecutionMode.ORT_SEQUENTIAL, ort.ExecutionMode.ORT_PARALLEL], ids=str)
def options(request: pytest.FixtureRequest) -> ort.SessionOptions:
    made = kernel_options()
    made.execution_mode = request.param
    return made


def test_steps_are_the_same_with_the_heap_and_with_the_arena(
    options: ort.SessionOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Trainer(steps.whole_step(), options)
    assert isinstance(own._made[""].runner._updates._bound._session, step_sessions.HeapSession)
    monkeypatch.setattr(step_sessions, "new_heap", lambda options: None)
    usual = Trainer(steps.whole_step(), options)
    assert not isinstance(usual._made[""].runner._updates._bound._session, step_sessions.HeapSession)
    for count in (3, 1, 50, 3):
        batch = steps.batch(count)
        one, other = own.step(**batch), usual.step(**batch)
        for name in one:
            assert_same_bits(one[name], other[name])
    now, then = own.state_dict(), usual.state_dict()
    for name in now:
        assert_same_bits(now[name], then[name])


def test_the_first_run_of_each_session_returns_pages() -> None:
    trainer = Trainer(steps.whole_step(), kernel_options())
    heap = trainer._made[""].runner._updates._bound._session._heap
    assert heap._record.returns
    batch = steps.batch(3)
    for expected in (1, 0, 0):
        trainer.step(**batch)
        assert heap._record.returns == expected
    trainer.accumulate(**batch)
    assert heap._record.returns
    trainer.accumulate(**batch)
    assert not heap._record.returns


def test_no_value_keeps_its_memory_for_a_later_one() -> None:
    """Two values of one shape, and between them a larger one, whose memory those of the other shape do not add to."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 18]>
        passing (float[1] x) => (float y) <int64[1] few = {{{LARGE // 8}}}, int64[1] many = {{{LARGE // 4}}}> {{
            first = Expand(x, few)
            one = ReduceMax<keepdims = 1>(first)
            second = Expand(one, many)
            two = ReduceMax<keepdims = 1>(second)
            third = Expand(two, few)
            y = ReduceMax<keepdims = 0>(third)
        }}"""
    given = ort.SessionOptions()
    session = step_sessions.session_maker(given, None, (), (), distributed=False)(parser.parse_model(text))
    assert isinstance(session, step_sessions.HeapSession)
    assert (given.enable_mem_reuse, given.enable_mem_pattern) == (True, True)
    before = resident()
    reset_peak()
    assert session.run(None, {"x": np.ones(1, np.float32)}) == [1]
    assert LARGE * 0.9 < peak() - before < LARGE * 1.3


def test_a_trainer_that_is_deleted_leaves_no_address_space() -> None:
    trainer = Trainer(steps.whole_step(), kernel_options())
    trainer.step(**steps.batch(3))
    heap = trainer._made[""].runner._updates._bound._session._heap
    begin = heap._record.begin
    del heap, trainer
    gc.collect()
    assert not is_mapped(begin)


def test_what_the_first_step_frees_is_resident_from_the_second_one_on() -> None:
    batch = steps.batch(1 << 20)
    Trainer(steps.whole_step(), kernel_options()).step(**batch)
    trainer = Trainer(steps.whole_step(), kernel_options())
    before = resident()
    trainer.step(**batch)
    first = resident() - before
    trainer.step(**batch)
    assert resident() - before > first + (4 << 20)
