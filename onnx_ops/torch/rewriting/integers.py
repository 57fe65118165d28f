"""Operators on integers of dtypes for which onnxruntime has no kernel, in int64."""

from __future__ import annotations

import onnx_ir as ir

BOOL, INT8, INT16, INT32, UINT8, INT64 = (
    ir.DataType[name] for name in ("BOOL", "INT8", "INT16", "INT32", "UINT8", "INT64")
)

WITHOUT_KERNEL = {
    "ArgMax": {INT16},
    "ArgMin": {INT16},
    "Clip": {INT16},
    "Max": {INT16},
    "Min": {INT16},
    "Neg": {UINT8},  # for which ONNX does not define it
    "NonZero": {INT8, INT16},
    "Pad": {INT16},
    "ReduceMax": {INT16},
    "ReduceMin": {INT16},
    "Trilu": {INT8, INT16, UINT8},
    "Unique": {BOOL, INT16, INT32, UINT8},
}
"""The dtypes by op_type."""
INDICES = {"ArgMax", "ArgMin", "NonZero"}
"""Those whose result is int64 in any case; that of others, the first one of several, has the dtype of the input."""


def widen_integers(model: ir.Model) -> None:
    """Cast the inputs of these nodes to int64, and their results back, in place."""
    for node in list(model.graph.all_nodes()):
        narrow = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
        if not node.domain and narrow in WITHOUT_KERNEL.get(node.op_type, ()):
            _widen(node, narrow)


def _widen(node: ir.Node, narrow: ir.DataType) -> None:
    graph = node.graph
    assert graph is not None
    for place, value in enumerate(node.inputs):
        if value is not None and value.dtype is narrow:
            graph.insert_before(node, cast := _cast(value, INT64))
            node.replace_input_with(place, cast.outputs[0])
    if node.op_type not in INDICES:
        result = node.outputs[0]
        cast = _cast(result, narrow)
        result.dtype = INT64
        result.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        cast.replace_input_with(0, result)
        graph.insert_after(node, cast)


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    cast = ir.node("Cast", [value], {"to": dtype})
    cast.outputs[0].dtype, cast.outputs[0].shape = dtype, value.shape
    return cast
