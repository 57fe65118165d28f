"""Tensors in onnxruntime's memory, seen as NumPy arrays; of bfloat16 too, which onnxruntime has no arrays for."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnx import TensorProto

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Tensor:
    """A tensor that onnxruntime has allocated.

    Attributes:
        value: what sessions take.
        array: the same memory; valid as long as `value` is.
    """

    value: ort.OrtValue
    array: np.ndarray

    @classmethod
    def holding(cls, array: np.ndarray, element: int) -> Tensor:
        """A tensor with the contents of an array; `element` is its TensorProto.DataType."""
        value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), element)
        tensor = cls(value, _seen(value, array.shape, array.dtype))
        tensor.array[...] = array
        return tensor

    def part(self, place: slice, shape: Sequence[int]) -> Tensor:
        """Some elements of a tensor with one axis, in its memory, which they do not keep alive."""
        array = self.array[place].reshape(shape)
        return Tensor(ort.OrtValue.ortvalue_from_numpy(array), array)


def _seen(value: Any, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """The memory of an OrtValue as an array that does not keep it alive."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * size).from_address(value.data_ptr())
    return np.frombuffer(memoryview(memory), dtype).reshape(shape)


def input_value(array: np.ndarray, element: int) -> Any:
    """An OrtValue in the memory of a contiguous array; `element` is its TensorProto.DataType."""
    if element == TensorProto.BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), element)
    return ort.OrtValue.ortvalue_from_numpy(array)


def output_array(value: Any, dtype: np.dtype) -> np.ndarray:
    """What a session has given, in memory of its own: an output may share that of an input or of a constant."""
    return (_seen(value, value.shape(), dtype) if dtype == BFLOAT16 else value.numpy()).copy()
