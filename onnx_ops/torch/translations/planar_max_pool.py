"""Max pools over planes, and their gradient, as ops of this domain.

PyTorch counts the places of maxima within each plane, ONNX through the whole tensor. torch.onnx runs a second pool to
convert them, and onnxruntime's pool takes many times as long where it is asked for places at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnx_ops.torch.whole.operators import Table, aclnn

PLANAR = 2


def _attributes(
    kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool
) -> dict[str, Any]:
    kernel, *others = (
        list(values) * (PLANAR // len(values)) for values in (kernel_size, stride or kernel_size, padding, dilation)
    )
    names = ("stride", "padding", "dilation")
    return {"kernel_size": kernel, **dict(zip(names, others, strict=True)), "ceil_mode": int(ceil_mode)}


def _max_pool2d(
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    return aclnn.MaxPool2dWithIndices(self, **_attributes(kernel_size, stride, padding, dilation, ceil_mode))


def _max_pool2d_backward(
    grad: Any,
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Any,
) -> Any:
    attributes = _attributes(kernel_size, stride, padding, dilation, ceil_mode)
    return aclnn.MaxPool2dWithIndicesBackward(grad, self, indices, **attributes)


TABLE: Table = {
    torch.ops.aten.max_pool2d_with_indices.default: _max_pool2d,
    torch.ops.aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward,
}
