"""Logs the phases of a capture."""

from __future__ import annotations

import logging
import time

LOGGER = logging.getLogger("onnx_ops.torch")


class Progress:
    """Logs each phase of a capture when it ends, at level INFO, with its duration."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def ended(self, phase: str) -> None:
        """Log the phase that ends now; the next one begins."""
        now = time.perf_counter()
        LOGGER.info("%s: %.1f s", phase, now - self._since)
        self._since = now
