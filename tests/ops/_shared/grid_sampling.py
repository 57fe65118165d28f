"""Samples at the points of a grid and their gradients: what the records of images and volumes share."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
    Attribute,
    Benchmark,
    Call,
    DType,
    Input,
    Output,
    Record,
    Refusal,
    Worked,
    like,
    limits,
    with_value,
)

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
OUTSIDE = -1
GRADIENTS = ("input_grad", "grid_grad")
Form = tuple[Shape, Shape]
"""Shape of what is sampled, (N, C, ...), and sizes of the grid."""


# --- the oracle: each point by itself along each axis, and sums over all combinations of elements around it -----------


def _wave(place: Any, size: int, align: int) -> tuple[Any, int]:
    """A place on the triangle wave that reflections are, and its slope."""
    low, span = (0.0, size - 1) if align else (-0.5, size)
    if span == 0:
        return place * 0, 0
    turned = math.fmod(place - low, 2 * span) if math.isfinite(place) else 0.0
    turned, sign = (turned, 1) if turned >= 0 else (-turned, -1)
    return (low + turned, sign) if turned < span else (low + 2 * span - turned, -sign)


def _padded(place: Any, size: int, padding: int, align: int) -> tuple[Any, int]:
    slope = 1
    if padding == REFLECTION:
        place, slope = _wave(place, size, align)
    if padding != ZEROS and not 0 < place < size - 1:
        return min(max(place, 0.0), size - 1.0), 0
    return place, slope


def _cubic(x: Any) -> tuple[Any, Any]:
    """Keys' kernel for a = -3/4 and its derivative, as polynomials that are written out."""
    d, sign = abs(x), math.copysign(1, x)
    if d <= 1:
        return 1.25 * d**3 - 2.25 * d**2 + 1, sign * (3.75 * d**2 - 4.5 * d)
    return -0.75 * d**3 + 3.75 * d**2 - 6 * d + 3, sign * (-2.25 * d**2 + 7.5 * d - 6)


def _along_axis(x: Any, size: int, mode: int, padding: int, align: int, wide: Reals) -> list[tuple[int, Any, Any]]:
    """Elements around a point, each with its weight and the derivative of that by the coordinate x."""
    kind = type(x)
    if x != x:
        x = kind(-1)
    with np.errstate(over="ignore"):
        place = (x + kind(1)) / kind(2) * kind(size - 1) if align else ((x + kind(1)) * kind(size) - kind(1)) / kind(2)
    place, scale = wide(place), wide(size - 1 if align else size) / 2
    found: list[tuple[Any, Any, Any]] = []
    if mode == BICUBIC:
        base = np.floor(place)
        behind = place - base if math.isfinite(place) else wide(0)
        for element in range(-1, 3):
            weight, slope = _cubic(behind - element)
            found.append((_padded(base + element, size, padding, align)[0], weight, slope * scale))
    else:
        place, sign = _padded(place, size, padding, align)
        if not math.isfinite(place):
            return [(OUTSIDE, 0.0, 0.0)]
        if mode == NEAREST:
            found = [(round(float(place)), wide(1), wide(0))]
        else:
            below = np.floor(place)
            found = [(below, below + 1 - place, -sign * scale), (below + 1, place - below, sign * scale)]
    return [(int(at) if 0 <= at < size else OUTSIDE, weight, slope) for at, weight, slope in found]


def _corners(
    point: Array, sizes: Shape, mode: int, padding: int, align: int, wide: Reals
) -> Iterator[tuple[tuple[int, ...], Any, list[Any]]]:
    """Elements of an image around a point, each with its weight and the derivatives of that by the coordinates."""
    kind = np.float64 if point.dtype == FLOAT64 else np.float32
    taps = [_along_axis(kind(x), size, mode, padding, align, wide) for x, size in zip(point[::-1], sizes, strict=True)]
    for corner in itertools.product(*taps):
        places = tuple(at for at, *_ in corner)
        if OUTSIDE in places:
            continue
        weights = [weight for _, weight, _ in corner]
        slopes = [slope * math.prod(weights[:axis] + weights[axis + 1 :]) for axis, (*_, slope) in enumerate(corner)]
        yield places, math.prod(weights), slopes[::-1]


Settings = Mapping[str, int]


def _all_corners(image: ArrayLike, grid: ArrayLike, settings: Settings, wide: Reals) -> Iterator[Any]:
    """For each point its sample, its place in the grid, and for a corner: its place, weight and slopes."""
    points = np.asarray(grid)
    sizes = np.asarray(image).shape[2:]
    own = settings["interpolation_mode"], settings["padding_mode"], settings["align_corners"]
    for sample, *place in np.ndindex(points.shape[:-1]):
        for corner in _corners(points[(sample, *place)], sizes, *own, wide):
            yield sample, tuple(place), *corner


def samples(input: ArrayLike, grid: ArrayLike, *, dtype: Reals = np.float64, **settings: int) -> Array:
    x = real(input, dtype)
    out = np.zeros((*x.shape[:2], *np.shape(grid)[1:-1]), dtype)
    for sample, point, place, weight, _ in _all_corners(input, grid, settings, dtype):
        out[(sample, slice(None), *point)] += weight * x[(sample, slice(None), *place)]
    return out


def largest_samples(input: ArrayLike, grid: ArrayLike, *, dtype: Reals = np.float64, **settings: int) -> Array:
    """The largest element around each point: weights are at most 1 and a quarter, and off by what 1 is off by."""
    x = np.abs(real(input, dtype))
    out = np.zeros((*x.shape[:2], *np.shape(grid)[1:-1]), dtype)
    for sample, point, place, *_ in _all_corners(input, grid, settings, dtype):
        at = (sample, slice(None), *point)
        out[at] = np.maximum(out[at], x[(sample, slice(None), *place)])
    return out


def gradients(
    grad_output: ArrayLike, input: ArrayLike, grid: ArrayLike, *, dtype: Reals = np.float64, **settings: int
) -> tuple[Array, Array]:
    grad, x = real(grad_output, dtype), real(input, dtype)
    of_input, of_grid = np.zeros_like(x), np.zeros(np.shape(grid), dtype)
    for sample, point, place, weight, slopes in _all_corners(input, grid, settings, dtype):
        at, element = (sample, slice(None), *point), (sample, slice(None), *place)
        of_input[element] += weight * grad[at]
        if settings["interpolation_mode"] != NEAREST:
            of_grid[(sample, *point)] += (grad[at] * x[element]).sum() * np.array(slopes, dtype)
    return of_input, of_grid


def largest_gradients(
    grad_output: ArrayLike, input: ArrayLike, grid: ArrayLike, *, dtype: Reals = np.float64, **settings: int
) -> tuple[Array, Array]:
    """The largest terms, with 1 for weights, and twice the largest scale for slopes."""
    grad, x = np.abs(real(grad_output, dtype)), np.abs(real(input, dtype))
    of_input, of_grid = np.zeros_like(x), np.zeros(np.shape(grid), dtype)
    for sample, point, place, *_ in _all_corners(input, grid, settings, dtype):
        at, element = (sample, slice(None), *point), (sample, slice(None), *place)
        of_input[element] = np.maximum(of_input[element], grad[at])
        if settings["interpolation_mode"] != NEAREST:
            terms = (grad[at] * x[element]).max(initial=0.0) * max(x.shape[2:])
            of_grid[(sample, *point)] = np.maximum(of_grid[(sample, *point)], terms)
    return of_input, of_grid


# --- the records ------------------------------------------------------------------------------------------------------


def operands(form: Form, dtype: DType, *, gradient: bool) -> dict[str, Array | None]:
    """Points of which some are outside."""
    image, grid = form
    points = (1.3 * np.tanh(normal((image[0], *grid, len(grid)), FLOAT64, "grid"))).astype(dtype)
    given: dict[str, Array | None] = {"input": normal(image, dtype, "image"), "grid": points}
    return {"grad_output": normal((*image[:2], *grid), dtype, "grad"), **given} if gradient else given


def flow(form: Form, dtype: DType) -> Array:
    """Points near those of the elements, as displaced by a flow."""
    image, grid = form
    lines = [np.linspace(-1, 1, count) for count in reversed(grid)]
    identity = np.stack(np.meshgrid(*reversed(lines), indexing="ij")[::-1], -1)
    points: Array = (identity + 0.05 * normal((image[0], *grid, len(grid)), FLOAT64, "flow")).astype(dtype)
    return points


def special_points(axes: int, dtype: DType) -> Array:
    """A row of points, each coordinate of which takes special values: (2, ..., axes)."""
    values = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1.25, -1.75, 3.0, -7.5, 60000.0, -1e-7, 0.5, 0.2]
    rows = np.array([[value, *[0.3] * (axes - 1)][::order] for value in values for order in (1, -1)])
    return np.stack([rows, rows[::-1]]).reshape(2, -1, *[1] * (axes - 1), axes).astype(dtype)


class Family:
    """The records of an op for so many spatial axes, and of its gradient."""

    def __init__(self, axes: int, *, gradient: bool) -> None:
        self.axes, self.gradient = axes, gradient
        self.op = f"GridSampler{axes}D{'Backward' if gradient else ''}"
        self.modes = range(3 if axes == 2 else 2)

    def sizes(self, *last: int) -> Shape:
        """Sizes of images, for volumes with one more."""
        return last if self.axes == 2 else (2, *last)

    def form(self, samples: int, channels: int, image: Shape, grid: Shape) -> Form:
        return (samples, channels, *self.sizes(*image)), self.sizes(*grid)

    def call(self, form: Form, dtype: DType, label: str = "", **settings: int) -> Call:
        return Call(self.op, operands(form, dtype, gradient=self.gradient), settings, label=label)

    def calls(self) -> Iterator[Call]:
        for label, form in {
            "many_points": self.form(2, 2, (5, 7), (9, 20)),
            "many_channels": self.form(1, 37, (3, 4), (5, 3)),
            "one_element": self.form(2, 3, (1, 1), (2, 3)),
            "no_samples": self.form(0, 3, (2, 3), (2, 2)),
            "no_channels": self.form(2, 0, (2, 3), (2, 2)),
            "no_points": self.form(2, 3, (2, 3), (0, 2)),
        }.items():
            for mode in self.modes:
                yield self.call(form, FLOAT32, f"{label}-{mode}", interpolation_mode=mode)
        for mode, padding, align in itertools.product(self.modes, range(3), (0, 1)):
            settings = {"interpolation_mode": mode, "padding_mode": padding, "align_corners": align}
            for dtype in FLOATS:
                points = special_points(self.axes, dtype)
                image = (2, 2, *self.sizes(3, 4))
                plain = self.call(
                    (image, points.shape[1:-1]), dtype, f"{mode}-{padding}-{align}-{dtype.name}", **settings
                )
                yield plain.but({"grid": points})
            yield self.call(self.form(2, 3, (6, 5), (4, 4)), FLOAT32, f"plain-{mode}-{padding}-{align}", **settings)
        for name, value in itertools.product(("input", "grad_output")[: 1 + self.gradient], (NAN, INF)):
            plain = self.call(self.form(1, 2, (4, 4), (3, 3)), FLOAT32, f"{value}_in_{name}")
            yield plain.but(with_value(plain.inputs, name, (0, 1, *[1] * self.axes), value))
        if self.gradient:
            for output in GRADIENTS:
                plain = self.call(self.form(2, 3, (4, 5), (3, 2)), FLOAT32)
                yield Call(self.op, plain.inputs, plain.attributes, outputs=(output,), label=f"{output}_alone")

    def worked(self, dtype: DType) -> Iterator[Worked]:
        def lifted(array: Any, *, grid: bool = False) -> Array:
            """Numbers of an image, for volumes of one that is one element deep."""
            numbers = np.array(array, dtype)
            if self.axes == 2:
                return numbers
            return (
                np.concatenate([numbers[:, None], np.zeros((*numbers[:, None].shape[:-1], 1), dtype)], -1)
                if grid
                else numbers[:, :, None]
            )

        image, grid = lifted([[[[1, 2], [3, 4]]]]), lifted([[[[0, 0], [-0.5, 0.5], [1, 1], [-3, 0]]]], grid=True)
        given: dict[str, Array | None] = {"input": image, "grid": grid}
        nearest = {"interpolation_mode": NEAREST, "padding_mode": BORDER}
        if not self.gradient:
            yield Worked(Call(self.op, given, label="linear"), {"out": lifted([[[[2.5, 3, 1, 0]]]])})
            yield Worked(Call(self.op, given, nearest, label="nearest"), {"out": lifted([[[[1, 3, 4, 1]]]])})
            return
        given = {"grad_output": lifted([[[[1, 2, 4, 8]]]]), **given}
        by_image = lifted([[[[0.25, 0.25], [2.25, 1.25]]]])
        by_grid = lifted([[[[1, 2], [2, -6], [-8, -8], [0, 0]]]], grid=True)
        if self.axes == 3:
            by_grid[0, 0, 0, :, 2] = [-1.25, -3, -2, 0]  # half a step away from the one element all is 0
        yield Worked(Call(self.op, given, label="linear"), {"input_grad": by_image, "grid_grad": by_grid})
        by_image = lifted([[[[9, 0], [2, 4]]]])
        yield Worked(Call(self.op, given, nearest, label="nearest"), {"input_grad": by_image, "grid_grad": 0 * grid})

    def refusals(self, plain: Call) -> Iterator[Refusal]:
        """The plain call: two samples of three channels, and a grid of two rows of four points or more."""
        given, rank = plain.given, self.axes + 2
        yield Refusal("rank", ("'input'", f"{rank} dimensions"), {"input": given["input"][0]}, by_rank=True)
        yield Refusal("grid_rank", ("'grid'", f"{rank} dimensions"), {"grid": given["grid"][0]}, by_rank=True)
        yield Refusal("samples", ("'grid'", "coordinates"), {"grid": given["grid"][:1]})
        yield Refusal("coordinates", ("'grid'", "coordinates"), {"grid": given["grid"][..., :1]})
        yield Refusal("nothing", ("'input'", "at least one element"), {"input": given["input"][..., :0]})
        if self.gradient:
            grad = given["grad_output"]
            yield Refusal("points", ("'grad_output'", "'grid'"), {"grad_output": grad[..., 1:]})
            yield Refusal("channels", ("'grad_output'", "'input'"), {"grad_output": grad[:, :1]})

    def large(self, dtype: DType) -> Iterator[Call]:
        for mode in self.modes:
            yield self.call(self.form(2, 9, (20, 21), (50, 40)), dtype, f"{mode}", interpolation_mode=mode)

    def torch_call(self, torch: ModuleType, call: Call) -> Callable[[], Any] | None:
        """PyTorch accesses other memory where a coordinate is not finite, and in float16; it computes places in it."""
        if (
            call.dtype("grid").itemsize == 2
            or not np.isfinite(real(call.given["grid"])).all()
            or 0 in call.given["input"].shape[:2]
        ):
            return None
        tensors = with_torch.tensors(torch, call)
        settings = [call.attributes.get(name, 0) for name in ("interpolation_mode", "padding_mode")]
        align = bool(call.attributes.get("align_corners", 0))
        aten = torch.ops.aten
        if not self.gradient:
            forward = aten.grid_sampler_2d if self.axes == 2 else aten.grid_sampler_3d
            return functools.partial(forward, *tensors, *settings, align)
        backward = aten.grid_sampler_2d_backward if self.axes == 2 else aten.grid_sampler_3d_backward
        mask = [name in (call.outputs or GRADIENTS) for name in GRADIENTS]
        return lambda: tuple(x for x in backward(*tensors, *settings, align, mask) if x is not None)

    def record(self) -> Record:
        # Cubic weights have an error of some units of 1 each, and 16 of them are added up.
        sums, portable = limits(single=0.51, double=32), limits(single=32, double=32)
        form = self.form
        inputs = {"input": Input(variable="T"), "grid": Input(variable="T")}
        outputs: dict[str, Output] = {"out": like("input", limits=sums, portable_limits=portable)}
        if self.gradient:
            inputs = {"grad_output": Input(variable="T"), **inputs}
            outputs = {
                name: like("grad_output", optional=True, limits=sums, portable_limits=portable) for name in GRADIENTS
            }
        wrong = (-1, 3) if self.axes == 2 else (-1, 2, 3)
        layers = {
            "4x3x64x64": ((4, 3, *self.sizes(64, 64)), self.sizes(64, 64)),
            "4x32x64x64": ((4, 32, *self.sizes(64, 64)), self.sizes(64, 64)),
            "8x64x7x7": ((8, 64, *self.sizes(32, 32)), self.sizes(7, 7)),
            "1x3x256x256": ((1, 3, *self.sizes(256, 256)), self.sizes(256, 256)),
        }

        def benchmark(size: Form, dtype: DType) -> Call:
            return self.call(size, dtype).but({"grid": flow(size, dtype)})

        return Record(
            self.op,
            inputs=inputs,
            outputs=outputs,
            attributes={
                "interpolation_mode": Attribute(0, tuple(self.modes), wrong, ("bilinear",)),
                "padding_mode": Attribute(0, (0, 1, 2), (-1, 3), ("reflection",)),
                "align_corners": Attribute(0, (0, 1), (-1, 2), ("False",)),
            },
            joint={tuple(inputs): [(dtype,) * len(inputs) for dtype in FLOATS]},
            oracle=gradients if self.gradient else samples,
            terms=largest_gradients if self.gradient else largest_samples,
            make=lambda choice: operands(choice.form, choice.dtype("input"), gradient=self.gradient),
            forms={"plain": form(2, 3, (4, 5), (2, 4)), "large": form(1, 2, (3, 3), (12, 13))},
            calls=self.calls,
            worked=self.worked,
            refusals=self.refusals,
            large=self.large,
            torch=self.torch_call,
            documented=(f"aclnn{self.op}", "Jaderberg", "align_corners", "NaN", "Keys"),
            benchmarks=(Benchmark(benchmark, layers),),
            accuracies=(accuracy.of_calls(benchmark, form(2, 4, (8, 9), (10, 10))),),
        )
