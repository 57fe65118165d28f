"""Types of values in a model, by shape inference."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator

import onnx
from onnx import TensorProto, helper, shape_inference

from onnx_ops.core.types import TensorType
from onnx_ops.graph.walk import containers, subgraphs

Types = ChainMap[str, onnx.TypeProto]
"""Types of all values visible to a node, those of its own graph first."""

LARGE = 1024
"""Number of elements above which an initializer is assumed not to hold a shape."""
LONG_VECTOR = 2**20
"""Length of a vector from which on data propagation is not used: it takes 0.1 s."""
UNKNOWN_SIZE = "unk__"
"""How names of sizes begin that onnx does not know."""


def value_info(name: str, tensor: TensorType) -> onnx.ValueInfoProto:
    """The ValueInfoProto of a value."""
    return helper.make_tensor_value_info(name, tensor.dtype or TensorProto.UNDEFINED, tensor.shape)


def typed_nodes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, Types]]:
    """The nodes of the graph and its subgraphs, with the types of all values visible to them."""
    graph = _inferred(model).graph
    pending: list[tuple[onnx.GraphProto, Types]] = [(graph, ChainMap())]
    while pending:
        graph, outer = pending.pop()
        types = outer.new_child(_types(graph))
        for node in graph.node:
            yield node, types
            pending.extend((subgraph, types) for subgraph in subgraphs(node))


def value_types(model: onnx.ModelProto) -> dict[str, TensorType]:
    """The types of the values of the graph, without those of subgraphs."""
    graph = _inferred(skeleton(model)).graph
    return {name: TensorType.of_proto(proto) for name, proto in _types(graph).items()}


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inferred types.

    Data propagation, which takes a second inference, is used for models with shapes that are not known without it.
    Not where a vector is too long to be a shape: onnx propagates the elements of vectors one by one, those of unknown
    value too, and 2**30 of them fill the memory.
    """
    inferred = shape_inference.infer_shapes(model)
    graphs = [container for container in containers(inferred) if isinstance(container, onnx.GraphProto)]
    types = [_types(graph) for graph in graphs]
    if any(_is_long_vector(proto) for own in types for proto in own.values()) or all(map(_is_typed, graphs, types)):
        return inferred
    return shape_inference.infer_shapes(model, data_prop=True)


def _is_typed(graph: onnx.GraphProto, types: dict[str, onnx.TypeProto]) -> bool:
    """Whether the shapes of all results of nodes are known, each size by its number or the name that the model has."""
    protos = [types.get(name) for node in graph.node for name in node.output if name]
    return all(
        proto is not None and proto.tensor_type.HasField("shape") and all(map(_is_known, proto.tensor_type.shape.dim))
        for proto in protos
    )


def _is_known(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return dim.WhichOneof("value") is not None and not dim.dim_param.startswith(UNKNOWN_SIZE)


def _is_long_vector(proto: onnx.TypeProto) -> bool:
    dims = proto.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > LONG_VECTOR


def _types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    types = {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        if info.type.WhichOneof("value"):
            types[info.name] = info.type
    return types


def declared_types(values: Iterable[onnx.ValueInfoProto]) -> dict[str, TensorType]:
    """The types of inputs or outputs by name, as a graph declares them."""
    return {value.name: TensorType.of_proto(value.type) for value in values}


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model without the data of large initializers, and without metadata."""
    return without_data(model, lambda t: t.data_location == TensorProto.EXTERNAL or math.prod(t.dims) > LARGE)


def without_data(model: onnx.ModelProto, left_out: Callable[[TensorProto], bool]) -> onnx.ModelProto:
    """A copy of the model without the data of those initializers, and without metadata."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = model.graph
    for field, value in graph.ListFields():
        if field.name != "initializer":
            getattr(light.graph, field.name).extend(value) if field.is_repeated else setattr(
                light.graph, field.name, value
            )
    for tensor in graph.initializer:
        if left_out(tensor):
            light.graph.initializer.append(TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type))
        else:
            light.graph.initializer.append(tensor)
    return light
