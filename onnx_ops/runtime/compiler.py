"""Compiles plain functions to native code when they are first needed, and keeps the code on disk.

Numba's own disk cache looks at nothing but the file of the function itself, and a kernel is made of several; here the
file of the function, all that compiled code can be made of besides (`runtime`, and what ops share), and the versions of
what compiles them are part of an entry's name, and nothing that depends on the user. Numba also believes whatever it
finds in its files; here an entry begins with a checksum of all the rest, and one that does not match is compiled anew.
The checksum is for disks that were full; who may have written an entry is looked at in `cache`.

The code lies in the user's cache directory, or in the one that ONNX_OPS_CACHE_DIR names. A directory that can be read
but not written serves too; what it lacks is compiled anew in each process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import caching, serialize
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target

from onnx_ops.runtime import cache, elementary, lanes, memory, native, progress, vectors
from onnx_ops.runtime.process import STATE, keep

TAUGHT_BY = (native, memory, elementary, lanes, vectors)
"""What teaches Numba the functions of `primitives`, by being imported."""
PACKAGE = Path(__file__).parents[1]
SHARED = ("core/*.py", "loops/*.py", "ops/*.py", "runtime/**/*.py")
DIGEST = hashlib.sha256
DIGEST_SIZE = DIGEST().digest_size
Function = tuple[Callable[..., Any], Any]
"""A Python function, and the signature (a Numba type) that it is compiled with."""


# --- the cache on disk -------------------------------------------------------------------------------------------


def sources(file: str) -> list[Path]:
    """The files that the code of a function in a file can depend on: those it shares with all ops, and its folder."""
    shared = (path for pattern in SHARED for path in PACKAGE.glob(pattern))
    return sorted({*shared, *Path(file).parent.glob("*.py")})


@functools.cache
def _source_stamp(file: str) -> str:
    versions = (sys.version, np.__version__, numba.__version__, llvmlite.__version__)
    digest = DIGEST(" ".join(versions).encode())
    for path in sources(file):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def entry_name(function: Function) -> str:
    """The name of the file that holds a compiled function; OSError where its sources cannot be read."""
    code, signature = function[0].__code__, function[1]
    parts = (
        _source_stamp(code.co_filename),
        code.co_filename.removeprefix(str(PACKAGE)),
        code.co_firstlineno,
        signature,
        cpu_target.target_context.codegen().magic_tuple(),  # the processor, down to its vector instructions
    )
    name = DIGEST("\n".join(map(str, parts)).encode()).hexdigest()[:32]
    return f"{function[0].__name__}-{name}.kernel"


def is_kept(function: Function) -> bool:
    """Whether a compiled function is in the cache, and whole."""
    return _payload(function) is not None


def _payload(function: Function) -> bytes | None:
    try:
        content = cache.read(entry_name(function))
    except OSError:
        return None
    digest, payload = content[:DIGEST_SIZE], content[DIGEST_SIZE:]
    return payload if DIGEST(payload).digest() == digest else None


class _Cache(caching.NullCache):
    """The compiled code of one function, one file for each signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        payload = _payload((self._function, signature))
        return None if payload is None else CompileResult._rebuild(target_context, *pickle.loads(payload))

    def save_overload(self, signature: Any, result: Any) -> None:
        try:
            payload = serialize.dumps(result._reduce())
            with cache.written(entry_name((self._function, signature))) as file:
                file.write(DIGEST(payload).digest())
                file.write(payload)
        except OSError as error:  # costs the next process a compilation, not this one its kernel
            cache.note_problem(error)


# --- compiling ---------------------------------------------------------------------------------------------------

compiled: dict[Function, Any] = {}
"""What this process has compiled or found on disk: Numba's CFunc, by function and signature."""

_wanted: ContextVar[dict[Function, None] | None] = ContextVar("wanted", default=None)


@contextlib.contextmanager
def listing() -> Iterator[dict[Function, None]]:
    """Compile nothing in this thread: what would be compiled is listed, as keys in order, and every address is 0."""
    wanted: dict[Function, None] = {}
    token = _wanted.set(wanted)
    try:
        yield wanted
    finally:
        _wanted.reset(token)


def compile_native(function: Callable[..., Any], signature: Any) -> int:
    """Address of a C function with the signature (a Numba type) that does what the Python function does.

    error_model: division by zero gives what IEEE says, not an exception. contract: a product and a sum may be fused
    into one rounding; no other liberty is taken, for NaN and infinities must survive.
    """
    if (wanted := _wanted.get()) is not None:
        wanted[function, signature] = None
        return 0
    with STATE.busy:
        if (function, signature) not in compiled:
            native.install()
            callback: Any = CFunc(
                function,
                (signature.args, signature.return_type),
                locals={},
                options={"error_model": "numpy", "fastmath": {"contract"}, "boundscheck": False, "nopython": True},
            )
            callback._cache = _Cache(function)
            start = time.monotonic()
            callback.compile()
            if not callback.cache_hits:
                progress.spent(time.monotonic() - start)
            keep(callback)
            compiled[function, signature] = callback
        return int(compiled[function, signature].address)
