"""How often each number occurs."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onnx_ops.torch.base.nodes import integers, op
from onnx_ops.torch.base.table import translates


@translates(torch.ops.aten.bincount.default)
def _bincount(self: Any, weights: Any = None, minlength: Any = 0) -> Any:
    """How often, or with which sum of weights, each of the numbers (N,) occurs; of `minlength` numbers at least."""
    numbers = op.Cast(self, to=ir.DataType.INT64)
    largest = op.ReduceMax(op.Concat(numbers, integers([-1]), axis=0), integers([0]), keepdims=1)
    least = integers([minlength]) if isinstance(minlength, int) else op.Reshape(minlength, integers([1]))
    count = op.Max(op.Add(largest, integers([1])), least)
    if weights is None:
        added = op.Expand(op.Constant(value_int=1), op.Shape(numbers))
    elif weights.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        added = weights
    else:
        added = op.Cast(weights, to=ir.DataType.DOUBLE)
    zeros = op.Expand(op.CastLike(op.Constant(value_int=0), added), count)
    numbers = op.Where(op.Less(numbers, op.Constant(value_int=0)), count, numbers)  # out of range, hence refused
    return op.ScatterElements(zeros, numbers, added, axis=0, reduction="add")
