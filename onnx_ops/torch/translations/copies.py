"""Values that are written into a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.translations.nodes import integers, op, sizes
from onnx_ops.torch.whole.operators import Table


def _copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """torch.onnx leaves out that src broadcasts."""
    values = op.CastLike(src, self)
    return values if src.shape == self.shape else op.Expand(values, op.Shape(self))


def _diagonal_scatter(self: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A matrix each of whose rows (or columns, below the main diagonal) repeats one number, where the diagonal is."""
    shape = sizes(self)
    rank, first, second = len(shape), dim1 % len(shape), dim2 % len(shape)
    rows, columns = shape[first], shape[second]
    if min(rows, columns) < 0:
        raise CaptureError(
            "a diagonal is written to of a matrix whose sizes are dynamic; let dynamic_shapes not name them"
        )
    order = [axis for axis in range(rank) if axis not in (first, second)] + [first, second]
    across, size = (-1, rows) if offset >= 0 else (-2, columns)
    place = np.eye(rows, columns, offset, dtype=bool)
    missing = size - int(place.sum())
    padded = op.Pad(src, integers([0] * (2 * rank - 3) + [missing])) if missing else src
    matrix = op.Unsqueeze(padded, integers([across]))
    written = op.Where(op.Constant(value=ir.tensor(place)), matrix, op.Transpose(self, perm=order))
    return op.Transpose(written, perm=[order.index(axis) for axis in range(rank)])


TABLE: Table = {torch.ops.aten.copy.default: _copy, torch.ops.aten.diagonal_scatter.default: _diagonal_scatter}
