"""The library of kernels that were compiled ahead of time, in place of those that Numba compiles when they are needed.

It is the file in the folder `library/lib` of the package, which a wheel for one platform has, or the one that the
environment variable ONNX_OPS_LIBRARY names; if that is empty, kernels are compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnxruntime as ort

from onnx_ops.core.errors import KernelsUnavailableError, is_of_onnxruntime
from onnx_ops.runtime.process import STATE

VARIABLE = "ONNX_OPS_LIBRARY"
FOLDER = Path(__file__).parents[1] / "library" / "lib"
SUFFIXES = {"darwin": ".dylib", "win32": ".dll"}


def library_name() -> str:
    """The usual file name of a library on this system."""
    return f"{'' if sys.platform == 'win32' else 'lib'}onnx_ops_aclnn{SUFFIXES.get(sys.platform, '.so')}"


def library() -> Path | None:
    """The path of the library that sessions register; None if kernels are compiled."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(chosen).absolute() if chosen else None
    own = FOLDER / library_name()
    return own if own.exists() else None


def register(options: ort.SessionOptions | None, path: Path) -> ort.SessionOptions:
    """SessionOptions, new ones by default, with a library registered once.

    Raises:
        KernelsUnavailableError: onnxruntime cannot load it.
    """
    with STATE.registering:
        registered: weakref.WeakSet[ort.SessionOptions] = STATE.settled.setdefault("with_library", weakref.WeakSet())
        options = ort.SessionOptions() if options is None else options
        if options not in registered:
            try:
                options.register_custom_ops_library(str(path))
            except Exception as error:
                if not is_of_onnxruntime(error):
                    raise
                raise KernelsUnavailableError(f"onnxruntime cannot load the library {path}: {error}") from error
            registered.add(options)
        return options


def is_registered(path: Path) -> bool:
    """Whether a library is loaded, with code for this processor."""
    return level(path) is not None


def level(path: Path) -> str | None:
    """The level of processors whose code a library has selected; None if it could not be registered."""
    try:
        function = ctypes.CDLL(str(path)).onnx_ops_level
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_char_p
    found: bytes | None = function()
    return None if found is None else found.decode()


@contextlib.contextmanager
def naming(path: Path, labels: Mapping[str, str]) -> Iterator[None]:
    """Within this context, sessions created on this thread describe nodes by the names of their outputs.

    Args:
        path: of the library.
        labels: description of the node by each output.
    """
    try:
        name_nodes = ctypes.CDLL(str(path)).onnx_ops_name_nodes
    except (OSError, AttributeError):  # `register` says why
        yield
        return
    name_nodes.restype, name_nodes.argtypes = None, [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    texts = [[text.encode(errors="surrogateescape") for text in part] for part in (labels, labels.values())]
    arrays = [(ctypes.c_char_p * len(part))(*part) for part in texts]
    name_nodes(len(labels), *arrays)
    try:
        yield
    finally:
        name_nodes(0, None, None)
