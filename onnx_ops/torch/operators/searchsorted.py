"""The indices at which values would be inserted into sorted sequences."""

from __future__ import annotations

import onnx_ir as ir
import torch

from onnx_ops.torch.base.nodes import Value, integers, op
from onnx_ops.torch.base.table import translates


@translates(torch.ops.aten.searchsorted.Tensor)
def _searchsorted(
    sorted_sequence: Value,
    self: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """The number of elements before each value: sequences (..., S), values (..., V), result (..., V)."""
    ordered = sorted_sequence if sorter is None else op.GatherElements(sorted_sequence, sorter, axis=-1)
    behind = op.Greater if right or side == "right" else op.GreaterOrEqual
    # A NaN is behind all elements.
    one = op.Unsqueeze(ordered, integers([-2])) if len(self.shape) else ordered
    found = op.Not(behind(one, op.Unsqueeze(self, integers([-1]))))
    kind = ir.DataType.INT32 if out_int32 else ir.DataType.INT64
    return op.ReduceSum(op.Cast(found, to=kind), integers([-1]), keepdims=0)


@translates(torch.ops.aten.bucketize.Tensor)
def _bucketize(self: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return _searchsorted(boundaries, self, out_int32=out_int32, right=right)
