"""The inputs whose memory the outputs of an op may have."""

from __future__ import annotations

from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop, Tasks


def in_place_pairs(op: Op) -> tuple[tuple[str, str], ...]:
    """Names of an input and an output that may have its memory, if their dtypes and shapes agree."""
    required = [None if given.default else TensorType(given.dtypes[0]) for given in op.signature.inputs]
    kernel = op.kernel(op.call(required, op.required_attributes))
    if isinstance(kernel, Loop):
        return tuple((name, output) for name in kernel.in_place for output in op.output_names)
    assert isinstance(kernel, Tasks)
    return kernel.in_place
