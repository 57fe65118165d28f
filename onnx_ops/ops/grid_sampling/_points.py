"""Points of a grid: where they are in an image or volume, and the weights of the elements around them.

Along each axis a point has 1, 2 or 4 taps, elements with a weight each; its corners are the combinations of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import Shape

BILINEAR, NEAREST, BICUBIC = range(3)
INTERPOLATIONS = {BILINEAR: "bilinear", NEAREST: "nearest", BICUBIC: "bicubic"}
ZEROS, BORDER, REFLECTION = range(3)
PADDINGS = {ZEROS: "zeros", BORDER: "border", REFLECTION: "reflection"}
ALIGNMENTS = {0: "False", 1: "True"}
SHARPNESS = -0.75
"""The free parameter of the cubic kernel (Keys 1981), as in PyTorch."""
LEAD = 2
"""Axes before the spatial ones: samples and channels."""

ATTRIBUTES = (
    attribute("interpolation_mode", BILINEAR, "0 bilinear (of volumes trilinear), 1 nearest, 2 bicubic (images only)."),
    attribute("padding_mode", ZEROS, "What is outside: 0 zeros, 1 the nearest element (border), 2 reflections."),
    attribute("align_corners", 0, "1: -1 and 1 are the centers of the first and the last element; 0: their edges."),
)
TEXT = """
A point is at `place` along an axis with `size` elements, for its coordinate x (NaN counts as -1):

    place = (x + 1) / 2 * (size - 1)      with align_corners
    place = ((x + 1) * size - 1) / 2      without

computed in float, or double if the grid is double. With padding mode 1 a place is moved to the nearest one in
[0, size - 1], with 2 reflected at its ends, with align_corners, or else at -0.5 and size - 0.5. Elements outside count
as 0 in mode 0. Linear interpolation takes the elements around a place, the nearest mode the one at the place rounded
half to even, and bicubic interpolation four by four elements with Keys' kernel (1981) for a = -0.75; it moves or
reflects these instead of the place.
"""


def choices(axes: int) -> dict[str, dict[int, str]]:
    """The values of the attributes of an op of so many axes."""
    modes = {mode: name for mode, name in INTERPOLATIONS.items() if axes == 2 or mode != BICUBIC}
    return {"interpolation_mode": modes, "padding_mode": PADDINGS, "align_corners": ALIGNMENTS}


def check_points(call: Call, axes: int) -> tuple[Shape | None, Shape | None]:
    """The shapes of image and grid; raises OpError unless they and the attributes fit an op of so many axes."""
    for name, values in choices(axes).items():
        call.check_choice(name, values)
    call.same_dtype("grid", "input")
    image, grid = call.shape("input"), call.shape("grid")
    for name, shape in (("input", image), ("grid", grid)):
        if shape is not None and len(shape) != LEAD + axes:
            raise call.shape_error(name, f"{LEAD + axes} dimensions")
    if image is not None and 0 in image[LEAD:]:
        raise call.shape_error("input", "at least one element along each spatial axis")
    if grid is not None:
        call.same_shape(
            "grid", (None if image is None else image[0], *grid[1:-1], axes), f"{axes} coordinates per point"
        )
    return image, grid


# --- in NumPy ---------------------------------------------------------------------------------------------------------


class Taps:
    """The taps of all points along one axis, in NumPy.

    Attributes:
        places: int64 (N, points, taps); -1 outside.
        weights: float64, of the same shape; 0 outside.
        slopes: derivatives of the weights with respect to the coordinate.
    """

    def __init__(self, x: np.ndarray, size: int, interpolation: int, padding: int, align: int) -> None:
        """Find them.

        Args:
            x: coordinates (N, points), in the dtype that places are computed in.
            size: of the axis.
            interpolation, padding, align: the attributes.
        """
        self._size, self._padding, self._align = size, padding, align
        one = x.dtype.type(1)
        with np.errstate(all="ignore"):
            x = np.where(np.isnan(x), -one, x)
            at = (x + one) / 2 * x.dtype.type(size - 1) if align else ((x + one) * x.dtype.type(size) - one) / 2
            at = at.astype(np.float64)
            scale = np.full(x.shape, (size - 1) / 2 if align else size / 2)
            if interpolation == BICUBIC:
                low = np.floor(at)
                t = np.where(np.isfinite(at), at - low, 0.0)
                found = [(self._moved(low + k - 1)[0], *_keys(t, k)) for k in range(4)]
            else:
                at, sign = self._moved(at)
                scale = scale * sign
                if interpolation == NEAREST:
                    found = [(np.rint(at), np.ones_like(at), np.zeros_like(at))]
                else:
                    low = np.floor(at)
                    found = [(low, 1 - (at - low), -np.ones_like(at)), (low + 1, at - low, np.ones_like(at))]
            places, weights, slopes = (np.stack(part, -1) for part in zip(*found, strict=True))
            within = (places >= 0) & (places <= size - 1)
            self.places = np.where(within, places, -1).astype(np.int64)
            self.weights = np.where(within, weights, 0.0)
            self.slopes = np.where(within, slopes * scale[..., None], 0.0)

    def _moved(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places after padding, and the derivative of these."""
        sign, last = np.ones_like(at), self._size - 1
        if self._padding == ZEROS:
            return at, sign
        if self._padding == REFLECTION:
            low, span = (0.0, float(last)) if self._align else (-0.5, float(self._size))
            distance = np.abs(at - low)
            turns = np.floor(distance / span) if span else np.zeros_like(at)
            rest = np.where(np.isfinite(distance), distance - turns * span, 0.0) if span else np.zeros_like(at)
            odd = turns % 2 == 1
            sign = np.where(at < low, -1.0, 1.0) * np.where(odd, -1.0, 1.0)
            at = np.where(odd, span - rest, rest) + low
        return np.clip(at, 0, last), np.where((at <= 0) | (at >= last), 0.0, sign)


def _keys(t: np.ndarray, tap: int) -> tuple[np.ndarray, np.ndarray]:
    """Weight and its derivative of one of the four taps of a place that is t behind the second."""
    d = np.abs(t + 1 - tap)
    a = SHARPNESS
    if tap in (1, 2):
        weight, slope = ((a + 2) * d - (a + 3)) * d * d + 1, (3 * (a + 2) * d - 2 * (a + 3)) * d
    else:
        weight, slope = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a, (3 * a * d - 10 * a) * d + 8 * a
    return weight, slope if tap < 2 else -slope


def taps_of(
    image: Shape, grid: np.ndarray, interpolation: int, padding: int, align: int, dtype: np.dtype
) -> list[Taps]:
    """The taps along each axis, whose places are computed in a dtype."""
    points = grid.reshape(grid.shape[0], math.prod(grid.shape[1:-1]), grid.shape[-1]).astype(dtype)
    return [
        Taps(points[..., -1 - axis], int(str(size)), interpolation, padding, align)
        for axis, size in enumerate(image[LEAD:])
    ]


def corners(taps: Sequence[Taps], sizes: Sequence[int], sloped: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Flat places (N, points, corners), -1 outside, and weights, by axis `sloped` their derivatives."""
    places: np.ndarray = np.zeros((1, 1, 1), np.int64)
    weights: np.ndarray = np.ones((1, 1, 1))
    for axis, (own, size) in enumerate(zip(taps, sizes, strict=True)):
        joined = places[..., :, None] * size + own.places[..., None, :]
        joined = np.where((places[..., :, None] < 0) | (own.places[..., None, :] < 0), -1, joined)
        factors = own.slopes if axis == sloped else own.weights
        product = weights[..., :, None] * factors[..., None, :]
        shape = (*joined.shape[:2], joined.shape[2] * joined.shape[3])
        places, weights = joined.reshape(shape), product.reshape(shape)
    return places, weights


def gathered(image: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The elements (N, C, points, corners) at flat places (N, points, corners), 0 outside."""
    samples, channels = image.shape[:2]
    index = places.reshape(samples, 1, places.shape[1] * places.shape[2])
    found = np.take_along_axis(image, np.maximum(index, 0), 2)
    return np.where(index < 0, 0.0, found).reshape(samples, channels, *places.shape[1:])
