"""NumPy arrays as tensors of onnxruntime, and back.

bfloat16, of which onnxruntime makes no NumPy arrays, is read and written through the memory of the tensors.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnx import TensorProto

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def input_value(array: np.ndarray, element: int) -> ort.OrtValue:
    """An OrtValue in the memory of a contiguous array; `element` is its TensorProto.DataType."""
    if element == TensorProto.BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), element)
    return ort.OrtValue.ortvalue_from_numpy(array)


def output_array(value: ort.OrtValue, dtype: np.dtype) -> np.ndarray:
    """A copy of an output: the memory of the output itself may be that of an input or of a constant."""
    return (_view(value, value.shape(), dtype) if dtype == BFLOAT16 else value.numpy()).copy()


def _view(value: ort.OrtValue, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """The memory of an OrtValue as an array, which does not keep it alive."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * size).from_address(value.data_ptr())
    return np.frombuffer(memoryview(memory), dtype).reshape(shape)
