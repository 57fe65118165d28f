"""Compiles plain functions to native code when they are first needed, and keeps the code on disk.

Numba's own disk cache looks at nothing but the file of the function itself, and a kernel is made of several; here the
file of the function, all that compiled code can be made of besides (`runtime`, and what ops share), and the versions of
what compiles them are part of what makes an entry fresh. The code lies in
the user's cache directory, or in the one that ONNX_OPS_CACHE_DIR names; where that cannot be written, kernels are
compiled anew in each process.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
import platformdirs
from numba.core import caching
from numba.core.ccallback import CFunc

import onnx_ops

_LOCK = threading.RLock()


@functools.cache
def _source_stamp(file: str) -> str:
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    root = Path(onnx_ops.__file__).parent
    shared = (root / "roles.py", *root.glob("runtime/*.py"), *root.glob("ops/_*.py"))
    for path in sorted({*shared, Path(file)}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def wanted_cache_directory() -> Path:
    """Where compiled kernels are to be kept."""
    chosen = os.environ.get("ONNX_OPS_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("onnx_ops")


@functools.cache
def cache_directory() -> Path | None:
    """Where compiled kernels are kept; None if it cannot be written."""
    path = wanted_cache_directory()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return path if os.access(path, os.W_OK) else None


class _Locator(caching._CacheLocator):
    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._py_file = py_file
        self._function = py_func

    def get_cache_path(self) -> str:
        return str(cache_directory())

    def get_source_stamp(self) -> str:
        return _source_stamp(self._py_file)

    def get_disambiguator(self) -> str:
        # Two installations with different sources side by side must not throw out each other's entries.
        return f"{self._function.__code__.co_firstlineno}-{_source_stamp(self._py_file)}"

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func, py_file)


class _CacheImpl(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _Cache(caching.FunctionCache):
    _impl_class = _CacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a file that another hand, or a failing disk, has spoilt; pickle may raise anything
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception:  # a full disk or a spoilt index costs the next process a compilation, not this one its kernel
            self.disable()


@functools.cache
def compile_native(function: Callable[..., Any], signature: Any) -> int:
    """Address of a C function with the signature (a Numba type) that does what the Python function does.

    error_model: division by zero gives what IEEE says, not an exception. contract: a product and a sum may be fused
    into one rounding; no other liberty is taken, for NaN and infinities must survive.
    """
    from onnx_ops.runtime import native

    native.install()
    arguments, result = signature.args, signature.return_type
    with _LOCK:
        compiled: Any = CFunc(
            function,
            (arguments, result),
            locals={},
            options={"error_model": "numpy", "fastmath": {"contract"}, "boundscheck": False, "nopython": True},
        )
        if cache_directory() is not None:
            compiled._cache = _Cache(function)
        compiled.compile()
        _ALIVE.append(compiled)
    return int(compiled.address)


_ALIVE: list[CFunc] = []
