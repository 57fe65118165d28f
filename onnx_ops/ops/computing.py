"""The dtype that loops compute in."""

from __future__ import annotations

from onnx import TensorProto

from onnx_ops.core.call import Call


def computing_type(call: Call, *aside: str, light: bool = False) -> int:
    """DOUBLE if an input is double, else FLOAT; for a light loop the 16-bit dtype that all inputs share.

    Args:
        call: of known dtypes.
        aside: inputs that are read by other means than the loop.
        light: whether the loop does so little work that it reads and writes 16-bit numbers one by one.
    """
    given = {name: call.dtype(name) for name in call.inputs if call.present(name) and name not in aside}
    if TensorProto.DOUBLE in given.values():
        return TensorProto.DOUBLE
    (first, *others) = set(given.values())
    return first if light and not others and first is not None else TensorProto.FLOAT
