"""The computing dtype of loops."""

from __future__ import annotations

from collections.abc import Collection

from onnx import TensorProto

from onnx_ops.core.call import Call


def computing_type(call: Call, *aside: str, light: bool = False, per_channel: Collection[str] = ()) -> int:
    """DOUBLE if an input is double, else FLOAT; for a light loop the 16-bit dtype that all inputs share.

    Args:
        call: with known dtypes.
        aside: inputs that the loop does not read.
        light: whether the loop does so little work that converting 16-bit elements one by one is fastest.
        per_channel: inputs of role CHANNEL, which a light loop reads as float32.
    """
    given = {name: call.dtype(name) for name in call.inputs if call.present(name) and name not in aside}
    if TensorProto.DOUBLE in given.values():
        return TensorProto.DOUBLE
    (first, *others) = {dtype for name, dtype in given.items() if name not in per_channel}
    return first if light and not others and first is not None else TensorProto.FLOAT
