"""Function bodies of samples and of their gradients: the corners of all points are gathered at once."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.ops.grid_sampling._points import (
    BICUBIC,
    BILINEAR,
    BORDER,
    LEAD,
    NEAREST,
    REFLECTION,
    SHARPNESS,
    ZEROS,
)

TAPS = {BILINEAR: [0.0, 1.0], NEAREST: [0.0], BICUBIC: [-1.0, 0.0, 1.0, 2.0]}
"""Where the taps of a place are, by interpolation mode, from the element that it is at or behind."""


def by_interpolation(b: Body, axes: int, *writes: Callable[[Corners], Value]) -> list[Value]:
    """What each of `writes` computes of the corners; where calls have several interpolation modes, for the node's."""
    first, *others = sorted({call.attributes["interpolation_mode"] for call in b.calls})
    if not others:
        corners = Corners(b, axes, first)
        return [write(corners) for write in writes]

    def chosen(write: Callable[[Corners], Value], modes: list[int]) -> Value:
        if not modes:
            return write(Corners(b, axes, first))
        mode, *rest = modes
        is_mode = b.value_of("interpolation_mode").equal(mode).named(f"is_mode_{mode}")
        own, other = lambda: write(Corners(b, axes, mode)), lambda: chosen(write, rest)
        return b.choose(is_mode, own, other, TensorType(b.compute))

    return [chosen(write, others) for write in writes]


def store_samples(b: Body, axes: int) -> None:
    (found,) = by_interpolation(b, axes, _samples)
    b.store("out", found, "input")


def store_gradients(b: Body, axes: int) -> None:
    writes = {"input_grad": _input_grad, "grid_grad": _grid_grad}
    wanted = [name for name in writes if b.wants(name)]
    for name, value in zip(wanted, by_interpolation(b, axes, *map(writes.__getitem__, wanted)), strict=True):
        b.store(name, value, "grad_output")


def _samples(corners: Corners) -> Value:
    b = corners.builder
    samples = b.op("ReduceSum", corners.elements() * corners.column(corners.weights()), [2], keepdims=0)
    by_channel = b.op("Transpose", samples, name="by_channel", perm=[0, 2, 1])
    shape = b.op("Concat", corners.samples, corners.channels, corners.point_shape, name="out_shape", axis=0)
    return b.op("Reshape", by_channel, shape, name="samples", allowzero=1)


def _input_grad(corners: Corners) -> Value:
    """The gradients of the corners, added up by their places; a further row takes what is outside."""
    b = corners.builder
    terms = corners.column(corners.weights()) * b.op("Unsqueeze", corners.rows_of("grad_output"), [2])
    count = b.op("Size", corners.index, name="count")
    shape = b.op("Concat", b.op("Reshape", count, [1]), corners.channels, name="terms_shape", axis=0)
    index = b.op("Expand", b.op("Reshape", corners.index, [-1, 1], name="index_column"), shape, name="index_of_all")
    rows = b.op("Concat", corners.outside + 1, corners.channels, name="rows_shape", axis=0)
    sums = b.op(
        "ScatterElements",
        b.op("Expand", 0.0, rows, name="nothing"),
        index,
        b.op("Reshape", terms, shape, name="terms", allowzero=1),
        name="sums",
        axis=0,
        reduction="add",
    )
    inside = b.op("Slice", sums, [0], corners.outside, [0], name="inside")
    shape = b.op("Concat", corners.samples, corners.per_sample, corners.channels, name="by_place_shape", axis=0)
    by_place = b.op("Reshape", inside, shape, name="by_place", allowzero=1)
    by_channel = b.op("Transpose", by_place, name="by_channel", perm=[0, 2, 1])
    return b.op("Reshape", by_channel, b.op("Shape", b.inputs["input"]), name="input_grad", allowzero=1)


def _grid_grad(corners: Corners) -> Value:
    b = corners.builder
    products = corners.elements() * b.op("Unsqueeze", corners.rows_of("grad_output"), [2])
    totals = b.op("ReduceSum", products, [3], name="products", keepdims=0)
    totals = b.op("Where", corners.is_outside, 0.0, totals, name="products_inside")
    sums = b.op("MatMul", corners.slopes(), b.op("Unsqueeze", totals, [3], name="products_column"), name="slope")
    return b.op("Reshape", sums, b.op("Shape", b.inputs["grid"]), name="grid_grad", allowzero=1)


class Corners:
    """The corners of all points. Axes are in the order of the coordinates of a point, the last one of the image first.

    Attributes:
        builder: the body.
        axes: number of spatial axes.
        samples, channels, per_sample, point_shape: 1-D: sizes of the image, its elements of a channel of a sample, and
            the sizes of the grid.
        index: (N, points, corners), the row of each corner among those of all samples; `outside` for one outside.
        outside: 1-D, number of rows of all samples.
        is_outside: (N, points, corners).
    """

    def __init__(self, b: Body, axes: int, mode: int) -> None:
        """Find them for an interpolation mode."""
        self.builder = self._b = b
        self.axes = axes
        image, grid = b.inputs["input"], b.inputs["grid"]
        self.samples, self.channels = (
            b.op("Shape", image, name=name, start=i, end=i + 1) for i, name in enumerate(("samples", "channels"))
        )
        sizes = b.op("Shape", image, name="sizes", start=LEAD)
        self.per_sample = b.op("ReduceProd", sizes, name="per_sample", keepdims=1)
        self.outside = (self.samples * self.per_sample).named("outside")
        self.point_shape = b.op("Shape", grid, name="point_shape", start=1, end=-1)
        self._points = b.op("ReduceProd", self.point_shape, name="points", keepdims=1)
        self._sizes = b.op("Gather", sizes, [*reversed(range(axes))], name="reversed_sizes")
        self._padding: int | None = b.attribute("padding_mode")
        self._align: int | None = b.attribute("align_corners")

        shape = b.op("Concat", self.samples, self._points, [axes], name="points_shape", axis=0)
        x = b.op("Reshape", b.load("grid"), shape, name="coordinates", allowzero=1)
        size = self._sizes.cast(b.compute).named("size")
        self._last = (size - 1.0).named("last")
        from_edge = b.op("Where", b.op("IsNaN", x), 0.0, (x + 1.0).named("from_edge"), name="from_edge")
        aligned, centered = from_edge / 2.0 * self._last, (from_edge * size - 1.0) / 2.0
        at = self._by_alignment(aligned, centered, "place")
        slope = self._by_alignment(self._last / 2.0, size / 2.0, "scale")
        if mode != BICUBIC:
            at, slope = self._moved(at, slope)
        base = b.op("Round" if mode == NEAREST else "Floor", at, name="base")
        offset = (at - base).named("offset")
        places = (b.op("Unsqueeze", base, [3]) + self._constant(TAPS[mode])).named("places")
        last = b.op("Unsqueeze", self._last, [1], name="last_place")
        if mode == BICUBIC:
            offset = b.op("Where", b.op("IsNaN", offset), 0.0, offset, name="offset")  # of infinite places
            places, _ = self._moved(places, slope, column=True)
        within = (places.greater_or_equal(0.0) & places.less_or_equal(last)).named("within")
        weights, slopes = self._interpolated(mode, b.op("Unsqueeze", offset, [3], name="offset_column"))
        slopes = slopes * b.op("Unsqueeze", slope, [-1])
        self._weights = self._of_corners(b.op("Where", within, weights, 0.0, name="tap_weights"), mode)
        self._slopes = self._of_corners(b.op("Where", within, slopes, 0.0, name="tap_slopes"), mode)
        inside = b.op("Where", within, places, -1.0, name="places_inside").cast(TensorProto.INT64)
        corners = self._of_corners(inside, mode)
        misses = b.op("ReduceSum", corners.less(0).cast(TensorProto.INT64), [2], name="misses", keepdims=0)
        self.is_outside = misses.greater(0).named("is_outside")
        flat = b.op("ReduceSum", corners * self._strides(), [2], name="flat_places", keepdims=0)
        self.index = b.op("Where", self.is_outside, self.outside, flat + self._first_rows(), name="rows")

    def _constant(self, numbers: Sequence[float]) -> Value:
        return self._b.constant([float(number) for number in numbers])

    def _by_alignment(self, aligned: Value, centered: Value, name: str) -> Value:
        if self._align is not None:
            return (aligned if self._align else centered).named(name)
        return self._b.op("Where", self._is_aligned(), aligned, centered, name=name)

    def _is_aligned(self) -> Value:
        return self._b.value_of("align_corners").equal(1).named("is_aligned")

    def _moved(self, at: Value, slope: Value, column: bool = False) -> tuple[Value, Value]:
        """Places after padding, and the derivative of these times `slope`; with `column` places have one more axis."""
        b = self._b
        if self._padding == ZEROS:
            return at, slope
        last = b.op("Unsqueeze", self._last, [1], name="last_place") if column else self._last
        found, sign = at, None
        if self._padding != BORDER:
            low = self._by_alignment(b.constant(0.0), b.constant(-0.5), "low")
            span = self._by_alignment(last, (last + 1.0).named("count"), "span")
            distance = b.op("Abs", at - low, name="distance")
            divisor = b.op("Max", span, 1.0, name="divisor")
            turns = b.op("Floor", distance / divisor, name="turns")
            rest = (distance - turns * divisor).named("rest")
            rest = b.op("Where", b.op("IsInf", distance) | span.equal(0.0), 0.0, rest, name="finite_rest")
            odd = (turns - b.op("Floor", turns / 2.0) * 2.0).greater(0.5).named("is_odd")
            reflected = (b.op("Where", odd, span - rest, rest) + low).named("reflected")
            reflects = True if self._padding == REFLECTION else b.value_of("padding_mode").equal(REFLECTION)
            found = reflected if reflects is True else b.op("Where", reflects, reflected, at, name="turned_back")
            turned = b.op("Xor", odd, at.less(low), name="is_turned")
            if reflects is not True:
                turned = turned & reflects
            sign = b.op("Where", turned, -slope, slope, name="signed")
        inside = (found.greater(0.0) & found.less(last)).named("is_inside")
        kept = b.op("Max", b.op("Min", found, last, name="at_most"), 0.0, name="kept")
        moved_slope = b.op("Where", inside, slope if sign is None else sign, 0.0, name="moved_slope")
        if self._padding is not None:
            return kept, moved_slope
        is_zeros = b.value_of("padding_mode").equal(ZEROS).named("is_zeros")
        return b.op("Where", is_zeros, at, kept), b.op("Where", is_zeros, slope, moved_slope)

    def _interpolated(self, mode: int, t: Value) -> tuple[Value, Value]:
        """Weights of the taps of places that are t behind their base, and the derivatives of these."""
        b = self._b
        if mode == NEAREST:
            return b.op("Expand", 1.0, b.op("Shape", t)), b.op("Expand", 0.0, b.op("Shape", t))
        if mode == BILINEAR:
            return self._constant([1, 0]) + t * self._constant([-1, 1]), self._constant([-1, 1])
        a, back = SHARPNESS, t - self._constant(TAPS[BICUBIC])
        d = b.op("Abs", back, name="apart")
        near = ((d * (a + 2) - (a + 3)) * d * d + 1.0).named("near")
        far = (((d * a - 5 * a) * d + 8 * a) * d - 4 * a).named("far")
        near_slope = ((d * (3 * (a + 2)) - 2 * (a + 3)) * d).named("near_slope")
        far_slope = ((d * (3 * a) - 10 * a) * d + 8 * a).named("far_slope")
        is_near = b.constant([False, True, True, False])
        slopes = b.op("Where", is_near, near_slope, far_slope) * self._constant([1, 1, -1, -1])
        return b.op("Where", is_near, near, far, name="cubic"), slopes

    def _of_corners(self, taps: Value, mode: int) -> Value:
        """From (N, points, axes, taps) to (N, points, axes, corners)."""
        count = len(TAPS[mode])
        places = [
            [axis * count + corner[axis] for corner in itertools.product(range(count), repeat=self.axes)]
            for axis in range(self.axes)
        ]
        flat = self._b.op("Reshape", taps, [0, 0, self.axes * count], name=f"flat_{taps.hint}")
        return self._b.op("Gather", flat, np.array(places), name=f"{taps.hint}_of_corners", axis=2)

    def _strides(self) -> Value:
        """Elements from one place along an axis to the next, (axes, 1)."""
        b = self._b
        sizes = [b.op("Gather", self._sizes, [axis], name=f"size_{axis}") for axis in range(self.axes - 1)]
        strides = list(itertools.accumulate(sizes, operator.mul))
        return b.op("Unsqueeze", b.op("Concat", [1], *strides, name="strides", axis=0), [1], name="strides_column")

    def _first_rows(self) -> Value:
        """The first row of each sample, (N, 1, 1)."""
        b = self._b
        each = b.op("Range", 0, b.op("Squeeze", self.samples), 1, name="each_sample")
        return b.op("Reshape", each * self.per_sample, [-1, 1, 1], name="first_rows")

    def weights(self) -> Value:
        """Weights of the corners (N, points, corners)."""
        b = self._b
        names = [f"weights_{axis}" for axis in range(self.axes)]
        own = b.several("Split", self._weights, [1] * self.axes, names=names, axis=2)
        return b.op("Squeeze", functools.reduce(operator.mul, own), [2], name="weights")

    def slopes(self) -> Value:
        """Their derivatives by each coordinate (N, points, axes, corners)."""
        slopes = self._slopes
        for step in range(1, self.axes):  # the weights along each of the other axes
            order = [(axis + step) % self.axes for axis in range(self.axes)]
            slopes = slopes * self._b.op("Gather", self._weights, order, name="other_weights", axis=2)
        return slopes

    def column(self, numbers: Value) -> Value:
        return self._b.op("Unsqueeze", numbers, [3], name="column")

    def rows_of(self, name: str) -> Value:
        """The elements of an input by their places: (N, places, C)."""
        b = self._b
        places = self._points if name == "grad_output" else self.per_sample
        shape = b.op("Concat", self.samples, self.channels, places, name="flat_shape", axis=0)
        flat = b.op("Reshape", b.load(name), shape, name=f"flat_{name}", allowzero=1)
        return b.op("Transpose", flat, name=f"rows_of_{name}", perm=[0, 2, 1])

    def elements(self) -> Value:
        """The corners of the image, 0 outside: (N, points, corners, C)."""
        b = self._b
        shape = b.op("Concat", self.outside, self.channels, name="table_shape", axis=0)
        table = b.op("Reshape", self.rows_of("input"), shape, name="table", allowzero=1)
        row = b.op("Expand", 0.0, b.op("Concat", [1], self.channels, axis=0), name="row_of_zeros")
        return b.op("Gather", b.op("Concat", table, row, name="table_and_zeros", axis=0), self.index, name="elements")
