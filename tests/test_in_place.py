"""Outputs in the memory of an input, as IO binding and onnxruntime's reuse of buffers make them: the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnxruntime as ort
import pytest
from backends import assert_same_bits, kernel_options, model_of, run_outputs

import onnx_ops
from models.single_op import onnx_element_type
from tests.ops import RECORDS
from tests.ops._shared.arrays import FLOATS
from tests.ops._shared.record import Array, Call, DType

IN_PLACE: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "ApplyAdamW": (
        {"var_out": "var", "m_out": "m", "v_out": "v", "max_grad_norm_out": "max_grad_norm"},
        {"m_out": "m"},
        {"v_out": "grad"},
    ),
}
"""By op: outputs that may have the memory of an input at the same time, with that input."""
SIZES = (700, 5_000, 600_100)
"""Elements: less than a vector register or a chunk, some chunks and a rest, more than a block of every kernel."""
THREADS = 2


def calls_of(op: str, dtype: DType) -> Iterator[Call]:
    """The benchmarks of an op in SIZES, and its calls with several blocks and with special values."""
    record = RECORDS[op]
    yield from (benchmark.make(size, dtype) for benchmark in record.benchmarks for size in SIZES)
    yield from record.large(dtype)
    yield from (call for call in record.calls() if {a.dtype for a in call.given.values()} & set(FLOATS) == {dtype})


def aligned(array: Array, offset: int) -> Array:
    """A copy of an array, `offset` elements after a multiple of 64 bytes."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset * array.itemsize
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run_in_place(
    session: ort.InferenceSession, call: Call, apart: Mapping[str, Array], shared: Mapping[str, str], offset: int
) -> dict[str, Array]:
    """All outputs of a call.

    Args:
        apart: the outputs in memory of their own.
        shared: outputs in the memory of an input.
        offset: of the elements, see `aligned`.
    """
    arrays = {name: aligned(array, offset) for name, array in call.given.items()}
    outputs = {name: arrays[shared[name]] if name in shared else np.empty_like(a) for name, a in apart.items()}
    binding = session.io_binding()
    for bind, named in ((binding.bind_input, arrays), (binding.bind_output, outputs)):
        for name, array in named.items():
            bind(name, "cpu", 0, onnx_element_type(array.dtype), array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)
    return outputs


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", IN_PLACE)
def test_same_bits_in_place(op: str, dtype: DType) -> None:
    tried = set()
    for call in calls_of(op, dtype):
        session = onnx_ops.InferenceSession(model_of(call), kernel_options(THREADS))
        apart = run_outputs(session, call.given)
        for number, pairs in enumerate(IN_PLACE[op]):
            shared = {
                out: name
                for out, name in pairs.items()
                if out in apart and name in call.given
                and (apart[out].shape, apart[out].dtype) == (call.given[name].shape, call.given[name].dtype)
            }  # fmt: skip
            if not shared:
                continue
            tried.add(number)
            for offset in (0, 1):
                together = run_in_place(session, call, apart, shared, offset)
                for name, array in together.items():
                    assert_same_bits(array, apart[name])
    assert tried == set(range(len(IN_PLACE[op]))), "no call has such outputs"
