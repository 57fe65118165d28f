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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from onnx_ops.core.errors import KernelsUnavailableError, is_of_onnxruntime
from onnx_ops.core.op import Op
from onnx_ops.linking.origins import Origins
from onnx_ops.runtime.declarations import Kernels
from onnx_ops.runtime.heap_record import Functions
from onnx_ops.runtime.process import STATE

VARIABLE = "ONNX_OPS_LIBRARY"
FOLDER = Path(__file__).parents[1] / "library" / "lib"
SUFFIXES = {"darwin": ".dylib", "win32": ".dll"}


def library_name() -> str:
    """The usual file name of a library on this system."""
    return f"{'' if sys.platform == 'win32' else 'lib'}onnx_ops_aclnn{SUFFIXES.get(sys.platform, '.so')}"


OWN = str(FOLDER / library_name())
"""Path of the library in this package, as text: several lookups in each session."""


class Interface(ctypes.Structure):
    """What a library has for this package, beside the function that onnxruntime calls."""

    NAME, VERSION = "onnx_ops_library", 2
    _fields_ = [
        ("version", ctypes.c_int64),
        ("level", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("has_kernel", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)),
        ("choose_kernels", ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)),
        ("name_nodes", ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)),
        ("set_region", ctypes.CFUNCTYPE(None, ctypes.c_int64)),
        ("heap_functions", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


@dataclass(frozen=True)
class Library:
    """A library of kernels, with the functions of `runtime.registration` that sessions call.

    Attributes:
        path: of the file.
    """

    path: Path

    def register(
        self, options: ort.SessionOptions | None, ops: Iterable[Op] = (), kernels: Kernels | None = None
    ) -> ort.SessionOptions:
        """As `registration.register`; a session spends 10 µs on each kernel that is registered with its options.

        Raises:
            KernelsUnavailableError: it cannot be loaded, or was built by a version of this package that differs in
                what it expects of a library.
        """
        self._interface()
        with STATE.registering:
            registered: weakref.WeakSet[ort.SessionOptions] = STATE.shared.setdefault("with_library", weakref.WeakSet())
            options = ort.SessionOptions() if options is None else options
            if options not in registered:
                every = [-1, None]
                chosen = every if kernels is None else [len(kernels), _strings(kernels)]
                try:
                    with self._set("choose_kernels", chosen, every):
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

    def has(self, kernels: Iterable[str]) -> bool:
        """Whether it has all kernels of these names.

        Raises:
            KernelsUnavailableError: as for `register`.
        """
        interface = self._interface()
        return all(interface.has_kernel(kernel.encode()) for kernel in kernels)

    def level(self) -> str | None:
        """The level of processors whose code it has selected; None if it could not be registered."""
        try:
            found: bytes | None = self._interface().level()
        except KernelsUnavailableError:
            return None
        return None if found is None else found.decode()

    @contextlib.contextmanager
    def naming(self, label_of: Origins) -> Iterator[None]:
        """Within this context, sessions created on this thread describe nodes by the names of their outputs."""
        labels = label_of.labels
        with self._set("name_nodes", [len(labels), _strings(labels), _strings(labels.values())], [0, None, None]):
            yield

    def reserving(self, size: int) -> contextlib.AbstractContextManager[None]:
        """As `registration.reserving`."""
        return self._set("set_region", [size], [0])

    def heap_functions(self) -> Functions:
        """As `registration.heap_functions`."""
        found = (ctypes.c_int64 * len(Functions._fields))()
        self._interface().heap_functions(found)
        return Functions(*found)

    @contextlib.contextmanager
    def _set(self, name: str, values: Sequence[object], unset: Sequence[object]) -> Iterator[None]:
        """Within this context, the library has values for sessions created on this thread; `register` may refuse it."""
        try:
            function = getattr(self._interface(), name)
        except KernelsUnavailableError:
            yield
            return
        function(*values)
        try:
            yield
        finally:
            function(*unset)

    def _interface(self) -> Interface:
        """What it has for this package.

        Raises:
            KernelsUnavailableError: as for `register`.
        """
        try:
            found = Interface.in_dll(ctypes.CDLL(str(self.path)), Interface.NAME)
        except OSError as error:
            raise KernelsUnavailableError(f"the library {self.path} cannot be loaded: {error}") from error
        except ValueError:  # it has no such symbol
            found = Interface()
        if found.version != Interface.VERSION:
            raise KernelsUnavailableError(
                f"the library {self.path} is of another version of onnx_ops (its interface is {found.version}, expected"
                f" {Interface.VERSION}); `onnx-ops build-library` builds one of this version"
            )
        return found


def _strings(texts: Collection[str]) -> Any:
    """An array of C strings."""
    return (ctypes.c_char_p * len(texts))(*(text.encode(errors="surrogateescape") for text in texts))


@contextlib.contextmanager
def disregarded() -> Iterator[None]:
    """Within this context, sessions of this process have kernels that are compiled here, also if there is a library."""
    chosen = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ""
    try:
        yield
    finally:
        if chosen is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = chosen


def library() -> Library | None:
    """The library that sessions register; None if kernels are compiled."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Library(Path(chosen).absolute()) if chosen else None
    return Library(Path(OWN)) if os.path.exists(OWN) else None
