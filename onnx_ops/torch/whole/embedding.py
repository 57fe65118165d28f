"""The gradient of an embedding."""

from __future__ import annotations

from typing import Any

import torch

from onnx_ops.torch.whole.operators import Table, aclnn


def _backward(grad: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    return aclnn.EmbeddingDenseBackward(
        grad,
        indices,
        num_weights=num_weights,
        padding_idx=padding_idx,
        scale_grad_by_freq=int(scale_grad_by_freq),
    )


TABLE: Table = {torch.ops.aten.embedding_dense_backward.default: _backward}
