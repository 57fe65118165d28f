"""Arrays of NumPy as values of onnxruntime and back, bfloat16 included."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnx import TensorProto

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def ort_value(array: np.ndarray) -> ort.OrtValue:
    """A value of an array's elements; it keeps the array's memory in use where its order is C's."""
    if not array.flags.c_contiguous:
        array = array.copy(order="C")  # np.ascontiguousarray would make a 0-d array 1-d
    if array.dtype == BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def array_of(value: ort.OrtValue) -> np.ndarray:
    """The elements of a value."""
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    out = np.empty(value.shape(), np.uint16)
    if out.size:
        ctypes.memmove(out.ctypes.data, value.data_ptr(), out.nbytes)
    return out.view(BFLOAT16)
