"""A heap of its own for the sessions of a training, which onnxruntime calls as an OrtAllocator.

Unlike onnxruntime's arena, it joins all free blocks that are adjacent, and can return the pages of freed blocks to the
system. Its functions are in native code (`runtime.heap_callbacks`).

Sessions take the allocator that is registered with onnxruntime's environment while they are made; there is one
environment in the process. Sessions and values may use it until the process ends, so its record is never freed. Its
address space is unmapped with its last block, once the heap is closed.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import onnxruntime as ort

from onnx_ops.runtime.abi import VP, Api, OrtApi
from onnx_ops.runtime.heap_record import Functions, Record
from onnx_ops.runtime.process import STATE, keep, libc

ALLOCATOR_VERSION = 17
"""The last version of OrtAllocator without optional functions."""
SHARED_ALLOCATORS = "session.use_env_allocators"
WARNING, DEVICE_ALLOCATOR, DEFAULT_MEMORY = 2, 0, 0
"""An OrtLoggingLevel, an OrtAllocatorType, an OrtMemType."""
CPP_LIBRARY = "libstdc++.so.6"
NEW, DELETE = "_ZnwmSt11align_val_t", "_ZdlPvSt11align_val_t"
"""operator new(size_t, std::align_val_t), whose exception onnxruntime expects if there is no memory, and delete."""


class _Environment(NamedTuple):
    """onnxruntime's environment, and the OrtMemoryInfo of memory of the CPU."""

    address: int
    info: int


class Heap:
    """A heap, until it is deleted.

    Args:
        functions: its functions.

    Raises:
        OSError: it cannot be made, on another system than Linux or for want of address space.
    """

    def __init__(self, functions: Functions) -> None:
        if sys.platform != "linux":
            raise OSError(f"there are no heaps on {sys.platform}")
        self._api = OrtApi(functions.api)
        self._environment = _environment(self._api)
        c, cpp = libc(), C.CDLL(CPP_LIBRARY)
        size = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        begin = _mapped(size)
        self._record = keep(
            Record(
                version=ALLOCATOR_VERSION,
                Alloc=functions.allocate,
                Free=functions.free,
                Info=functions.info,
                info=self._environment.info,
                begin=begin,
                end=begin + size,
                top=begin,
                returns=1,
                page=mmap.PAGESIZE,
                lock=_address(c.pthread_mutex_lock),
                unlock=_address(c.pthread_mutex_unlock),
                advise=_address(c.madvise),
                unmap=_address(c.munmap),
                new=_address(cpp[NEW]),
                delete=_address(cpp[DELETE]),
            )
        )
        weakref.finalize(self, _close, self._record).atexit = False

    @contextlib.contextmanager
    def serving(self, options: ort.SessionOptions) -> Iterator[None]:
        """Within this context, sessions that are made with these options allocate from the heap."""
        address = C.addressof(self._record)
        with _registering():
            if options not in _served():
                options.add_session_config_entry(SHARED_ALLOCATORS, "1")
                _served().add(options)
            self._call(Api.RegisterAllocator, address)  # if it fails, sessions have an arena
            try:
                yield
            finally:
                self._call(Api.UnregisterAllocator, self._environment.info)

    def _call(self, function: Api, argument: int) -> None:
        """Call a function of the environment, and disregard its error."""
        self._api.succeeds(function, self._environment.address, argument)

    def return_pages(self, wanted: bool) -> None:
        """Set whether the pages of blocks that are freed are returned to the system, as they are at first."""
        self._record.returns = wanted


def may_serve(options: ort.SessionOptions) -> bool:
    """Whether sessions with these options have an arena of their own, in whose place a heap can be."""
    try:
        shared = options.get_session_config_entry(SHARED_ALLOCATORS) == "1"
    except RuntimeError:  # it has not been set
        shared = False
    return options.enable_cpu_mem_arena and (not shared or options in _served())


def _close(record: Record) -> None:
    """Unmap the address space of a heap, now or with its last block."""
    record.closed = 1
    C.CFUNCTYPE(None, VP, VP)(record.Free)(C.addressof(record), None)


def _mapped(size: int) -> int:
    """The address of `size` bytes of address space, which take memory as they are written."""
    map_memory = C.CFUNCTYPE(VP, VP, C.c_size_t, C.c_int, C.c_int, C.c_int, C.c_long)(_address(libc().mmap))
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address: int = map_memory(None, size, protection, flags, -1, 0)
    if address == C.c_size_t(-1).value:
        raise OSError(f"there is no address space of {size} bytes")
    return address


def _environment(api: OrtApi) -> _Environment:
    """The environment of the process; what this returns is never released."""
    with STATE.registering:
        if "environment" not in STATE.shared:
            address = api.word(Api.CreateEnv, WARNING, b"onnx_ops")  # returns the one that there is
            info = api.word(Api.CreateCpuMemoryInfo, DEVICE_ALLOCATOR, DEFAULT_MEMORY)
            assert address is not None
            assert info is not None
            STATE.shared["environment"] = _Environment(address, info)
        found: _Environment = STATE.shared["environment"]
        return found


def _registering() -> threading.Lock:
    """The lock of the environment's allocator."""
    lock: threading.Lock = STATE.shared.setdefault("allocator", threading.Lock())
    return lock


def _served() -> weakref.WeakSet[ort.SessionOptions]:
    """The options that heaps have set to allocators of the environment; without one, sessions have their own."""
    found: weakref.WeakSet[ort.SessionOptions] = STATE.shared.setdefault("served", weakref.WeakSet())
    return found


def _address(function: Any) -> int:
    address = C.cast(function, VP).value
    assert address is not None
    return address
