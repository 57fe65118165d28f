"""The error of captures."""

from __future__ import annotations

from onnx_ops.core.errors import Error


class CaptureError(Error, ValueError):
    """A model, loss or optimizer that cannot be captured; the message names the reason and what to do."""


class DifferenceError(CaptureError):
    """Results of a captured graph that are not PyTorch's."""


class UnexplainedError(CaptureError):
    """An error that code or PyTorch has raised in a trace, of which no reason and remedy are known."""
