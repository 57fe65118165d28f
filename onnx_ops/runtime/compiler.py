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
import inspect
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba import njit, types
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target
from numba.core.typing import Signature
from numba.np.numpy_support import as_dtype

from onnx_ops.runtime import (
    cache,
    correlation,
    elementary,
    lanes,
    memory,
    native,
    places,
    progress,
    target,
    tiles,
    trigonometry,
    vectors,
)
from onnx_ops.runtime.loading import hide_all_but, linked
from onnx_ops.runtime.process import STATE, keep

IMPLEMENTATIONS = (native, memory, elementary, trigonometry, lanes, correlation, tiles, vectors, places)
"""Modules that implement the functions of `primitives` for Numba when they are imported."""
PACKAGE = Path(__file__).parents[1]
SHARED = ("core/*.py", "loops/*.py", "ops/*.py", "runtime/**/*.py")
NOT_COMPILED = frozenset(
    f"{name}.py"
    for name in ("ahead", "cache", "heap", "loading", "process", "progress", "registration", "requests", "worker")
)
"""Files of `runtime` that hold no code of kernels, nor constants that it contains."""
SUFFIX = ".kernel"
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
    code, signature = inspect.unwrap(function[0]).__code__, function[1]
    parts = (
        _source_stamp(code.co_filename),
        code.co_filename.removeprefix(str(PACKAGE)),
        code.co_firstlineno,
        signature,
        cpu_target.target_context.codegen().magic_tuple(),  # target triple, name and features of the processor
    )
    name = DIGEST("\n".join(map(str, parts)).encode()).hexdigest()[:32]
    return f"{function[0].__name__}-{name}{SUFFIX}"


def is_kept(function: Function) -> bool:
    """Whether the cache has a valid entry of a function."""
    return _entry(function) is not None


class _Entry(NamedTuple):
    """What the cache has of a function.

    Attributes:
        symbol: name of the C function in the object code.
        code: object code.
        inner_symbol: name of the function with Numba's calling convention, which the C function calls.
        bitcode: optimized code of both.
    """

    symbol: str
    code: bytes
    inner_symbol: str
    bitcode: bytes


def _entry(function: Function) -> _Entry | None:
    try:
        content = cache.read(entry_name(function))
    except OSError:
        return None
    digest, payload = content[:DIGEST_SIZE], content[DIGEST_SIZE:]
    return _Entry(*pickle.loads(payload)) if DIGEST(payload).digest() == digest else None


def _save(function: Function, entry: _Entry) -> None:
    payload = pickle.dumps(tuple(entry))
    try:
        with cache.written(entry_name(function)) as file:
            file.write(DIGEST(payload).digest())
            file.write(payload)
    except OSError as error:  # the next process compiles the function again
        cache.note_problem(error)


def optimized(function: Function) -> tuple[str, bytes]:
    """The optimized code of a function in the cache, as LLVM bitcode, and the name of the function in it.

    Raises:
        OSError: the cache does not have it.
    """
    entry = _entry(function)
    if entry is None:
        raise OSError(cache.problem() or f"the cache has no code of {function[0].__name__}")
    return entry.inner_symbol, entry.bitcode


# --- compiling ---------------------------------------------------------------------------------------------------


def c_signature(signature: Signature) -> Signature:
    """The signature in C of a function with this one: a dtype at the end is part of its code, and not passed."""
    has_dtype = signature.args and isinstance(signature.args[-1], types.NumberClass)
    return signature.return_type(*signature.args[:-1]) if has_dtype else signature


def _for_c(function: Function) -> Callable[..., Any]:
    """A function with the signature in C, and a name that no other function has, be it of another process."""
    body, signature = function
    own: Callable[..., Any]
    if c_signature(signature) is signature:
        own = FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__)
        own.__module__ = body.__module__
    else:  # Numba compiles no C function with *arguments
        inner, dtype = njit(**native.OPTIONS)(body), as_dtype(signature.args[-1].instance_type).type
        own = lambda job, number: inner(job, number, dtype)  # noqa: E731
    with contextlib.suppress(OSError):  # without a cache, names of this process suffice
        own.__qualname__ = entry_name(function).removesuffix(SUFFIX).replace("-", "_")
    return own


class Native(NamedTuple):
    """A function in native code.

    Attributes:
        address: of the C function.
        is_from_cache: whether it was loaded, not compiled.
    """

    address: int
    is_from_cache: bool


compiled: dict[Function, Native] = {}
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
        key = function, signature
        if key not in compiled:
            entry = _entry(key)
            compiled[key] = Native(linked(entry.code, entry.symbol), True) if entry else Native(_compile(key), False)
        return compiled[key].address


def _alone(bitcode: bytes, symbol: str) -> bytes:
    """Object code in which no other function is visible.

    Numba names functions by their signatures and a number of the process. Those of another process may have the same
    names, and `linked` would call one for the other: as halves_at and bfloats_at, arguments that are intrinsics have
    one type in the name.
    """
    module = binding.parse_bitcode(bitcode)
    hide_all_but(module, symbol)
    module.verify()
    return bytes(cpu_target.target_context.codegen()._tm.emit_object(module))


def _compile(function: Function) -> int:
    """Compile a function and save it in the cache; returns the address of the C function."""
    native.install()
    own = c_signature(function[1])
    callback: Any = CFunc(
        _for_c(function),
        (own.args, own.return_type),
        locals={},
        options={"error_model": "numpy", "fastmath": {"contract"}, "boundscheck": False, "nopython": True},
    )
    start = time.monotonic()
    with target.widest_vectors():
        callback.compile()
        symbol = callback.native_name
        _, _, (_, bitcode) = callback._library.serialize_using_object_code()
        code = _alone(bitcode, symbol)
    progress.spent(time.monotonic() - start)
    keep(callback)
    _save(function, _Entry(symbol, code, symbol.removeprefix("cfunc."), bitcode))
    address: int = callback.address
    return address
