"""The look that the pictures of all trainings have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.figure import Figure

# The colours of Okabe and Ito (2008), "Color Universal Design", which the colour-blind tell apart.
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
GREY = "#767676"

WIDTH = 9.0
"""Of a picture, in inches. At the width of 900 pixels that pages give it, text of 10 points is 14 pixels high."""
DPI = 160

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.titlesize": 12,
    "font.size": 10,
    "grid.color": "#E4E4E4",
    "image.cmap": "gray",
    "image.interpolation": "nearest",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


@contextmanager
def picture(path: Path, height: float) -> Iterator[Figure]:
    """A figure to draw on, so many inches high, which is written to the path afterwards."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure
        figure.savefig(path, dpi=DPI)


def in_percent(axis: Any, whole: float = 1.0) -> None:
    """Label the ticks of an axis as shares of the whole, each with the digits that it needs."""
    # Rounded, for ticks are sums of steps: 0.30000000000000004; and no "-0%".
    axis.set_major_formatter(lambda value, _: f"{round(100 * value / whole, 9) + 0.0:g}%")


def show(axes: Any, image: np.ndarray, **options: Any) -> None:
    """Draw an image (H, W) or (H, W, 3) without ticks and frame; options as of matplotlib's imshow."""
    axes.imshow(image, **options)
    axes.set_axis_off()


def mosaic(tiles: np.ndarray, columns: int) -> np.ndarray:
    """Tiles (N, H, W), so many side by side, each in shades from its least to its largest value, white between them."""
    least, largest = (extreme(tiles, axis=(1, 2), keepdims=True) for extreme in (np.min, np.max))
    shades = np.pad((tiles - least) / (largest - least), ((0, 0), (1, 1), (1, 1)), constant_values=1.0)
    _, height, width = shades.shape
    return shades.reshape(-1, columns, height, width).swapaxes(1, 2).reshape(-1, columns * width)
