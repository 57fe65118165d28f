"""Max pools over planes and volumes, and their gradient, as ops of this domain.

PyTorch counts the places of maxima within each plane or volume, ONNX through the whole tensor. torch.onnx runs a second
pool to convert them, and onnxruntime's pool takes many times as long where it is asked for places at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ops.torch.whole.operators import Table, aclnn


def _of_rank(rank: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The translations of a pool over so many axes, and of its gradient."""

    def attributes(
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> dict[str, Any]:
        kernel, *others = (
            list(values) * (rank // len(values)) for values in (kernel_size, stride or kernel_size, padding, dilation)
        )
        names = ("stride", "padding", "dilation")
        return {"kernel_size": kernel, **dict(zip(names, others, strict=True)), "ceil_mode": int(ceil_mode)}

    def max_pool(
        self: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        return aclnn.MaxPool2dWithIndices(self, **attributes(kernel_size, stride, padding, dilation, ceil_mode))

    def max_pool_backward(
        grad: Any,
        self: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Any,
    ) -> Any:
        given = attributes(kernel_size, stride, padding, dilation, ceil_mode)
        return aclnn.MaxPool2dWithIndicesBackward(grad, self, indices, **given)

    return max_pool, max_pool_backward


_planar, _planar_backward = _of_rank(2)
_spatial, _spatial_backward = _of_rank(3)

TABLE: Table = {
    torch.ops.aten.max_pool2d_with_indices.default: _planar,
    torch.ops.aten.max_pool2d_with_indices_backward.default: _planar_backward,
    torch.ops.aten.max_pool3d_with_indices.default: _spatial,
    torch.ops.aten.max_pool3d_with_indices_backward.default: _spatial_backward,
}
