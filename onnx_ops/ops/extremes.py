"""Ranges of fast float32 arithmetic; loops recompute a block that has an element outside of them."""

from __future__ import annotations

import numpy as np

BLOCK = 512
"""Elements per block that is checked."""
SUM_BLOCK = 1024
"""Elements per block whose terms are summed in float32."""
CACHED_BLOCK = 256
"""Elements per block that is read twice, the second time from cache, while the next block is prefetched."""
EXP_LIMIT = np.float32(87)
"""exp(x) is in the normal range of float32 for abs(x) <= EXP_LIMIT."""
INFINITE, LEAST_NORMAL = np.float32(np.inf), np.float32(2.0**-126)
