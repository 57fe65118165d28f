"""The matplotlib style of the trainings' figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.figure import Figure

# Okabe and Ito, 2008, "Color Universal Design": distinguishable with color vision deficiencies.
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
GREY = "#767676"

WIDTH = 9.0
"""Width of a figure in inches. At the 900 pixels of an HTML page, a font size of 10 points is 14 pixels."""
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
    """A figure, which is written to `path` at the end of the block; `height` is in inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure
        figure.savefig(path, dpi=DPI)


def in_percent(axis: Any, whole: float = 1.0) -> None:
    """Format the ticks of an axis as percentages of `whole`, with as many digits as necessary."""
    # Ticks are sums such as 0.30000000000000004; + 0.0 avoids "-0%".
    axis.set_major_formatter(lambda value, _: f"{round(100 * value / whole, 9) + 0.0:g}%")


def show(axes: Any, image: np.ndarray, **options: Any) -> None:
    """Draw an image (H, W) or (H, W, 3) without axes; options as of matplotlib's imshow."""
    axes.imshow(image, **options)
    axes.set_axis_off()


def mosaic(tiles: np.ndarray, columns: int) -> np.ndarray:
    """Arrange tiles (N, H, W) in one image, `columns` in each row, each scaled to [0, 1] with a white border."""
    least, largest = (extreme(tiles, axis=(1, 2), keepdims=True) for extreme in (np.min, np.max))
    shades = np.pad((tiles - least) / (largest - least), ((0, 0), (1, 1), (1, 1)), constant_values=1.0)
    _, height, width = shades.shape
    return shades.reshape(-1, columns, height, width).swapaxes(1, 2).reshape(-1, columns * width)
