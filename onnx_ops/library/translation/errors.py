"""The error for Python code that cannot be translated."""

from onnx_ops.core.errors import Error


class TranslationError(Error, ValueError):
    """Python code that cannot be translated to C."""
