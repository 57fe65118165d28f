"""Converts a captured graph to float64, to compute its results without the rounding of float32 and 16-bit dtypes.

PyTorch computes the same step in float64 within the context `Float64Computation`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, ClassVar, Self
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxscript import evaluator, opset18
from torch._ops import OpOverload
from torch.onnx._internal.exporter._building import OpRecorder
from torch.utils._pytree import tree_map

from onnx_ops.graph.walk import all_nodes
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.tracing.effects import written
from onnx_ops.torch.tracing.modes import OperatorMode
from onnx_ops.torch.tracing.tensor_types import IMPORTERS, TensorType, replacements

NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
ROUNDING = (TensorProto.FLOAT, *NARROW)
DTYPES = ("to", "dtype")
"""Names of attributes that hold a dtype."""
WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
"""The dtypes that PyTorch replaces in `Float64Computation`."""
NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}
"""Those in `Float32Computation`."""


class _AnyPrecision(TensorType):
    """The metaclass of a type that takes tensors of any dtype.

    PyTorch's own types refuse a tensor that a computation has in another dtype.
    """

    def __call__(cls, *args: Any, **options: Any) -> Any:
        of_tensor = len(args) == 1 and isinstance(args[0], torch.Tensor) and cls.origin.dtype.is_floating_point
        return torch.Tensor(*args) if of_tensor else cls.origin(*args, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        own = cls.origin.dtype
        return isinstance(instance, torch.Tensor) and instance.dtype in (own, WIDE.get(own), NARROWER.get(own))


_TYPES = replacements(_AnyPrecision)


class _Computation(OperatorMode):
    """A mode in which PyTorch computes in other dtypes than the code names and constants have."""

    replaced: ClassVar[Mapping[torch.dtype, torch.dtype]]
    default: ClassVar[torch.dtype]

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(self.default)
        self._types = IMPORTERS.replaced(_TYPES)
        self._types.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._types.__exit__(None, None, None)
        torch.set_default_dtype(self._default)

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kept = {id(tensor) for tensor in written(func, args, kwargs)}

        def replace(leaf: object) -> object:
            if isinstance(leaf, torch.dtype):
                return self.replaced.get(leaf, leaf)
            if isinstance(leaf, torch.Tensor) and leaf.dtype in self.replaced and id(leaf) not in kept:
                return leaf.to(self.replaced[leaf.dtype])
            return leaf

        args, kwargs = tree_map(replace, (args, kwargs))
        return tree_map(replace, func(*args, **kwargs))


class Float64Computation(_Computation):
    """PyTorch computes in float64.

    Args:
        single: whether the model computes in float32, whose torch.finfo it then gets for float64: an epsilon that is
            that of the dtype is a part of what is computed.
    """

    replaced, default = WIDE, torch.float64

    def __init__(self, *, single: bool = True) -> None:
        super().__init__()
        self._limits = contextlib.ExitStack()
        self._single = single

    def __enter__(self) -> Self:
        if self._single:
            self._limits.enter_context(mock.patch.object(torch, "finfo", _finfo_of_single))
            self._limits.enter_context(mock.patch.object(torch, "rms_norm", _rms_norm_of_single))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._limits.close()


_finfo, _rms_norm = torch.finfo, torch.rms_norm


def _finfo_of_single(type: torch.dtype | None = None) -> torch.finfo:
    own = type or torch.get_default_dtype()
    return _finfo(torch.float32 if own is torch.float64 else own)


def _rms_norm_of_single(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    least = _finfo(torch.float32).eps if eps is None else eps
    return _rms_norm(input, normalized_shape, weight, least)


class Float32Computation(_Computation):
    """PyTorch computes in float32 what it would in float64."""

    replaced, default = NARROWER, torch.float32


def rounds_to_16_bits(model: onnx.ModelProto) -> bool:
    """Whether a model casts to a 16-bit floating dtype."""
    return _casts_to(model, NARROW)


def rounds_to_float32(model: onnx.ModelProto) -> bool:
    """Whether a model casts to float32, as a norm does in a float64 one."""
    return _casts_to(model, (TensorProto.FLOAT,))


def to_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with float64 in place of float32 and 16-bit floating dtypes, constants and casts included.

    Float attributes, such as an epsilon, keep their float32 value. Nodes without a float64 kernel in onnxruntime are
    replaced by others.
    """
    wide = onnx.shape_inference.infer_shapes(model)  # values that translations create have no shapes
    for function in wide.functions:
        _widen(function.node, function.value_info)
    _widen_graph(wide.graph)
    return wide


def _casts_to(model: onnx.ModelProto, dtypes: Collection[int]) -> bool:
    return any(
        node.op_type == "Cast" and helper.get_node_attr_value(node, "to") in dtypes for node in all_nodes(model.graph)
    )


def _widen_graph(graph: onnx.GraphProto) -> None:
    for i, tensor in enumerate(graph.initializer):
        graph.initializer[i].CopyFrom(_tensor(tensor))
    _widen(graph.node, [*graph.input, *graph.output, *graph.value_info], graph.initializer)


def _widen(
    nodes: MutableSequence[onnx.NodeProto],
    values: Iterable[onnx.ValueInfoProto],
    initializers: Iterable[TensorProto] = (),
) -> None:
    shapes: dict[str, list[int | str]] = {tensor.name: list(tensor.dims) for tensor in initializers}
    for value in values:
        of_sequence = value.type.HasField("sequence_type")
        kind = (value.type.sequence_type.elem_type if of_sequence else value.type).tensor_type
        if kind.elem_type in ROUNDING:
            kind.elem_type = TensorProto.DOUBLE
        shapes[value.name] = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
    written: list[onnx.NodeProto] = []
    for node in nodes:
        for attribute in node.attribute:
            _widen_attribute(node, attribute)
        written += _rewritten(node, shapes) if not node.domain and node.op_type in TABLE.float64_nodes else [node]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in written]
    del nodes[:]
    nodes.extend(kept)


def _widen_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    if attribute.type == onnx.AttributeProto.GRAPH:
        _widen_graph(attribute.g)
    elif attribute.type == onnx.AttributeProto.TENSOR:
        attribute.t.CopyFrom(_tensor(attribute.t))
    elif attribute.name in DTYPES and attribute.i in ROUNDING:
        attribute.i = TensorProto.DOUBLE
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        number = helper.get_attribute_value(attribute)
        array = np.asarray(number, np.float32).astype(np.float64)
        attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def _tensor(tensor: TensorProto) -> TensorProto:
    if tensor.data_type not in ROUNDING:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


def _rewritten(node: onnx.NodeProto, shapes: Mapping[str, list[int | str]]) -> Iterator[onnx.NodeProto]:
    """Nodes with float64 kernels that compute the outputs of a node."""
    inputs = [
        ir.val(name, ir.DataType.DOUBLE, ir.Shape(shapes[name]) if name in shapes else None) if name else None
        for name in node.input
    ]
    recorder = OpRecorder(opset18, {})
    with evaluator.default_as(recorder):
        result = TABLE.float64_nodes[node.op_type](
            *inputs, **{a.name: helper.get_attribute_value(a) for a in node.attribute}
        )
    results = result if isinstance(result, tuple) else (result,)
    names = {id(value): name for value, name in zip(results, node.output, strict=False) if name}
    for i, recorded in enumerate(recorder.nodes):
        for value in recorded.outputs:
            value.name = names.get(id(value), f"{node.output[0]}/double_{i}")
    for recorded in recorder.nodes:
        yield ir.to_proto(recorded)
