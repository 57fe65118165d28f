"""Functions as the runtime compiles them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numba import types

from onnx_ops.runtime.compiler import compile_native


def natively(function: Callable[..., None], arguments: int = 5) -> Any:
    """The compiled form of a function of so many whole numbers."""
    address = compile_native(function, types.void(*[types.int64] * arguments))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)(address)
