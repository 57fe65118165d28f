"""Tiles of products of matrices: NumPy arrays here, SIMD registers in compiled code.

Channels are interleaved in blocks of LANES: element [block, place, lane] of an image is that of channel
block*LANES + lane. `onnx_ops.runtime.tiles` has the compiled forms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_ops.loops.memory import LANES
from onnx_ops.loops.primitives import Array

ROWS = 8
"""Rows of a tile."""
PANEL = 2
"""Vectors of LANES elements in a row of a tile."""
COLUMNS = 3
"""Columns of a tile of dot products; kernels of convolutions often have a multiple of three elements."""


def multiply_tile(
    image: Array,
    rows: Array,
    row_start: int,
    terms: int,
    channels: int,
    block: int,
    weights: Array,
    starts: Array,
    start: int,
    panel: int,
    step: int,
    out: Array,
    places: Array,
    place: int,
    apart: int,
    vectors: int,
) -> None:
    """Sums of products of ROWS rows with `vectors` vectors of weights, 1 or PANEL: for each row r, vector v and lane

        out[(places[place + r] + v*apart)*LANES + lane] = sum over t in [0, terms) and k in [0, channels) of

            image[rows[row_start + t*ROWS + r] + k // LANES * block + k % LANES]
            * weights[v*panel + starts[start + t] + k*step*LANES + lane]

    image, weights and out have one dtype, float32 or float64.
    """
    for r in range(ROWS):
        total = np.zeros((vectors, LANES), out.dtype)
        for b in range(-(-channels // LANES)):
            for t in range(terms):
                for lane in range(min(LANES, channels - b * LANES)):
                    x = image[int(rows[row_start + t * ROWS + r]) + b * block + lane]
                    at = int(starts[start + t]) + (b * LANES + lane) * step * LANES
                    for v in range(vectors):
                        with np.errstate(all="ignore"):
                            total[v] += x * weights[v * panel + at : v * panel + at + LANES]
        for v in range(vectors):
            at = (int(places[place + r]) + v * apart) * LANES
            out[at : at + LANES] = total[v]


def add_outer_products(
    sums: Array,
    start: int,
    step: int,
    image: Array,
    image_start: int,
    block: int,
    grad: Array,
    grad_start: int,
    counts: tuple[int, int, int, int],
    image_steps: tuple[int, int, int, int],
    grad_steps: tuple[int, int, int, int],
    vectors: int,
) -> None:
    """Add sums of products of `vectors` blocks of LANES channels of `image`, 1 or PANEL, with ROWS channels of `grad`:
    for each row r, vector v and lane

        sums[(start + (r*PANEL + v)*step)*LANES + lane] += sum over four indices i, i[axis] in [0, counts[axis]), of

            image[image_start + v*block + dot(i, image_steps) + lane] * grad[grad_start + dot(i, grad_steps) + r]

    sums, image and grad have one dtype, float32 or float64.
    """
    total = np.zeros((ROWS, vectors, LANES), sums.dtype)
    for index in np.ndindex(*counts):
        x = image_start + int(np.dot(index, image_steps))
        g = grad_start + int(np.dot(index, grad_steps))
        seen = np.array([image[x + v * block : x + v * block + LANES] for v in range(vectors)])
        with np.errstate(all="ignore"):
            total += grad[g : g + ROWS][:, None, None] * seen
    for r in range(ROWS):
        for v in range(vectors):
            at = (start + (r * PANEL + v) * step) * LANES
            with np.errstate(all="ignore"):
                sums[at : at + LANES] += total[r, v]


def add_dot_products(
    sums: Array,
    start: int,
    a: Array,
    a_starts: Array,
    a_start: int,
    b: Array,
    b_starts: Array,
    b_start: int,
    vectors: int,
) -> None:
    """Add products of ROWS rows with COLUMNS rows, which are summed over the rows: for each row r, column c and lane

        sums[(start + r*COLUMNS + c)*LANES + lane] += sum over t in [0, vectors) of

            a[a_starts[a_start + r] + t*LANES + lane] * b[b_starts[b_start + c] + t*LANES + lane]

    sums, a and b have one dtype, float32 or float64.
    """
    for r in range(ROWS):
        for c in range(COLUMNS):
            total = np.zeros(LANES, sums.dtype)
            for t in range(0, vectors * LANES, LANES):
                at_a, at_b = int(a_starts[a_start + r]) + t, int(b_starts[b_start + c]) + t
                with np.errstate(all="ignore"):
                    total += a[at_a : at_a + LANES] * b[at_b : at_b + LANES]
            at = (start + r * COLUMNS + c) * LANES
            with np.errstate(all="ignore"):
                sums[at : at + LANES] += total


def largest(numbers: Array, start: int, count: int) -> Any:
    """The largest of numbers[start:start + count] that is not NaN, or -infinity; `count` is a multiple of LANES."""
    return np.fmax.reduce(numbers[start : start + count], initial=-np.inf)


def correlate(
    a: Array,
    b: Array,
    a_places: Array,
    b_places: Array,
    terms: int,
    rows: int,
    columns: int,
    b_row: int,
    b_step: int,
    out: Array,
    place: int,
    out_row: int,
    out_step: int,
) -> None:
    """Sums of products for each lane: out[(place + i*out_row + j*out_step)*LANES + lane] = sum over t in [0, terms) of

        a[a_places[t]*LANES + lane] * b[(b_places[t] + i*b_row + j*b_step)*LANES + lane]

    in the order of t, for i in [0, rows) and j in [0, columns). a, b and out have one dtype.
    """
    for i in range(rows):
        for j in range(columns):
            total = np.zeros(LANES, out.dtype)
            for t in range(terms):
                at_a, at_b = int(a_places[t]) * LANES, (int(b_places[t]) + i * b_row + j * b_step) * LANES
                with np.errstate(all="ignore"):
                    total += a[at_a : at_a + LANES] * b[at_b : at_b + LANES]
            at = (place + i * out_row + j * out_step) * LANES
            out[at : at + LANES] = total


def add_products(
    sums: Array,
    a: Array,
    b: Array,
    a_start: int,
    b_starts: tuple[int, int, int],
    rows: int,
    columns: int,
    a_row: int,
    b_row: int,
    step: int,
) -> None:
    """Accumulate three sums of products for each lane: sums[t*LANES + lane] += sum over i and j of

        a[(a_start + i*a_row + j)*LANES + lane] * b[(b_starts[t] + i*b_row + j*step)*LANES + lane]

    for i in [0, rows) and j in [0, columns), with a partial sum per row. sums, a and b have one dtype.
    """
    for t in range(3):
        for i in range(rows):
            total = np.zeros(LANES, sums.dtype)
            for j in range(columns):
                at_a = (a_start + i * a_row + j) * LANES
                at_b = (b_starts[t] + i * b_row + j * step) * LANES
                with np.errstate(all="ignore"):
                    total += a[at_a : at_a + LANES] * b[at_b : at_b + LANES]
            with np.errstate(all="ignore"):
                sums[t * LANES : (t + 1) * LANES] += total


def largest_by_lane(numbers: Array, count: int, out: Array) -> None:
    """For each lane, out[lane] = the largest of numbers[k*LANES + lane], k in [0, count), not NaN, or -infinity."""
    out[:LANES] = np.fmax.reduce(numbers[: count * LANES].reshape(count, LANES), axis=0, initial=-np.inf)


def sum_by_lane(numbers: Array, count: int, out: Array) -> None:
    """For each lane, out[lane] = sum of numbers[k*LANES + lane] over k in [0, count), in this order."""
    out[:LANES] = 0
    for at in range(0, count * LANES, LANES):
        with np.errstate(all="ignore"):
            out[:LANES] += numbers[at : at + LANES]


def subtract_by_lane(numbers: Array, count: int, values: Array) -> None:
    """For each lane, numbers[k*LANES + lane] -= values[lane] for k in [0, count)."""
    for at in range(0, count * LANES, LANES):
        with np.errstate(all="ignore"):
            numbers[at : at + LANES] -= values[:LANES]


def divide_by_lane(numbers: Array, count: int, values: Array) -> None:
    """For each lane, numbers[k*LANES + lane] /= values[lane] for k in [0, count)."""
    for at in range(0, count * LANES, LANES):
        with np.errstate(all="ignore"):
            numbers[at : at + LANES] /= values[:LANES]
