"""Outputs in the memory of an input, as IO binding and onnxruntime's reuse of buffers make them: the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnxruntime as ort
import pytest
from backends import assert_same_bits, kernels_for, key_of, model_of, run_outputs, session_with_kernels
from cases import narrow_and_wide

from models.single_op import onnx_element_type
from tests.ops import RECORDS
from tests.ops._shared import lstm
from tests.ops._shared.record import ELEMENTS, Array, Call, DType

IN_PLACE: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "ApplyAdamW": (
        {"var_out": "var", "m_out": "m", "v_out": "v", "max_grad_norm_out": "max_grad_norm"},
        {"m_out": "m"},
        {"v_out": "grad"},
    ),
    "BatchNormElemt": ({"out": "input"},),
    "BatchNormElemtBackward": ({"grad_input": "grad_out"}, {"grad_input": "input"}),
    "BinaryCrossEntropyWithLogits": ({"out": "self"}, {"out": "target"}, {"out": "weight"}),
    "BinaryCrossEntropyWithLogitsBackward": (
        {"out": "grad_output"}, {"out": "self"}, {"out": "target"},
    ),
    "BinaryCrossEntropyWithLogitsTargetBackward": (
        {"grad_target": "grad_output"}, {"grad_target": "self"},
    ),
    "DropoutBackward": ({"grad_input": "grad_output"},),
    "DropoutV3": ({"output": "input"},),
    "DynamicRNN": ({"storage": "input_gates"},),
    "DynamicRNNGrad": ({"grad_gates": "storage"},),
    "FusedSgd": (
        {"param_out": "param", "momentum_buffer_out": "momentum_buffer"},
        {"param_out": "param"},
        {"param_out": "grad"},
        {"momentum_buffer_out": "grad"},
    ),
    "GeluBackwardV2": ({"grad_input": "grad_output"}, {"grad_input": "self"}),
    "HardsigmoidBackward": ({"grad_input": "grad_output"}, {"grad_input": "self"}),
    "HardswishBackwardV2": ({"grad_input": "grad_output"}, {"grad_input": "self"}),
    "HardtanhBackward": ({"grad_input": "grad_output"}, {"grad_input": "self"}),
    "Hardshrink": ({"out": "self"},),
    "HardshrinkBackward": ({"grad_input": "grad_output"}, {"grad_input": "self"}),
    "InplaceNormal": ({"out": "self"},),
    "InplaceUniform": ({"out": "self"},),
    "KlDiv": ({"out": "self"}, {"out": "target"}),
    "KlDivBackward": ({"out": "grad_output"}, {"out": "self"}, {"out": "target"}),
    "KlDivTargetBackward": ({"grad_target": "grad_output"}, {"grad_target": "self"}, {"grad_target": "target"}),
    "GroupNormBackward": ({"grad_input": "grad_out"}, {"grad_input": "input"}),
    "LayerNormBackward": ({"grad_input": "grad_out"}, {"grad_input": "input"}),
    "OptimizationBarrier": ({"result": "operand"},),
    "RmsNorm": ({"y": "x"},),
    "RmsNormGrad": ({"dx": "dy"}, {"dx": "x"}),
    "RotaryPositionEmbedding": ({"y": "x"},),
    "RotaryPositionEmbeddingGrad": ({"dx": "dy"}, {"dx": "x"}),
    "Digamma": ({"out": "self"},),
    "Lgamma": ({"out": "self"},),
    "InplaceLog": ({"out": "self"},),
    "InplaceSin": ({"out": "self"},),
    "InplaceCos": ({"out": "self"},),
    "Silu": ({"out": "self"},),
    "SiluBackward": ({"grad_input": "grad_output"}, {"grad_input": "self"}),
    "SoftplusBackward": ({"grad_input": "grad_output"}, {"grad_input": "self"}),
    "SoftplusV2": ({"out": "self"},),
    "SWhere": ({"out": "self"}, {"out": "other"}),
    "ScatterMax": ({"out": "var"},),
    "ThnnFusedLstmCell": (
        {"storage": "input_gates", "cy": "cx"}, {"storage": "hidden_gates", "hy": "cx"}, {"storage": "hidden_gates"},
    ),
    "ThnnFusedLstmCellBackward": (
        {"grad_gates": "storage", "grad_cx": "grad_hy"}, {"grad_gates": "storage"}, {"grad_cx": "grad_cy"},
        {"grad_cx": "cx"}, {"grad_cx": "cy"},
    ),
    "ThresholdBackward": ({"grad_input": "grad_output"}, {"grad_input": "self"}),
}  # fmt: skip
"""By op: outputs that may have the memory of an input at the same time, with that input."""
SIZES, ROWS = (700, 5_000, 600_100), ((3, 5), (700, 33))
"""Elements: less than a chunk, some chunks and a rest, several blocks of each kernel; shapes of LSTM cells."""
THREADS = 2


def calls_of(op: str, dtype: DType) -> Iterator[Call]:
    """The benchmarks of an op, those of its calls that have several blocks, and those that have inputs of a dtype."""
    record = RECORDS[op]
    for benchmark in record.benchmarks:
        sizes = SIZES if benchmark.sizes is ELEMENTS else ROWS if benchmark.sizes is lstm.SIZES else ()
        yield from (benchmark.make(size, dtype) for size in sizes)
    yield from record.large(dtype)
    yield from (call for call in record.calls() if dtype in {array.dtype for array in call.given.values()})


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


@pytest.mark.parametrize(("op", "dtype"), narrow_and_wide(IN_PLACE), ids=str)
def test_same_bits_in_place(op: str, dtype: DType) -> None:
    tried, sessions = set(), {}
    for call in calls_of(op, dtype):
        key = key_of(call)
        if key not in sessions:
            sessions[key] = session_with_kernels(kernels_for(dtype), model_of(call), THREADS)
        session = sessions[key]
        apart = run_outputs(session, call.given)
        for number, pairs in enumerate(IN_PLACE[op]):
            shared = {
                out: name
                for out, name in pairs.items()
                if out in apart and name in call.given
                and apart[out].shape == call.given[name].shape and apart[out].dtype == call.given[name].dtype == dtype
            }  # fmt: skip
            if not shared:
                continue
            tried.add(number)
            for offset in (0, 1):
                together = run_in_place(session, call, apart, shared, offset)
                for name, array in together.items():
                    assert_same_bits(array, apart[name])
    assert tried == set(range(len(IN_PLACE[op]))), "no call has such outputs"
