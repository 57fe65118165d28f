"""Freed memory is returned to the system."""

from __future__ import annotations

import ctypes
import multiprocessing
import platform

import pytest

from onnx_ops.training import freed_memory
from onnx_ops.training.freed_memory import LARGEST_THRESHOLD, M_MMAP_THRESHOLD, SEPARATE, returned_when_freed
from scripts.memory.peaks import RESETS, resident

SIZE, COUNT = 2 * SEPARATE, 6
Options = list[tuple[int, int]]


@pytest.fixture
def set_options(monkeypatch: pytest.MonkeyPatch) -> Options:
    """The calls of mallopt."""
    calls: Options = []
    monkeypatch.setattr(freed_memory, "_of_glibc", lambda name: lambda *call: calls.append(call) or 1)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    return calls


def bytes_returned() -> int:
    """By the system's count, where all blocks but one are freed."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(libc.malloc(LARGEST_THRESHOLD - 2**16))  # after which glibc keeps smaller blocks
    with returned_when_freed():
        blocks = [libc.malloc(SIZE) for _ in range(COUNT)]
        for block in blocks:
            ctypes.memset(block, 1, SIZE)
        before = resident()
        for block in blocks[:-1]:
            libc.free(block)
        returned = before - resident()
        libc.free(blocks[-1])
    return returned


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not RESETS.exists(), reason="glibc on Linux returns it")
def test_blocks_between_others_are_returned() -> None:
    """In a process whose heap has no gaps of this size, from which glibc would take blocks first."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(bytes_returned) > (COUNT - 2) * SIZE


def test_the_threshold_is_the_largest_of_glibc_afterwards(set_options: Options) -> None:
    def fails() -> None:
        with returned_when_freed():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert set_options[0] == (M_MMAP_THRESHOLD, SEPARATE)
    assert (M_MMAP_THRESHOLD, LARGEST_THRESHOLD) in set_options[2:]


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_MMAP_THRESHOLD_", "65536"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")]
)
def test_a_threshold_of_the_environment_is_kept(
    name: str, value: str, set_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with returned_when_freed():
        pass
    assert not set_options


def test_other_c_libraries_have_no_such_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_of_glibc", lambda name: None)
    with returned_when_freed():
        pass
