"""Channels (axis 1) in batch normalization: dtypes, shapes and function bodies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.types import Dim, Shape
from onnx_ops.graph.builder import Value

COUNTS = (TensorProto.INT32, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT)
"""Element types of counts."""


MODERATE = np.float32(2.0**40)
"""Bound of the three per-channel factors for which the formulas cannot overflow float32 with a float16 input."""


def sum_type(call: Call) -> int | None:
    """The dtype of statistics and sums over `input`."""
    dtype = call.dtype("input")
    return dtype if dtype in (None, TensorProto.DOUBLE) else TensorProto.FLOAT


def channels_of(space: Shape | None) -> Dim:
    """The number of channels, None if unknown."""
    return None if space is None else space[1]


def sum_dtype(input: np.ndarray) -> np.dtype:
    """`sum_type` for an array."""
    return np.dtype(np.float64 if input.dtype == np.float64 else np.float32)


def column_of(numbers: np.ndarray, rank: int) -> np.ndarray:
    """(C,) reshaped to (C, 1, ..., 1), which broadcasts to (N, C, ...)."""
    return numbers.reshape(-1, *[1] * (rank - 2))


def by_channel(array: np.ndarray) -> np.ndarray:
    """(N, C, ...) as float64 of shape (C, elements per channel)."""
    return np.moveaxis(array.astype(np.float64), 1, 0).reshape(array.shape[1], -1)


def eps_of(eps: float) -> np.float64:
    """The attribute as nodes store it, in float32."""
    return np.float64(np.float32(eps))


def inverse_deviation(variance: np.ndarray, eps: float) -> np.ndarray:
    """1 / sqrt(variance + eps)."""
    return np.asarray(1 / np.sqrt(variance + eps_of(eps)))


def axes_but_channels(b: Body) -> Value:
    """The axes of `input` except axis 1, in a function body."""
    # Not Size, whose value onnxruntime's shape inference takes for the number of elements.
    ranks = b.op("Shape", b.op("Shape", b.inputs["input"], name="input_shape"), name="ranks")
    rank = b.op("Squeeze", ranks, [0], name="rank")
    return b.op("Concat", [0], b.op("Range", 2, rank, 1, name="later_axes"), name="axes", axis=0)


def channel_count(b: Body) -> Value:
    """1-D: the number of channels, in a function body."""
    return b.op("Shape", b.inputs["input"], name="channels", start=1, end=2)


def along_channels(b: Body) -> Callable[[str], Value]:
    """A function that returns a per-channel input as (C, 1, ..., 1) in the computing dtype, in a function body."""
    later_sizes = b.op("Shape", b.inputs["input"], name="later_sizes", start=2)
    later_rank = b.op("Shape", later_sizes, name="later_rank")
    ones = b.op("ConstantOfShape", later_rank, name="later_ones", value=b.array([1]))
    shape = b.op("Concat", channel_count(b), ones, name="column", axis=0)

    def loaded(name: str) -> Value:
        return b.op("Reshape", b.load(name), shape, name=f"{name}_column")

    return loaded
