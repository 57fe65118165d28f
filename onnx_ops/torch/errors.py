"""What capturing raises."""

from __future__ import annotations


class CaptureError(ValueError):
    """A model, loss or optimizer that cannot become a graph; the text says what stands in the way and what to do."""
