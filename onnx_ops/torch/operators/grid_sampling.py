"""Sampling of an image at the points of a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.operators.sizes_as_data import linspace

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2
SHARPNESS = -0.75
"""The free parameter of PyTorch's cubic interpolation."""


@replaces(torch.affine_grid_generator)
def _affine_grid_generator(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """As PyTorch's operator, whose gradient does not take dynamic sizes, with its rounding.

    Its decomposition rounds in another order. At the pixels of an image, where a theta that is the identity samples it,
    the gradient of samples jumps.
    """
    torch._check(theta.shape[0] == size[0])
    space = size[2:]
    rank = len(space)
    lines = [
        _line(count, align_corners, theta).view([1] * axis + [-1] + [1] * (rank - 1 - axis))
        for axis, count in enumerate(space)
    ]
    coordinates = [*reversed(lines), theta.new_ones([1] * rank)]  # x, the last axis, comes first
    points = torch.stack([each.expand(space) for each in coordinates], -1)
    return (points.flatten(0, -2) @ theta.mT).unflatten(1, space)


def _line(count: int, align_corners: bool, like: Tensor) -> Tensor:
    """The coordinates of the pixels along an axis, from -1 to 1; 0 of a single one."""
    line = linspace(-1, 1, count, dtype=like.dtype)
    if not align_corners:
        return line * (count - 1) / count
    return torch.where(torch.full((), count) > 1, line, 0) if is_symbolic(count) else line * (count > 1)


@replaces(torch.grid_sampler)
def _grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    space = input.shape[2:]
    rank = len(space)
    places = []
    for axis, size in enumerate(space):
        at = grid[..., rank - 1 - axis].flatten(1)  # x, the last axis, comes first
        places.append((at + 1) / 2 * (size - 1) if align_corners else ((at + 1) * size - 1) / 2)
    image = _Image(input, padding_mode, align_corners)
    if interpolation_mode == BICUBIC:
        found = _bicubic(image, places)
    else:
        inside = [image.kept_inside(at, axis) for axis, at in enumerate(places)]
        nearest = interpolation_mode == NEAREST
        found = image.sampled([([at.round() for at in inside], None)]) if nearest else _linear(image, inside)
    return found.mT.unflatten(2, grid.shape[1:-1])


class _Image:
    """An image, as rows (N * pixels, C) of channels, and its padding mode."""

    def __init__(self, image: Tensor, padding_mode: int, align_corners: bool) -> None:
        self._space = image.shape[2:]
        self._rows = image.flatten(2).mT.flatten(0, 1)
        self._first = torch.arange(image.shape[0]).unsqueeze(1) * math.prod(self._space)
        self._mode, self._align = padding_mode, align_corners

    def kept_inside(self, at: Tensor, axis: int) -> Tensor:
        size = self._space[axis]
        if self._mode == ZEROS:
            return at
        if self._mode == REFLECTION:
            low, span = (0.0, size - 1) if self._align else (-0.5, size)
            if not is_symbolic(span) and span == 0:
                return at * 0
            distance = (at - low).abs()
            turns = (distance / torch.sym_max(span, 1)).floor()
            rest = distance - turns * span
            odd = turns - 2 * (turns / 2).floor() > 0
            at = torch.where(odd, span - rest, rest) + low
        return at.clamp(0, size - 1)

    def sampled(self, corners: Sequence[tuple[Sequence[Tensor], Tensor | None]]) -> Tensor:
        """The sum of some pixels, 0 outside of the image, each with a share: (N, points, C).

        Args:
            corners: integral coordinates (N, points) of one pixel for each point, and its share (N, points); None: 1.
        """
        rows, weights = zip(*(self._row(places, share) for places, share in corners), strict=True)
        found = self._rows.index_select(0, torch.cat([row.flatten() for row in rows]))
        found = found.reshape(len(rows), *rows[0].shape, -1)
        return (found * torch.stack(weights).unsqueeze(-1)).sum(0)

    def _row(self, places: Sequence[Tensor], share: Tensor | None) -> tuple[Tensor, Tensor]:
        """The rows of pixels, of the nearest ones where these are outside of the image, and their shares, 0 there."""
        index, seen = None, None
        for at, size in zip(places, self._space, strict=True):
            within = (at >= 0) & (at <= size - 1)
            here = at.clamp(0, size - 1).to(torch.int64)
            index = here if index is None else index * size + here
            seen = within if seen is None else seen & within
        assert index is not None
        assert seen is not None
        inside = seen.to(self._rows.dtype)
        return self._first + index, inside if share is None else inside * share


def _linear(image: _Image, places: Sequence[Tensor]) -> Tensor:
    below = [at.detach().floor() for at in places]
    corners = []
    for corner in itertools.product((0, 1), repeat=len(places)):
        shares = [(at - low) if up else (low + 1 - at) for at, low, up in zip(places, below, corner, strict=True)]
        share = math.prod(shares[1:], start=shares[0])
        corners.append(([low + up for low, up in zip(below, corner, strict=True)], share))
    return image.sampled(corners)


def _bicubic(image: _Image, places: Sequence[Tensor]) -> Tensor:
    below = [at.detach().floor() for at in places]
    weights = [_cubic(at - low) for at, low in zip(places, below, strict=True)]
    corners = []
    for i, j in itertools.product(range(4), repeat=2):
        here = [image.kept_inside(low + k - 1, axis) for axis, (low, k) in enumerate(zip(below, (i, j), strict=True))]
        corners.append((here, weights[0][i] * weights[1][j]))
    return image.sampled(corners)


def _cubic(t: Tensor) -> list[Tensor]:
    """The weights of four neighbours, for a point at distance t after the second of them."""

    def near(x: Tensor) -> Tensor:
        return ((SHARPNESS + 2) * x - (SHARPNESS + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((SHARPNESS * x - 5 * SHARPNESS) * x + 8 * SHARPNESS) * x - 4 * SHARPNESS

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]
