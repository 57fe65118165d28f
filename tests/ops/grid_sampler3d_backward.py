"""GridSampler3DBackward: gradients of samples of a volume at the points of a grid."""

from __future__ import annotations

from tests.ops._shared.grid_sampling import Family

RECORD = Family(3, gradient=True).record()
