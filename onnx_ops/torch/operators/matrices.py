"""Products of a matrix and a vector, bilinear forms, and matrices of powers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.nodes import Value, integers, op
from onnx_ops.torch.base.sizes import Size, in_example
from onnx_ops.torch.base.table import decomposes, replaces, translates


@translates(torch.ops.aten.mv.default)
def _mv(matrix: Value, vector: Value) -> Value:
    """With a column: onnxruntime fuses a Transpose into a MatMul with a vector, and then gives wrong numbers."""
    column = op.MatMul(matrix, op.Unsqueeze(vector, integers([1])))
    return op.Squeeze(column, integers([1]))


@replaces(torch.bilinear)
def _bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outer = input1.unsqueeze(-1) * input2.unsqueeze(-2)
    return functional.linear(outer.flatten(-2), weight.flatten(1), bias)


@replaces(torch.linalg.multi_dot)
def _multi_dot(tensors: Sequence[Tensor]) -> Any:
    """The product of matrices, of which the first and the last may be vectors, in the best order for the example."""
    if len(tensors) < 2 or not any(is_symbolic(size) for tensor in tensors for size in tensor.shape):
        return NotImplemented
    first, *_, last = tensors
    matrices = [first[None] if first.dim() == 1 else first, *tensors[1:-1], last[:, None] if last.dim() == 1 else last]
    product = _product(matrices)
    product = product.squeeze(1) if last.dim() == 1 else product
    return product.squeeze(0) if first.dim() == 1 else product


def _product(matrices: Sequence[Tensor]) -> Tensor:
    """By the fewest multiplications in the example (Cormen et al., Introduction to Algorithms, matrix chains)."""
    sizes = [in_example(size) for size in (matrices[0].shape[0], *(matrix.shape[1] for matrix in matrices))]
    costs = {(i, i + 1): (0, i) for i in range(len(matrices))}
    for length in range(2, len(sizes)):
        for i, k in enumerate(range(length, len(sizes))):
            products = range(i + 1, k)
            costs[i, k] = min((costs[i, j][0] + costs[j, k][0] + sizes[i] * sizes[j] * sizes[k], j) for j in products)

    def product(i: int, k: int) -> Tensor:
        if k - i == 1:
            return matrices[i]
        _, j = costs[i, k]
        return product(i, j) @ product(j, k)

    return product(0, len(matrices))


@replaces(torch.chain_matmul)
def _chain_matmul(*matrices: Any, out: Tensor | None = None) -> Any:
    return NotImplemented if out is not None or not isinstance(matrices[0], Tensor) else _multi_dot(matrices)


@replaces(torch.linalg.vander)
def _powers(x: Tensor, *, N: Size | None = None) -> Tensor:
    """The powers (..., n, N) of vectors (..., n), in ascending order."""
    x = x if x.dim() else x.view(1)
    return x.unsqueeze(-1) ** torch.arange(x.shape[-1] if N is None else N)


@replaces(torch.vander)
def _columns_of_powers(x: Tensor, N: Size | None = None, increasing: bool = False) -> Tensor:
    """The powers (n, N) of a vector, in descending order; autograd refuses PyTorch's own, written in place."""
    powers = _powers(x, N=N)
    return powers if increasing else powers.flip(-1)


@replaces(torch.kron, torch.Tensor.kron)
def _kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product; PyTorch's own code makes numbers of dynamic sizes."""
    rank = max(input.dim(), other.dim())
    sizes = [[1] * (rank - tensor.dim()) + list(tensor.shape) for tensor in (input, other)]
    product = input.reshape([size for each in sizes[0] for size in (each, 1)]) * other.reshape(
        [size for each in sizes[1] for size in (1, each)]
    )
    return product.reshape([first * second for first, second in zip(*sizes, strict=True)])


@replaces(torch.block_diag)
def _block_diag(*tensors: Tensor) -> Tensor:
    """Matrices beside and below each other, padded; PyTorch's own code makes numbers of dynamic sizes."""
    blocks = [tensor.reshape(1, -1) if tensor.dim() < 2 else tensor for tensor in tensors]
    widths = [block.shape[1] for block in blocks]
    padded = [
        functional.pad(block, [sum(widths[:place]), sum(widths[place + 1 :])]) for place, block in enumerate(blocks)
    ]
    dtype = functools.reduce(torch.promote_types, (block.dtype for block in blocks))
    return torch.cat([block.to(dtype) for block in padded])


def _added(product: Callable[..., Tensor]) -> Callable[..., Any]:
    """A product of matrices or vectors, times `alpha`, and `self` times `beta`."""

    def sum_of_products(self: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        if beta == 0:  # `self` may hold NaN, such as memory that is not initialized
            return product(first, second) * alpha
        if self.dtype is torch.float64 and not all(map(_is_float32, (beta, alpha))):  # as which torch.onnx takes them
            return self * beta + product(first, second) * alpha
        return NotImplemented

    return sum_of_products


def _is_float32(number: float) -> bool:
    return float(np.float32(number)) == number


aten = torch.ops.aten
decomposes(aten.addmm.default)(_added(aten.mm.default))
decomposes(aten.addmv.default)(_added(aten.mv.default))
decomposes(aten.addr.default)(_added(aten.outer.default))
decomposes(aten.baddbmm.default)(_added(aten.bmm.default))
decomposes(aten.addbmm.default)(_added(lambda first, second: aten.bmm.default(first, second).sum(0)))
