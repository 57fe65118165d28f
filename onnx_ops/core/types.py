"""Element types and shapes of tensors.

A dimension is an int, a name (symbolic) or None (unknown); a shape is a tuple of dimensions or None (unknown rank).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

Dim = int | str | None
Shape = tuple[Dim, ...]

MAX_RANK = 8
MAX_ELEMENTS = 2**48
"""Elements of a tensor, dimensions of 0 taken for 1: more than memory holds, and far from where int64 wraps."""
MAX_NUMBER = 2**31 - 1
"""The largest size, stride, padding or dilation that an attribute can be: the largest int32, as in PyTorch's pooling.
The product of two of them does not wrap int64."""
NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)


def dtype_name(dtype: int) -> str:
    """The ONNX name of an element type, such as 'float' for TensorProto.FLOAT."""
    return _DTYPE_NAMES.get(dtype, f"element type {dtype}")


_DTYPE_NAMES = {number: name.lower() for name, number in TensorProto.DataType.items()}


def shape_text(shape: Shape) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ("," if len(shape) == 1 else "") + ")"


def too_large(shape: Shape | None) -> bool:
    """Whether the known dimensions of a shape are those of more than MAX_ELEMENTS elements."""
    elements = 1
    for dim in shape or ():
        if isinstance(dim, int):
            elements = min(elements * max(dim, 1), MAX_ELEMENTS + 1)
    return elements > MAX_ELEMENTS


@dataclass(frozen=True)
class TensorType:
    """Element type (TensorProto.DataType) and shape of a tensor; None where unknown."""

    dtype: int | None = None
    shape: Shape | None = None

    def __repr__(self) -> str:
        known = self.dtype in _DTYPE_NAMES
        dtype = f"TensorProto.{TensorProto.DataType.Name(self.dtype)}" if known else self.dtype
        return f"{type(self).__name__}(dtype={dtype}, shape={self.shape})"

    @classmethod
    def of(cls, array: np.ndarray) -> TensorType:
        return cls(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    @classmethod
    def of_proto(cls, proto: onnx.TypeProto) -> TensorType:
        """From a TypeProto."""
        tensor = proto.tensor_type
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim)
        return cls(tensor.elem_type or None, shape)


def promote(dtypes: Iterable[int | None]) -> int | None:
    """The smallest floating type that holds all of `dtypes`; None if one is unknown."""
    kinds = set(dtypes)
    if None in kinds:
        return None
    if len(kinds) == 1:
        return kinds.pop()
    return TensorProto.DOUBLE if TensorProto.DOUBLE in kinds else TensorProto.FLOAT
