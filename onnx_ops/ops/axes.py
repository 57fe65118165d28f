"""The axis of ops that compute along one."""

from __future__ import annotations

from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import Shape
from onnx_ops.loops.primitives import helper


def axis_attributes() -> list[OpSchema.Attribute]:
    return [attribute("dim", -1, "The axis; a negative one counts from the end.")]


def check_axis(call: Call, *names: str) -> Shape | None:
    """The common shape of inputs, None if unknown; OpError for shapes that differ and an axis that they do not have."""
    known = next((shape for name in names if (shape := call.shape(name)) is not None), None)
    if known is None:
        return None
    rank, dim = len(known), call.attributes["dim"]
    if rank == 0:
        raise call.shape_error(names[0], "at least 1 dimension")
    if not -rank <= dim < rank:
        raise call.error(f"attribute 'dim' is {dim}, expected a number of at least {-rank}, at most {rank - 1}")
    for name in names[1:]:
        call.same_shape(name, call.shape(names[0]), f"the shape of '{names[0]}'")
    return known


@helper
def axis_of(dim: int, rank: int) -> int:
    """The number of an axis from 0 on; -1 if there is no such one."""
    axis = dim + rank if dim < 0 else dim
    return axis if -rank <= dim < rank else -1
