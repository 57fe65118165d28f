"""Numba's code generation for functions whose code goes to files: no machine code but of what is written."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from llvmlite import binding
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target


class Library(JITCodeLibrary):  # type: ignore[misc]
    """The optimized code of a function and of those that it calls, which is written to files, never called from here.

    Numba generates machine code of each function that another one calls, and has a copy of: a fifth of the time. Here
    that is done for the outermost function alone, by `Codegen.emitted`.
    """

    def _finalize_specific(self) -> None:
        """Does nothing: no machine code is generated, nor linked."""

    def get_pointer_to_function(self, name: str) -> int:
        """The address of a function, which has none."""
        return 0

    @property
    def module(self) -> binding.ModuleRef:
        """The code, for LLVM."""
        self._ensure_finalized()
        return self._final_module


class Codegen(JITCPUCodegen):  # type: ignore[misc]
    """Compiles functions to libraries that are not loaded, with registers of 512 bits where the processor has them.

    For Intel's processors LLVM prefers 256 bits, as the first ones with AVX-512 lowered their clock rate for more. The
    tiles of products use 512 in any case, and an attention of 64 rows of 8 numbers, mostly exp, takes 1.6 times as long
    with 256.
    """

    _library_class = Library

    def _customize_tm_options(self, options: dict[str, Any]) -> None:
        super()._customize_tm_options(options)
        if "+avx512f" in options["features"].split(","):
            options["features"] += ",-prefer-256-bit"

    def _add_module(self, module: binding.ModuleRef) -> None:
        """Does nothing: LLVM's engine would generate machine code of it."""

    def set_env(self, env_name: str, env: Any) -> None:
        """Does nothing: the code has no address at which Python's environment of a function could be noted."""

    def emitted(self, module: binding.ModuleRef, symbol: str) -> bytes:
        """The object code of a module, in which no other function than one is visible.

        Numba names functions by their signatures and a number of the process. Those of another process may have the
        same names, and `linked` would call one for the other: as halves_at and bfloats_at, arguments that are
        intrinsics have one type in the name.
        """
        hide_all_but(module, symbol)
        module.verify()
        return bytes(self._tm.emit_object(module))


@contextlib.contextmanager
def selected() -> Iterator[Codegen]:
    """Let Numba compile by `Codegen`; what a program compiles by Numba itself is not affected."""
    context = cpu_target.target_context
    with global_compiler_lock:
        own = context._internal_codegen
        context._internal_codegen = _codegen()
        try:
            yield context._internal_codegen
        finally:
            context._internal_codegen = own


@functools.cache
def _codegen() -> Codegen:
    return Codegen("onnx_ops")


def hide_all_but(module: binding.ModuleRef, symbol: str) -> None:
    """Make what a module defines internal to it, but for one function."""
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != symbol:
            value.linkage = "internal"
