"""What is known of the shapes of values; a Reshape to the shape that a value has is none."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

SIZED_BY_DATA = ("Compress", "NonZero", "Unique")


def sizes_depend_on_data(model: ir.Model) -> bool:
    """Whether sizes may depend on data.

    A condition may say of such a size that it is a dynamic one, and is to be computed also where that is not so.
    """
    return any(node.op_type in SIZED_BY_DATA for node in model.graph.all_nodes())


def has_shape(value: ir.Value, shape: Sequence[int | ir.SymbolicDim], by_data: bool) -> bool:
    """Whether a value certainly has a shape; `by_data` as of `sizes_depend_on_data`."""
    if value.shape is None or len(value.shape) != len(shape):
        return False
    return all(
        own == size and (isinstance(own, int) or (own.value is not None and not by_data))
        for own, size in zip(value.shape, shape, strict=True)
    )


def has_shape_of(value: ir.Value, other: ir.Value, by_data: bool) -> bool:
    """Whether two values certainly have the same shape; `by_data` as of `sizes_depend_on_data`."""
    return other.shape is not None and has_shape(value, list(other.shape), by_data)


def remove_reshapes_to_own_shape(model: ir.Model) -> None:
    """Let nodes read the input of such a Reshape, in place."""
    by_data = sizes_depend_on_data(model)
    for node in model.graph.all_nodes():
        if (node.domain, node.op_type) != ("", "Reshape") or node.inputs[0] is None:
            continue
        (result,) = node.outputs
        if has_shape_of(node.inputs[0], result, by_data) and not result.is_graph_output():
            ir.convenience.replace_all_uses_with(result, node.inputs[0])
