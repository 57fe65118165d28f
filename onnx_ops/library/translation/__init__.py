"""Translates the checks of ops, shape inference and the choice of kernels from Python to C.

The functions are read as syntax trees. Values of modules, classes and closures are constants; functions that are called
are translated too. Python that is not supported is refused with its line, so that the C code computes the same as the
Python code, or does not exist. Two differences, on which the checks do not depend: sets are ordered, and generators are
evaluated eagerly, except in `any`, `all` and `next`.

The operations of the language are functions in C: native/values.c has values, arithmetic and containers, native/text.c
`str` and `repr`, native/builtins.c builtins and methods, native/arrays.c arrays of NumPy.
"""

from onnx_ops.library.translation.errors import TranslationError
from onnx_ops.library.translation.source import source

__all__ = ["TranslationError", "source"]
