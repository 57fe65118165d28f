"""Imported operators by name, on arrays: on what is known when a graph is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from onnx import helper
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.sizes import Number
from onnx_ops.torch.importing.nodes import Node, Value, axes_of, sizes
from onnx_ops.torch.importing.shapes import expand, filled, shape_of, slices_of


def known(result: Tensor | np.ndarray | np.generic | Number) -> Value:
    """A result of NumPy, which makes numbers of arrays of rank 0."""
    if isinstance(result, Tensor | np.ndarray):
        return result
    number = np.empty((), object if isinstance(result, torch.SymInt) else np.asarray(result).dtype)
    number[()] = result
    return number


def _constant(node: Node) -> np.ndarray:
    ((name, value),) = node.attributes.items()
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if name not in ("value", *kinds):
        raise CaptureError(f"Constant with the attribute {name} is not supported")
    return np.asarray(value, kinds.get(name))


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x / y if "f" in x.dtype.kind + y.dtype.kind else x // y


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if x.dtype.kind != "O":
        return x.astype(dtype)
    if dtype.kind in "iu":
        return x
    raise CaptureError(f"a dynamic size is cast to {dtype}, expected whole numbers")


def _array_slice(
    node: Node, x: np.ndarray, starts: Value, ends: Value, axes: Value = None, steps: Value = None
) -> np.ndarray:
    return x[tuple(slices_of(x.ndim, starts, ends, axes, steps))]


def _array_expand(node: Node, x: np.ndarray, shape: np.ndarray) -> Value:
    """An array, or a tensor of a dynamic size."""
    if shape.dtype.kind == "O":
        return expand(node, x, shape)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(sizes(shape))))


def _known_filled(node: Node, shape: np.ndarray) -> Value:
    """An array if it is a vector of shape operations, else a tensor."""
    if shape.size == 1 and shape.dtype.kind != "O":
        value = node.get("value", np.zeros(1, np.float32)).reshape(-1)[0]
        return np.full(sizes(shape), value)
    return filled(node, shape)


ON_ARRAYS: dict[str, Callable[..., Any]] = {
    "Constant": lambda node: _constant(node),
    "Identity": lambda node, x: x,
    "Add": lambda node, x, y: x + y,
    "Sub": lambda node, x, y: x - y,
    "Mul": lambda node, x, y: x * y,
    "Div": lambda node, x, y: _quotient(x, y),
    "Mod": lambda node, x, y: x % y,
    "Equal": lambda node, x, y: x == y,
    "Where": lambda node, condition, x, y: np.where(condition.astype(bool), x, y),
    "Sqrt": lambda node, x: np.sqrt(x),
    "Gather": lambda node, x, indices: np.take(x, indices.astype(np.int64), axis=node.get("axis", 0)),
    "Slice": _array_slice,
    "Concat": lambda node, *parts: np.concatenate(parts, axis=node.get("axis")),
    "Squeeze": lambda node, x, given=None: np.squeeze(
        x, tuple(axes_of(node, given) or np.flatnonzero(np.equal(x.shape, 1)))
    ),
    "Unsqueeze": lambda node, x, given: np.expand_dims(x, tuple(sizes(given))),
    "Reshape": lambda node, x, shape: x.reshape(sizes(shape)),
    "Expand": _array_expand,
    "Cast": lambda node, x: _cast(x, helper.tensor_dtype_to_np_dtype(node.get("to"))),
    "CastLike": lambda node, x, like: _cast(x, like.dtype),
    "ReduceProd": lambda node, x, given=None: np.prod(x, keepdims=bool(node.get("keepdims", 1))),
    "ConstantOfShape": _known_filled,
    "Shape": lambda node, x: shape_of(x.shape, node),
}
