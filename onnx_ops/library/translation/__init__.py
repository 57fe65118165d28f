"""Translates the checks of ops, shape inference and the choice of kernels from Python to C.

The functions are read as syntax trees. What they find in modules, classes and closures is constant; what they call is
translated as well. Whatever the translation does not know is refused with the line, so that the C code does what the
Python does, or there is none. Two things differ in ways that the checks do not notice: sets keep their order, and
generators are evaluated at once, except in `any`, `all` and `next`.

The functions of native/values.c are the operations of the language.
"""

from onnx_ops.library.translation.errors import TranslationError
from onnx_ops.library.translation.source import source

__all__ = ["TranslationError", "source"]
