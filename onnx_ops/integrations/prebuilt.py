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
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from onnx_ops.core.errors import KernelsUnavailableError, is_of_onnxruntime
from onnx_ops.core.op import Op
from onnx_ops.linking.origins import Origins
from onnx_ops.runtime.process import STATE

VARIABLE = "ONNX_OPS_LIBRARY"
FOLDER = Path(__file__).parents[1] / "library" / "lib"
SUFFIXES = {"darwin": ".dylib", "win32": ".dll"}


def library_name() -> str:
    """The usual file name of a library on this system."""
    return f"{'' if sys.platform == 'win32' else 'lib'}onnx_ops_aclnn{SUFFIXES.get(sys.platform, '.so')}"


@dataclass(frozen=True)
class Library:
    """A library of kernels, with the functions of `runtime.host` that sessions call.

    Attributes:
        path: of the file.
    """

    path: Path

    def register(
        self, options: ort.SessionOptions | None, ops: Iterable[Op] = (), kernels: Collection[str] | None = None
    ) -> ort.SessionOptions:
        """SessionOptions, new ones by default, with the library registered once, whatever the ops and kernels.

        Raises:
            KernelsUnavailableError: onnxruntime cannot load it.
        """
        with STATE.registering:
            registered: weakref.WeakSet[ort.SessionOptions] = STATE.settled.setdefault(
                "with_library", weakref.WeakSet()
            )
            options = ort.SessionOptions() if options is None else options
            if options not in registered:
                try:
                    options.register_custom_ops_library(str(self.path))
                except Exception as error:
                    if not is_of_onnxruntime(error):
                        raise
                    problem = f"onnxruntime cannot load the library {self.path}: {error}"
                    raise KernelsUnavailableError(problem) from error
                registered.add(options)
            return options

    def is_registered(self) -> bool:
        """Whether the library is loaded, with code for this processor."""
        return self.level() is not None

    def level(self) -> str | None:
        """The level of processors whose code it has selected; None if it could not be registered."""
        function = self._function("onnx_ops_level")
        if function is None:
            return None
        function.restype = ctypes.c_char_p
        found: bytes | None = function()
        return None if found is None else found.decode()

    @contextlib.contextmanager
    def naming(self, label_of: Origins) -> Iterator[None]:
        """Within this context, sessions created on this thread describe nodes by the names of their outputs."""
        name_nodes = self._function("onnx_ops_name_nodes")
        if name_nodes is None:  # `register` says why
            yield
            return
        name_nodes.restype, name_nodes.argtypes = None, [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
        labels = label_of.labels
        texts = [[text.encode(errors="surrogateescape") for text in part] for part in (labels, labels.values())]
        arrays = [(ctypes.c_char_p * len(part))(*part) for part in texts]
        name_nodes(len(labels), *arrays)
        try:
            yield
        finally:
            name_nodes(0, None, None)

    def reserving(self, size: int) -> contextlib.AbstractContextManager[None]:
        """The memory arena of a session with the library chooses its regions, whatever the size."""
        return contextlib.nullcontext()

    def _function(self, name: str) -> Any:
        """A function that it exports; None if it cannot be loaded, or has none of that name."""
        try:
            return getattr(ctypes.CDLL(str(self.path)), name)
        except (OSError, AttributeError):
            return None


def library() -> Library | None:
    """The library that sessions register; None if kernels are compiled."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Library(Path(chosen).absolute()) if chosen else None
    own = FOLDER / library_name()
    return Library(own) if own.exists() else None
