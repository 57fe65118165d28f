"""Linear operators on images as products with a matrix along each axis, forward and backward.

PyTorch decomposes them into a gather for each neighbour, whose gradients add up at repeated indices. A row of the
matrix has few entries that are not 0; the product is as quick as a walk over them for some hundred places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import no_python_dispatcher
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils._python_dispatch import _disable_current_modes

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.nodes import Extent, Value, integers, op
from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.transforms import within_transforms

WIDTH = 2
"""Width of the images from which `matrix_of` reads an operator; with 1, PyTorch's antialiasing is wrong."""


def _nodes(self: Value, matrix: Value, axis: int) -> Value:
    if axis == -1:
        return op.MatMul(self, op.Transpose(matrix, perm=[1, 0]))
    if axis == -2:
        return op.MatMul(matrix, self)
    # The axes after it are merged into one, whose size is not inferred, for no elements it could not be.
    trailing = Extent.of(self, -1 - axis)
    zeros = [0] * (len(self.shape) + axis + 1)
    count = op.ReduceProd(trailing.value) if trailing.numbers is None else integers([trailing.product])
    columns = op.Reshape(self, op.Concat(integers(zeros), count, axis=0))
    return op.Reshape(op.MatMul(matrix, columns), trailing.after(*zeros))


def _fake(self: Tensor, matrix: Tensor, axis: int) -> Tensor:
    shape = list(self.shape)
    shape[axis] = matrix.shape[0]
    return self.new_empty(shape)


def _product(self: Tensor, matrix: Tensor, axis: int) -> Tensor:
    return torch.movedim(torch.movedim(self, axis, -1) @ matrix.T, -1, axis)


@custom_operator(_nodes, _fake)
def along_axis(self: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply by a matrix (after, before) along an axis; `axis` is negative."""
    return _product(self, matrix, axis).contiguous()


def _setup(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, matrix, ctx.axis = inputs
    ctx.save_for_backward(matrix)


def _gradients(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
    (matrix,) = ctx.saved_tensors
    return along_axis(grad, matrix.T.contiguous(), ctx.axis), None, None


along_axis.register_autograd(_gradients, setup_context=_setup)


Dynamic = Callable[[Size, int], Tensor | None]
"""From the size and number of an axis to the matrix (after, before) of an operator along it; None for the identity."""


def resampled(
    x: Tensor, operator: Callable[[Tensor, int], Tensor], rank: int, dynamic: Dynamic, after: Sequence[Size] = ()
) -> Tensor:
    """A separable linear operator on images (N, C, *space), by one matrix along each of the last axes.

    Args:
        x: the images.
        operator: from an image (1, C, size, WIDTH) and the number of an axis to the result along that axis.
        rank: the number of axes of space.
        dynamic: gives the matrices of axes of dynamic size.
        after: the sizes of the result, if they may be dynamic where those of the images are not.
    """
    for axis in reversed(range(rank)):
        size = x.shape[axis - rank]
        if any(map(is_symbolic, (size, *after[axis : axis + 1]))):
            found = dynamic(size, axis)
            if found is None:
                continue
            matrix, changes = found.to(x.dtype), True
        else:
            matrix, changes = matrix_of(operator, size, axis, x.dtype)
        if changes:
            # The transforms of torch.func have no rules for operators with gradients of their own.
            x = (_product if within_transforms() else along_axis)(x, matrix, axis - rank)
    return x


def matrix_of(
    operator: Callable[[Tensor, int], Tensor], size: int, axis: int, dtype: torch.dtype
) -> tuple[Tensor, bool]:
    """The matrix (after, size) of a linear operator along an axis, and whether it is not the identity."""
    with _disable_current_modes(), no_python_dispatcher(), torch.no_grad():  # decompositions differ from kernels
        unit = torch.eye(size, dtype=torch.float64)
        images = unit.reshape(1, size, size, 1).repeat(1, 1, 1, WIDTH)
        matrix = operator(images, axis)[0, :, :, 0].T.contiguous()
        return matrix.to(dtype), matrix.shape[0] != size or not torch.equal(matrix, unit)
