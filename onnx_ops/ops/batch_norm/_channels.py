"""What the ops of batch normalization share: the channels lie along axis 1 of their inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.types import Dim, Shape
from onnx_ops.graph.builder import Value

COUNTS = (TensorProto.INT32, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT)
"""Element types of the numbers of elements that workers have."""


MODERATE = np.float32(2.0**40)
"""Products of a float16 number and of three numbers below this do not overflow float32."""


def sum_type(call: Call) -> int | None:
    """The dtype of statistics and sums over the elements of `input`."""
    dtype = call.dtype("input")
    return dtype if dtype in (None, TensorProto.DOUBLE) else TensorProto.FLOAT


def channels_of(space: Shape | None) -> Dim:
    """The number of channels, as far as it is known."""
    return None if space is None else space[1]


def sum_dtype(input: np.ndarray) -> np.dtype:
    """`sum_type` of an array."""
    return np.dtype(np.float64 if input.dtype == np.float64 else np.float32)


def column_of(numbers: np.ndarray, rank: int) -> np.ndarray:
    """One number per channel (C), as (C, 1, ..., 1), which broadcasts to (N, C, ...)."""
    return numbers.reshape(-1, *[1] * (rank - 2))


def by_channel(array: np.ndarray) -> np.ndarray:
    """(N, C, ...) to float64 of shape (C, elements per channel)."""
    return np.moveaxis(array.astype(np.float64), 1, 0).reshape(array.shape[1], -1)


def eps_of(eps: float) -> np.float64:
    """The attribute as a node holds it, a float32."""
    return np.float64(np.float32(eps))


def inverse_deviation(variance: np.ndarray, eps: float) -> np.ndarray:
    """1 / sqrt(variance + eps)."""
    return np.asarray(1 / np.sqrt(variance + eps_of(eps)))


def axes_but_channels(b: Body) -> Value:
    """The axes of `input` but for axis 1, in a portable body."""
    # Not by Size, for which onnxruntime takes the number of elements where it infers the values of shapes.
    ranks = b.op("Shape", b.op("Shape", b.inputs["input"], name="input_shape"), name="ranks")
    rank = b.op("Squeeze", ranks, [0], name="rank")
    return b.op("Concat", [0], b.op("Range", 2, rank, 1, name="later_axes"), name="axes", axis=0)


def channel_count(b: Body) -> Value:
    """(C), in a portable body."""
    return b.op("Shape", b.inputs["input"], name="channels", start=1, end=2)


def along_channels(b: Body) -> Callable[[str], Value]:
    """For a portable body: what gives a per-channel input as (C, 1, ..., 1), in the computing dtype."""
    later_sizes = b.op("Shape", b.inputs["input"], name="later_sizes", start=2)
    later_rank = b.op("Shape", later_sizes, name="later_rank")
    ones = b.op("ConstantOfShape", later_rank, name="later_ones", value=b.array([1]))
    shape = b.op("Concat", channel_count(b), ones, name="column", axis=0)

    def loaded(name: str) -> Value:
        return b.op("Reshape", b.load(name), shape, name=f"{name}_column")

    return loaded
