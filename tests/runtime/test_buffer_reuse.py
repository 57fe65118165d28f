"""onnxruntime gives an output the buffer of an input that has no other reader, where an op declares it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnxruntime as ort
import pytest
from backends import KERNEL, Backend, assert_same_bits, kernels_for, options, run_outputs, session_with_kernels
from cases import narrow_and_wide
from onnx import NodeProto, ValueInfoProto, helper

import onnx_ops
from models.single_op import IR_VERSION, ONNX_OPSET, Dimension, onnx_element_type
from onnx_ops.ops import OPS
from onnx_ops.runtime.declarations import Declaration
from onnx_ops.runtime.reuse import pairs_of
from scripts.memory.peaks import RESETS, peak, reset_peak, resident
from tests.ops import RECORDS
from tests.ops._shared.arrays import FLOAT16, FLOAT32, FLOATS
from tests.ops._shared.record import ELEMENTS, Array, Call, DType

REUSED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "ApplyAdamW": {"var_out": ["var"], "m_out": ["m"], "v_out": ["v"], "max_grad_norm_out": ["max_grad_norm"]},
    "BatchNormElemt": {"out": ["input"]},
    "BatchNormElemtBackward": {"grad_input": ["input"]},
    "BinaryCrossEntropyWithLogitsBackward": {"out": ["target"]},
    "BinaryCrossEntropyWithLogitsTargetBackward": {"grad_target": ["target"]},
    "DropoutBackward": {"grad_input": ["grad_output"]},
    "DropoutV3": {"output": ["input"]},
    "DynamicRNN": {"storage": ["input_gates"]},
    "DynamicRNNGrad": {"grad_gates": ["storage"]},
    "FusedSgd": {"param_out": ["param"], "momentum_buffer_out": ["momentum_buffer"]},
    "GeluBackwardV2": {"grad_input": ["grad_output", "self"]},
    "HardsigmoidBackward": {"grad_input": ["grad_output", "self"]},
    "HardswishBackwardV2": {"grad_input": ["grad_output", "self"]},
    "HardtanhBackward": {"grad_input": ["grad_output", "self"]},
    "Hardshrink": {"out": ["self"]},
    "HardshrinkBackward": {"grad_input": ["grad_output", "self"]},
    "InplaceNormal": {"out": ["self"]},
    "InplaceUniform": {"out": ["self"]},
    "KlDivBackward": {"out": ["self"]},
    "GroupNormBackward": {"grad_input": ["grad_out", "input"]},
    "LayerNormBackward": {"grad_input": ["grad_out", "input"]},
    "OptimizationBarrier": {"result": ["operand"]},
    "RmsNorm": {"y": ["x"]},
    "RmsNormGrad": {"dx": ["dy", "x"]},
    "RotaryPositionEmbedding": {"y": ["x"]},
    "RotaryPositionEmbeddingGrad": {"dx": ["dy", "x"]},
    "Digamma": {"out": ["self"]},
    "Lgamma": {"out": ["self"]},
    "InplaceLog": {"out": ["self"]},
    "InplaceSin": {"out": ["self"]},
    "InplaceCos": {"out": ["self"]},
    "Silu": {"out": ["self"]},
    "SiluBackward": {"grad_input": ["grad_output", "self"]},
    "SoftplusBackward": {"grad_input": ["grad_output", "self"]},
    "SoftplusV2": {"out": ["self"]},
    "SWhere": {"out": ["self", "other"]},
    "ScatterMax": {"out": ["var"]},
    "ThnnFusedLstmCell": {"storage": ["input_gates", "hidden_gates"], "cy": ["cx"]},
    "ThnnFusedLstmCellBackward": {"grad_gates": ["storage"], "grad_cx": ["grad_cy", "grad_hy", "cy"]},
    "ThresholdBackward": {"grad_input": ["grad_output", "self"]},
}
"""By op and output of one dtype with its inputs: those whose buffer it may have."""
CELLS = ("ThnnFusedLstmCell", "ThnnFusedLstmCellBackward")
SIZE, LENGTH = 9_000_000, 3
"""Elements of the tensors of a chain, and its nodes."""
FREE_BLOCKS = 40
"""The number of such tensors that malloc's free blocks may have room for."""


def typed(name: str, dtype: DType, shape: Sequence[Dimension]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx_element_type(dtype), shape)


def session_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    session_options: ort.SessionOptions | None = None,
    backend: Backend = KERNEL,
) -> ort.InferenceSession:
    graph = helper.make_graph(nodes, "reuse", inputs, outputs)
    opsets = [helper.make_opsetid("", ONNX_OPSET), onnx_ops.opset_import()]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
    if session_options:
        return onnx_ops.InferenceSession(model, session_options)
    return session_with_kernels(backend, model)


# What is declared


@pytest.mark.parametrize("op", OPS)
def test_declared_pairs(op: str) -> None:
    """Only inputs that have the dtype of the output, in every combination of dtypes."""
    record, declared = OPS[op], REUSED.get(op, {})
    typing = record.signature.typed_inputs
    for mixture in itertools.product(map(onnx_element_type, FLOATS), repeat=len(typing)):
        dtypes = dict(zip(typing, mixture, strict=True))
        output = max(mixture, default=0)  # in a mixture of two dtypes no input has the dtype of all outputs
        inputs, outputs = [dtypes.get(name, 0) for name in record.input_names], [output] * len(record.output_names)
        pairs = pairs_of(record, Declaration(record.kernel_name, inputs, [], outputs, []))
        found: dict[str, list[str]] = {}
        for i, k in pairs:
            own = next(given for given in record.signature.inputs if given.name == record.input_names[i])
            assert dtypes[own.like or own.name] == output
            found.setdefault(record.output_names[k], []).append(own.name)
        if len(set(mixture)) == 1:
            assert found == declared


# What it saves


def peak_of(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> tuple[float, list[Array]]:
    """Peak memory of the first run, in tensors of SIZE float32, and its outputs. Later runs reuse what it allocated."""
    # The blocks that other tests have freed: tensors in them would take no memory, or stay after they are freed.
    free_blocks = [np.empty(SIZE, np.float32) for _ in range(FREE_BLOCKS)]
    before = resident()
    reset_peak()
    outputs = session.run(None, feeds)
    most = (peak() - before) / (4 * SIZE)
    del free_blocks
    return most, outputs


def chain(shape: Sequence[Dimension], kept: bool, dtype: DType = FLOAT32) -> ort.InferenceSession:
    """LENGTH gradients of ReLU, each of the one before; kept: each is read again at the end.

    Args:
        shape: of the gradient as declared.
        dtype: of the input of ReLU.
    """
    nodes = [helper.make_node("Neg", ["x"], ["g0"])]
    for k in range(LENGTH):
        nodes.append(onnx_ops.make_node("ThresholdBackward", [f"g{k}", "relu"], [f"g{k + 1}"]))
    read = [f"g{k}" for k in range(LENGTH + 1)] if kept else [f"g{LENGTH}"]
    for k, name in enumerate(read):
        nodes.append(helper.make_node("ReduceMean", [name, "axes"], [f"mean{k}"], keepdims=0))
    nodes.insert(0, helper.make_node("Constant", [], ["axes"], value_ints=[0]))
    plain = options()
    plain.enable_cpu_mem_arena = plain.enable_mem_pattern = False
    inputs = [typed("x", FLOAT32, shape), typed("relu", dtype, shape if dtype == FLOAT32 else [SIZE])]
    outputs = [typed(f"mean{k}", FLOAT32, ()) for k in range(len(read))]
    return session_of(nodes, inputs, outputs, plain)


@pytest.mark.skipif(not RESETS.exists(), reason="peaks are read from Linux's /proc")
@pytest.mark.parametrize(
    ("shape", "kept", "dtype", "tensors"),
    [
        ([SIZE], False, FLOAT32, 1),
        (["n"], False, FLOAT32, 1),
        ([SIZE], False, FLOAT16, 1),
        ([None], False, FLOAT32, 2),  # sizes that may differ
        ([SIZE], True, FLOAT32, LENGTH + 1),
    ],
    ids=["sizes", "name", "mixed_dtypes", "unknown", "readers"],
)
def test_chain_reuses_its_buffer(shape: list[Dimension], kept: bool, dtype: DType, tensors: int) -> None:
    x = np.arange(SIZE, dtype=np.float32) % 7
    relu = (np.arange(SIZE) % 3).astype(dtype)
    most, means = peak_of(chain(shape, kept, dtype), {"x": x, "relu": relu})
    assert tensors - 0.5 < most < tensors + 0.5
    after = -np.mean(np.where(relu > 0, x, 0), dtype=np.float64)
    expected = [-np.mean(x, dtype=np.float64), *[after] * LENGTH] if kept else [after]
    np.testing.assert_allclose(means, expected, rtol=1e-4)


def test_broadcast_input_is_not_reused() -> None:
    """A gradient smaller than the output, also where the model gives their dimensions the same name."""
    for shape in ((["n", 3], ["m", 3]), ([1, 3], [4, 3]), ([None, 3], [None, 3])):
        nodes = [
            helper.make_node("Neg", ["x"], ["grad"]),
            onnx_ops.make_node("ThresholdBackward", ["grad", "self"], ["y"]),
            helper.make_node("Neg", ["y"], ["z"]),
        ]
        session = session_of(
            nodes, [typed("x", FLOAT32, shape[0]), typed("self", FLOAT32, shape[1])], [typed("z", FLOAT32, [None, 3])]
        )
        x, own = np.array([[1, 2, 3]], np.float32), np.arange(12, dtype=np.float32).reshape(4, 3) % 2
        np.testing.assert_array_equal(run_outputs(session, {"x": x, "self": own})["z"], np.where(own > 0, x, 0))


# What is computed


def calls_of(op: str, dtype: DType) -> Iterator[Call]:
    for benchmark in RECORDS[op].benchmarks:
        smallest = next(iter(benchmark.sizes.values()))
        yield benchmark.make(40_000 if benchmark.sizes is ELEMENTS else (200, 33) if op in CELLS else smallest, dtype)


@pytest.mark.parametrize(("op", "dtype"), narrow_and_wide(REUSED), ids=str)
def test_same_results(op: str, dtype: DType) -> None:
    """As without reuse: where the inputs are outputs of the graph too. Readers of an input have its own values."""
    made = functools.partial(session_of, backend=kernels_for(dtype))
    for call in calls_of(op, dtype):
        wanted = RECORDS[op].wanted(call)
        large = [name for name, array in call.given.items() if array.ndim]
        ends = [
            helper.make_node("Constant", [], [name], value_ints=[n]) for name, n in (("last", -1), ("end", -(2**62)))
        ]
        computed = [helper.make_node("Slice", [name, "last", "end", "zero", "last"], [f"{name}_"]) for name in large]
        ends.append(helper.make_node("Constant", [], ["zero"], value_ints=[0]))
        names = [f"{n}_" if n in large else n if n in call.given else "" for n in RECORDS[op].inputs]
        node = onnx_ops.make_node(
            op, names, [n if n in wanted else "" for n in RECORDS[op].outputs], **call.attributes
        )  # fmt: skip
        inputs = [typed(name, array.dtype, array.shape) for name, array in call.given.items()]
        outputs = [typed(name, RECORDS[op].output_dtype(call, name), None) for name in wanted]
        kept = [typed(f"{name}_", call.given[name].dtype, call.given[name].shape) for name in large]
        apart = run_outputs(made([*ends, *computed, node], inputs, [*outputs, *kept]), call.given)
        reused = run_outputs(made([*ends, *computed, node], inputs, outputs), call.given)
        for name in wanted:
            assert_same_bits(reused[name], apart[name])
        late = [helper.make_node("Slice", [f"{n}_", "last", "end", "zero", "last"], [f"{n}_late"]) for n in large]
        later = [typed(f"{name}_late", call.given[name].dtype, call.given[name].shape) for name in large]
        read = run_outputs(made([*ends, *computed, node, *late], inputs, [*outputs, *later]), call.given)
        for name in wanted:
            assert_same_bits(read[name], apart[name])
        for name in large:
            assert_same_bits(read[f"{name}_late"], call.given[name])
