"""GridSampler2D: samples of an image at the points of a grid."""

from __future__ import annotations

from tests.ops._shared.grid_sampling import Family

RECORD = Family(2, gradient=False).record()
