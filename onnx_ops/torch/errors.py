"""What capturing raises."""

from __future__ import annotations

from onnx_ops.core.errors import Error


class CaptureError(Error, ValueError):
    """A model, loss or optimizer that cannot become a graph; the text says what stands in the way and what to do."""
