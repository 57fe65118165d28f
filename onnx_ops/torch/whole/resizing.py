"""Resizing of images, kept whole as products with a matrix along each axis, forward and backward.

PyTorch takes it apart into a gather for each neighbour, whose gradients add up into repeated places. A row of
the matrix has few entries that are not 0; the product is as quick as a walk over them for some hundred places.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils._python_dispatch import _disable_current_modes

from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.translations.nodes import Extent, integers, op

WIDTH = 2
"""Of the images that tell what an operator does along their height; with a width of 1 antialiasing is wrong."""


@torch.library.custom_op("onnx_ops::along_axis", mutates_args=())
def along_axis(self: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply by a matrix (after, before) along an axis, which is counted from the end."""
    return torch.movedim(torch.movedim(self, axis, -1) @ matrix.T, -1, axis).contiguous()


@along_axis.register_fake
def _(self: Tensor, matrix: Tensor, axis: int) -> Tensor:
    shape = list(self.shape)
    shape[axis] = matrix.shape[0]
    return self.new_empty(shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, matrix, ctx.axis = inputs
    ctx.save_for_backward(matrix)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (matrix,) = ctx.saved_tensors
    return along_axis(grad, matrix.T.contiguous(), ctx.axis), None, None


along_axis.register_autograd(_gradients, setup_context=_setup)


Dynamic = Callable[[Any, int], Tensor]
"""From the size and number of a dynamic axis to the matrix (after, before) of an operator on it."""


def resampled(x: Tensor, operator: Callable[[Tensor, int], Tensor], rank: int, dynamic: Dynamic) -> Tensor:
    """A linear operator on images (N, C, *space) that treats each of the last axes on its own.

    `operator(image, axis)` is what it does along one axis, as an operator on images (1, C, places, WIDTH).
    """
    for axis in reversed(range(rank)):
        size = x.shape[axis - rank]
        if is_symbolic(size):
            matrix, changes = dynamic(size, axis).to(x.dtype), True
        else:
            matrix, changes = matrix_of(operator, size, axis, x.dtype)
        if changes:
            x = along_axis(x, matrix, axis - rank)
    return x


def matrix_of(
    operator: Callable[[Tensor, int], Tensor], size: int, axis: int, dtype: torch.dtype
) -> tuple[Tensor, bool]:
    """The matrix (after, before) of a linear operator on an axis of so many places, and whether it is not the unit."""
    with _disable_current_modes(), torch.no_grad():
        unit = torch.eye(size, dtype=torch.float64)
        images = unit.reshape(1, size, size, 1).repeat(1, 1, 1, WIDTH)
        matrix = operator(images, axis)[0, :, :, 0].T.contiguous()
        return matrix.to(dtype), matrix.shape[0] != size or not torch.equal(matrix, unit)


def _sampling(name: str, before: Any, after: Any, aligns: bool, scale: float | None) -> Tensor:
    """The matrix (after, before) of a function of PyTorch along an axis whose size only a run will tell."""
    linear = "linear1d" in name or "linear2d" in name or "linear3d" in name
    if "nearest" not in name and (not linear or name.endswith("_aa")):
        raise CaptureError(f"{name} needs sizes of space that are not dynamic: leave those axes out of dynamic_shapes")
    dtype = torch.float64 if linear else torch.float32  # in which PyTorch finds the nearest
    places, neighbours = torch.arange(after, dtype=dtype), torch.arange(before, dtype=dtype)
    last = neighbours[-1:]
    if aligns:
        source = places * (last / places[-1:].clamp(min=1))
    else:
        step = (last + 1) / (places[-1:] + 1) if scale is None else 1 / scale
        shift = 0.0 if "nearest" in name and "exact" not in name else 0.5
        source = (places + shift) * step - (shift if linear else 0)
    if linear:
        source = torch.minimum(source.clamp(min=0), last)
        return (1 - (source.unsqueeze(1) - neighbours).abs()).clamp(min=0)
    return torch.minimum(source.floor(), last).unsqueeze(1) == neighbours


def _resized(name: str, operator: Callable[..., Tensor], rank: int, aligns: bool, *args: Any) -> Tensor:
    """One of PyTorch's functions; `operator` does the same to images of two axes."""
    x, output_size, *rest = args
    flags = [rest.pop(0)] if aligns else []
    factors = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], Sequence) else list(rest)
    scales = factors if any(factor is not None for factor in factors) else [None] * rank
    if output_size is None:
        size = [torch.sym_int(n * (int(s) if s == int(s) else s)) for n, s in zip(x.shape[2:], scales, strict=True)]
    else:
        size = list(output_size)
    one = [1.0 if scale is not None else None for scale in scales]

    def along(image: Tensor, axis: int) -> Tensor:
        if is_symbolic(size[axis]):
            raise CaptureError(f"{name} to a size that is dynamic needs an image whose size is dynamic as well")
        return operator(image, [size[axis], WIDTH], *flags, scales[axis], one[axis])

    def dynamic(before: Any, axis: int) -> Tensor:
        return _sampling(name, before, size[axis], any(flags), scales[axis])

    return resampled(x, along, rank, dynamic)


aten = torch.ops.aten
FUNCTIONS = {
    getattr(torch._C._nn, name): functools.partial(_resized, name, operator, rank, aligns)
    for name, operator, rank, aligns in (
        ("upsample_nearest1d", aten.upsample_nearest2d, 1, False),
        ("upsample_nearest2d", aten.upsample_nearest2d, 2, False),
        ("upsample_nearest3d", aten.upsample_nearest2d, 3, False),
        ("_upsample_nearest_exact1d", aten._upsample_nearest_exact2d, 1, False),
        ("_upsample_nearest_exact2d", aten._upsample_nearest_exact2d, 2, False),
        ("_upsample_nearest_exact3d", aten._upsample_nearest_exact2d, 3, False),
        ("upsample_linear1d", aten.upsample_bilinear2d, 1, True),
        ("upsample_bilinear2d", aten.upsample_bilinear2d, 2, True),
        ("upsample_bicubic2d", aten.upsample_bicubic2d, 2, True),
        ("upsample_trilinear3d", aten.upsample_bilinear2d, 3, True),
        ("_upsample_bilinear2d_aa", aten._upsample_bilinear2d_aa, 2, True),
        ("_upsample_bicubic2d_aa", aten._upsample_bicubic2d_aa, 2, True),
    )
}


def _along_axis(self: Any, matrix: Any, axis: int) -> Any:
    if axis == -1:
        return op.MatMul(self, op.Transpose(matrix, perm=[1, 0]))
    if axis == -2:
        return op.MatMul(matrix, self)
    # The axes after it count as one.
    trailing = Extent.of(self, -1 - axis)
    zeros = [0] * (len(self.shape) + axis + 1)
    columns = op.Reshape(self, integers([*zeros, -1]))
    return op.Reshape(op.MatMul(matrix, columns), trailing.after(*zeros))


TABLE = {torch.ops.onnx_ops.along_axis.default: _along_axis}
