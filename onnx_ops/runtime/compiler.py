"""Compiles Python functions to native code when they are first needed, and caches the code on disk.

Numba's own cache depends on the file of the function only, but kernels call functions of several files. Here the name
of an entry is a hash of all sources that compiled code may contain (the folder of the function, `core`, `loops`, most
of `runtime`) and of the versions of Python, NumPy, Numba and llvmlite; it does not depend on the user. An entry begins
with a checksum, for files truncated by a full disk; permissions are checked by `cache`.

The cache is the user's cache directory, or the one given by ONNX_OPS_CACHE_DIR. If it is not writable, functions that
it does not have are compiled in each process.
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
from numba import njit, types
from numba.core import caching, serialize
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.cpu import CPUContext
from numba.core.registry import cpu_target
from numba.core.typing import Signature
from numba.np.numpy_support import as_dtype

from onnx_ops.runtime import cache, elementary, lanes, memory, native, progress, target, tiles, vectors
from onnx_ops.runtime.process import STATE, keep

IMPLEMENTATIONS = (native, memory, elementary, lanes, tiles, vectors)
"""Modules that implement the functions of `primitives` for Numba when they are imported."""
PACKAGE = Path(__file__).parents[1]
SHARED = ("core/*.py", "loops/*.py", "ops/*.py", "runtime/**/*.py")
NOT_COMPILED = frozenset(
    f"{name}.py" for name in ("ahead", "cache", "heap", "process", "progress", "registration", "requests", "worker")
)
"""Files of `runtime` that hold no code of kernels, nor constants that it contains."""
DIGEST = hashlib.sha256
DIGEST_SIZE = DIGEST().digest_size
Function = tuple[Callable[..., Any], Signature]
"""A Python function, and the signature that it is compiled with."""


# --- the cache on disk -------------------------------------------------------------------------------------------


def sources(file: str) -> list[Path]:
    """The files that the code of a function in a file can depend on: those it shares with all ops, and its folder."""
    shared = (path for pattern in SHARED for path in PACKAGE.glob(pattern))
    own = Path(file).parent.glob("*.py")
    return sorted({path for path in (*shared, *own) if path.parent.name != "runtime" or path.name not in NOT_COMPILED})


@functools.cache
def _source_stamp(file: str) -> str:
    versions = (sys.version, np.__version__, numba.__version__, llvmlite.__version__)
    digest = DIGEST(" ".join(versions).encode())
    for path in sources(file):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def entry_name(function: Function) -> str:
    """The file name of a compiled function.

    Raises:
        OSError: its sources cannot be read.
    """
    code, signature = function[0].__code__, function[1]
    parts = (
        _source_stamp(code.co_filename),
        code.co_filename.removeprefix(str(PACKAGE)),
        code.co_firstlineno,
        signature,
        cpu_target.target_context.codegen().magic_tuple(),  # target triple, name and features of the processor
    )
    name = DIGEST("\n".join(map(str, parts)).encode()).hexdigest()[:32]
    return f"{function[0].__name__}-{name}.kernel"


def is_kept(function: Function) -> bool:
    """Whether the cache has a valid entry of a function."""
    return _payload(function) is not None


def _payload(function: Function) -> bytes | None:
    try:
        content = cache.read(entry_name(function))
    except OSError:
        return None
    digest, payload = content[:DIGEST_SIZE], content[DIGEST_SIZE:]
    return payload if DIGEST(payload).digest() == digest else None


def optimized(function: Function) -> tuple[str, bytes]:
    """The optimized code of a function in the cache, as LLVM bitcode, and the name of the function in it.

    Raises:
        OSError: the cache does not have it.
    """
    payload = _payload(function)
    if payload is None:
        raise OSError(cache.problem() or f"the cache has no code of {function[0].__name__}")
    (_, _, (_, code)), description, *_ = pickle.loads(payload)
    return description.llvm_func_name, code


class _Cache(caching.NullCache):
    """Numba's interface to the cache of one function with one signature."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self._function = function, signature

    def load_overload(self, signature: Signature, target_context: CPUContext) -> CompileResult | None:
        target_context.refresh()
        payload = _payload(self._function)
        if payload is None:
            return None
        result = CompileResult._rebuild(target_context, *pickle.loads(payload))
        result.library._shared_module = None  # LLVM's form of the code, into which nothing else is linked
        return result

    def save_overload(self, signature: Signature, result: CompileResult) -> None:
        try:
            payload = serialize.dumps(result._reduce())
            with cache.written(entry_name(self._function)) as file:
                file.write(DIGEST(payload).digest())
                file.write(payload)
        except OSError as error:  # the next process compiles the function again
            cache.note_problem(error)


# --- compiling ---------------------------------------------------------------------------------------------------


def c_signature(signature: Signature) -> Signature:
    """The signature in C of a function with this one: a dtype at the end is part of its code, and not passed."""
    has_dtype = signature.args and isinstance(signature.args[-1], types.NumberClass)
    return signature.return_type(*signature.args[:-1]) if has_dtype else signature


def _for_c(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """A function with `c_signature(signature)`."""
    if c_signature(signature) is signature:
        return function
    inner, dtype = njit(**native.OPTIONS)(function), as_dtype(signature.args[-1].instance_type).type
    return lambda job, number: inner(job, number, dtype)  # Numba compiles no C function with *arguments


compiled: dict[Function, CFunc] = {}
"""The functions that this process has compiled or loaded."""

_wanted: ContextVar[dict[Function, None] | None] = ContextVar("wanted", default=None)


@contextlib.contextmanager
def listing() -> Iterator[dict[Function, None]]:
    """In this thread, list functions instead of compiling them: yields their keys in order; all addresses are 0."""
    wanted: dict[Function, None] = {}
    token = _wanted.set(wanted)
    try:
        yield wanted
    finally:
        _wanted.reset(token)


def compile_native(function: Callable[..., Any], signature: Signature) -> int:
    """Compile a Python function, or load it from the cache.

    error_model="numpy": IEEE division by zero without exceptions. fastmath={"contract"}: LLVM may use fused
    multiply-add; other flags would allow it to assume that there are no NaNs and infinities.

    Returns:
        The address of a C function with the signature, but for a dtype at its end.
    """
    if (wanted := _wanted.get()) is not None:
        wanted[function, signature] = None
        return 0
    with STATE.busy:
        if (function, signature) not in compiled:
            native.install()
            own = c_signature(signature)
            callback: Any = CFunc(
                _for_c(function, signature),
                (own.args, own.return_type),
                locals={},
                options={"error_model": "numpy", "fastmath": {"contract"}, "boundscheck": False, "nopython": True},
            )
            callback._cache = _Cache(function, signature)
            start = time.monotonic()
            with target.widest_vectors():
                callback.compile()
            if not callback.cache_hits:
                progress.spent(time.monotonic() - start)
            keep(callback)
            compiled[function, signature] = callback
        address = compiled[function, signature].address
        assert address is not None
        return address
