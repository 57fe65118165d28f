"""The error of what cannot be translated."""

from onnx_ops.core.errors import Error


class TranslationError(Error, ValueError):
    """Python that the translation to C does not know."""
