"""The exponential of a matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import loop
from onnx_ops.torch.base.nodes import Value, integers, op
from onnx_ops.torch.base.table import decomposes

DEGREE = 16
"""Of the Taylor polynomial."""
LARGEST = {torch.float32: 2.0, torch.float64: 0.5}
"""The largest 1-norm of its argument, for an error (norm ** 17 / 17!) below 1e-9 and 1e-19."""
POWERS = 4
"""Each part of the polynomial has the powers below this one."""


def _squaring_nodes(self: Value, times: Value) -> Value:
    counts = op.Concat(integers([0]), op.Reshape(times, integers([-1])), axis=0)
    most = op.ReduceMax(counts, keepdims=0)

    def step(j: Value, matrix: Value) -> tuple[Value, ...]:
        goes_on = op.Unsqueeze(op.Less(j, times), integers([-2, -1]))
        return (op.Where(goes_on, op.MatMul(matrix, matrix), matrix),)

    return loop(f"{self.name}_squaring", most, [(self, self.dtype)], step)[0]


@custom_operator(_squaring_nodes, lambda self, times: self.new_empty(self.shape))
def squared(self: Tensor, times: Tensor) -> Tensor:
    """Matrices (..., n, n), each squared a number of times (...), int64."""
    found = self.clone()
    for j in range(int(times.max()) if times.numel() else 0):
        found = torch.where((j < times)[..., None, None], found @ found, found)
    return found


@decomposes(torch.ops.aten.linalg_matrix_exp.default)
def _matrix_exp(self: Tensor) -> Tensor:
    """A Taylor polynomial of the matrix divided by a power of 2, squared as often (Higham 2005).

    The gradient is the exponential of a matrix of twice the size.
    """
    size = self.shape[-1]
    if self.is_complex() or size == 0:
        return NotImplemented
    if not is_symbolic(size) and size == 1:
        return self.exp()
    norm = self.abs().sum(-2).amax(-1)
    finite = norm.isfinite()
    times = (torch.where(finite, norm, 0.0) / LARGEST[self.dtype]).clamp(min=1).log2().ceil()
    scaled = self * torch.exp2(-times)[..., None, None]
    powers = [torch.eye(size, dtype=self.dtype), scaled]
    while len(powers) <= POWERS:
        powers.append(powers[-1] @ scaled)
    highest = powers.pop()
    found = highest / math.factorial(DEGREE)
    for first in reversed(range(0, DEGREE, POWERS)):
        part = sum(power / math.factorial(first + i) for i, power in enumerate(powers))
        found = part + (found if first + POWERS == DEGREE else found @ highest)
    result: Tensor = squared(found, times.long())
    return torch.where(finite[..., None, None], result, math.nan)
