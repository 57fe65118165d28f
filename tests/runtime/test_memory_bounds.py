"""Kernels access no memory around their inputs and outputs.

Each tensor ends where a page begins that cannot be accessed, then begins where one ends: an access there ends the
process, with the test that runs. The rest of a tensor's own pages is filled with a pattern.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnxruntime as ort
import pytest
from backends import (
    WITH_KERNELS,
    Backend,
    assert_same_bits,
    joinable,
    joined,
    run_outputs,
    session_with_kernels,
)

import onnx_ops
from models.single_op import onnx_element_type
from onnx_ops.ops import OPS
from onnx_ops.runtime.process import libc
from tests.ops import RECORDS
from tests.ops._shared.record import Array, Call

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the pages are those of POSIX")
PATTERN = 0xA5
PROT_NONE = 0
IN_TURNS = [
    pytest.param(op, backend, marks=() if backend is WITH_KERNELS[number % len(WITH_KERNELS)] else pytest.mark.full)
    for number, op in enumerate(OPS)
    for backend in WITH_KERNELS
]
"""Every second op on the library, the others on kernels that are compiled here."""


class Guarded:
    """A copy of an array.

    Attributes:
        array: the copy.
        rest: the bytes of its pages that are none of the array's.
    """

    def __init__(self, array: Array, at_end: bool) -> None:
        size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
        own, guard = (memory[:size], memory[size:]) if at_end else (memory[mmap.PAGESIZE :], memory[: mmap.PAGESIZE])
        own.fill(PATTERN)
        start = size - array.nbytes if at_end else 0
        assert libc().mprotect(ctypes.c_void_p(guard.ctypes.data), mmap.PAGESIZE, PROT_NONE) == 0
        self.array = own[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self.rest = own[:start] if at_end else own[array.nbytes :]


def sessions(backend: Backend, calls: Iterable[Call]) -> Iterator[tuple[ort.InferenceSession, dict[str, Array]]]:
    """Sessions that run calls, and their inputs."""
    for group in joinable(calls):
        try:
            made = [_session(backend, group)]
        except onnx_ops.LinkError:  # a function body that serves one combination of dtypes
            made = [_session(backend, part) for part in joinable(group, by_dtypes=True)]
        yield from made


def _session(backend: Backend, calls: Sequence[Call]) -> tuple[ort.InferenceSession, dict[str, Array]]:
    model, feeds = joined(calls)
    return session_with_kernels(backend, model), feeds


@pytest.mark.parametrize(("op", "backend"), IN_TURNS, ids=str)
def test_memory_around_tensors(op: str, backend: Backend) -> None:
    record = RECORDS[op]
    for session, feeds in sessions(backend, [*record.combinations(), *record.calls()]):
        expected = run_outputs(session, feeds)
        for at_end in (True, False):
            inputs = {name: Guarded(array, at_end) for name, array in feeds.items()}
            outputs = {name: Guarded(np.zeros_like(array), at_end) for name, array in expected.items()}
            binding = session.io_binding()
            for bind, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
                for name, own in tensors.items():
                    array = own.array
                    bind(name, "cpu", 0, onnx_element_type(array.dtype), array.shape, array.ctypes.data)
            session.run_with_iobinding(binding)
            for name, own in outputs.items():
                assert_same_bits(own.array, expected[name])
                assert (own.rest == PATTERN).all()
