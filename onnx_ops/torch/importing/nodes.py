"""Nodes of imported graphs, and the values that they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError

Value: TypeAlias = Tensor | np.ndarray | None
"""A tensor; an array, of what is known when a graph is captured, with torch.SymInt for sizes; None if omitted."""


@dataclass(frozen=True)
class Node:
    """A node. attributes: as Python values, tensors as arrays."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, node: onnx.NodeProto) -> Node:
        attributes = {}
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            if isinstance(value, onnx.TensorProto):
                value = numpy_helper.to_array(value)
            attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
        return cls(node.op_type, tuple(node.input), tuple(node.output), attributes)

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)


def tensor(value: Value) -> Tensor:
    """A value as a tensor."""
    if isinstance(value, Tensor):
        return value
    assert value is not None
    if value.dtype.kind == "O":
        return torch.stack([torch.full((), size, dtype=torch.int64) for size in value.flat]).reshape(value.shape)
    return torch.tensor(value.tolist(), dtype=torch.from_numpy(np.zeros(0, value.dtype)).dtype)


def array(value: Value) -> np.ndarray:
    """A value that has to be known."""
    if not isinstance(value, np.ndarray):
        raise CaptureError("a shape, axis or limit of the graph depends on data, expected sizes and constants")
    return value


def sizes(value: Value) -> list[Any]:
    """A vector of whole numbers, or of sizes."""
    return [size if isinstance(size, torch.SymInt) else int(size) for size in array(value).reshape(-1)]


def axes_of(node: Node, value: Value) -> list[int] | None:
    """Axes of an input or of an attribute; None for no axes."""
    given = node.get("axes") if value is None else sizes(value)
    return None if given is None or not len(given) else list(given)


def torch_dtype(element: int) -> torch.dtype:
    """The dtype of a TensorProto.DataType."""
    if element == onnx.TensorProto.BFLOAT16:
        return torch.bfloat16
    return torch.from_numpy(np.zeros(0, helper.tensor_dtype_to_np_dtype(element))).dtype
