"""What loops in float32 look for: where an element is extreme, its span is computed again with more care."""

from __future__ import annotations

import numpy as np

SPAN = 512
"""Elements that are looked at together."""
SHORT_SPAN = 1024
"""Elements whose terms are added up in float32."""
CACHED_SPAN = 256
"""Elements that are read twice, the second time from the caches, while as many that follow come from memory."""
NEAR = np.float32(87)
"""To this power, and to minus this power, e is a normal float32 number."""
INFINITE, LEAST_NORMAL = np.float32(np.inf), np.float32(2.0**-126)
