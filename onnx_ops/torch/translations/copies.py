"""Values that are written into a tensor."""

from __future__ import annotations

from typing import Any

import torch

from onnx_ops.torch.translations.nodes import op
from onnx_ops.torch.whole.operators import Table


def _copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """torch.onnx leaves out that src broadcasts."""
    values = op.CastLike(src, self)
    return values if src.shape == self.shape else op.Expand(values, op.Shape(self))


TABLE: Table = {torch.ops.aten.copy.default: _copy}
