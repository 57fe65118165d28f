"""Interleaved channels at places that are listed: NumPy arrays here, SIMD registers in compiled code.

Element [place, lane] of a table is that of channel `lane`, LANES of them for each place. Weights and products are
float64. `onnx_ops.runtime.places` has the compiled forms.
"""

from __future__ import annotations

import numpy as np

from onnx_ops.loops.memory import LANES
from onnx_ops.loops.primitives import Array


def _listed(start: int, apart: int, terms: int) -> range:
    return range(start, start + terms * apart, apart)


def _row(table: Array, place: int) -> slice:
    return slice(int(place) * LANES, (int(place) + 1) * LANES)


def add_from_places(
    table: Array, places: Array, weights: Array, start: int, apart: int, terms: int, out: Array, place: int
) -> None:
    """out[place, lane] = sum of weights[t] * table[places[t], lane] over `terms` indices t, `apart` from `start` on.

    table and out are float32 or float64; summed in float64.
    """
    total = np.zeros(LANES)
    with np.errstate(all="ignore"):
        for t in _listed(start, apart, terms):
            total += weights[t] * table[_row(table, places[t])].astype(np.float64)
        out[_row(out, place)] = total


def add_to_places(
    sums: Array, places: Array, weights: Array, start: int, apart: int, terms: int, row: Array, place: int
) -> None:
    """sums[places[t], lane] += weights[t] * row[place, lane] for `terms` indices t, `apart` from `start` on.

    sums is float64, row float32 or float64.
    """
    own = row[_row(row, place)].astype(np.float64)
    with np.errstate(all="ignore"):
        for t in _listed(start, apart, terms):
            sums[_row(sums, places[t])] += weights[t] * own


def multiply_with_places(
    table: Array, places: Array, start: int, apart: int, terms: int, row: Array, place: int, products: Array
) -> None:
    """products[t] += sum of table[places[t], lane] * row[place, lane] for `terms` indices t, `apart` from `start` on.

    table and row are float32 or float64.
    """
    own = row[_row(row, place)].astype(np.float64)
    with np.errstate(all="ignore"):
        for t in _listed(start, apart, terms):
            products[t] += np.sum(table[_row(table, places[t])].astype(np.float64) * own)
