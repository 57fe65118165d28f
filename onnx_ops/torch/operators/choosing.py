"""Elements that are chosen by a condition, of booleans and short integers too, which onnxruntime's Where lacks."""

from __future__ import annotations

import onnx_ir as ir
import torch

from onnx_ops.torch.base.nodes import Value, double, op
from onnx_ops.torch.base.table import translates

aten = torch.ops.aten

SHORT = (ir.DataType.INT8, ir.DataType.INT16)


@translates(aten.where.self)
def _where(condition: Value, self: Value, other: Value) -> Value:
    if other.dtype == ir.DataType.BOOL:
        return op.Or(op.And(condition, self), op.And(op.Not(condition), other))
    if other.dtype in SHORT:
        wide = (op.Cast(one, to=ir.DataType.INT32) for one in (self, other))
        return op.Cast(op.Where(condition, *wide), to=other.dtype)
    return op.Where(condition, self, other)


@translates(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(self: Value, mask: Value, value: float | Value) -> Value:
    return _where(mask, op.CastLike(double(value) if isinstance(value, float) else value, self), self)
