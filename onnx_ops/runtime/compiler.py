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
from llvmlite import binding, ir
from numba import njit, types
from numba.core.funcdesc import FunctionDescriptor
from numba.core.registry import cpu_target
from numba.core.typing import Signature

from onnx_ops.runtime import (
    cache,
    code_generation,
    correlation,
    elementary,
    lanes,
    memory,
    native,
    places,
    progress,
    tiles,
    trigonometry,
    vectors,
)
from onnx_ops.runtime.loading import linked
from onnx_ops.runtime.process import STATE

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
        symbol: name of the C function in the code.
        code: object code.
        bitcode: the same code for LLVM.
    """

    symbol: str
    code: bytes
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
    return entry.symbol, entry.bitcode


# --- compiling ---------------------------------------------------------------------------------------------------


def _own(function: Function) -> Callable[..., Any]:
    """A copy of a function with a name that no other function has, be it of another process."""
    body = function[0]
    own = FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__)
    own.__module__ = body.__module__
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


def _compile(function: Function) -> int:
    """Compile a function and save it in the cache; returns the address of the C function."""
    native.install()
    start = time.monotonic()
    with code_generation.selected() as codegen:
        dispatcher = njit(**native.OPTIONS)(_own(function))
        _, arguments = dispatcher.fold_argument_types(function[1].args, {})  # *arguments are one tuple
        dispatcher.compile(function[1].return_type(*arguments))
        (result,) = dispatcher.overloads.values()
        module, symbol = result.library.module, f"c.{result.fndesc.llvm_func_name}"
        module.link_in(binding.parse_assembly(str(_c_function(function[1], result.fndesc, symbol, module))))
        bitcode = module.as_bitcode()
        code = codegen.emitted(module, symbol)
    progress.spent(time.monotonic() - start)
    _save(function, _Entry(symbol, code, bitcode))
    return linked(code, symbol)


def _c_signature(signature: Signature) -> Signature:
    """The signature in C of a function with this one: a dtype at the end is part of its code, and not passed."""
    has_dtype = signature.args and isinstance(signature.args[-1], types.NumberClass)
    return signature.return_type(*signature.args[:-1]) if has_dtype else signature


def _c_function(signature: Signature, description: FunctionDescriptor, name: str, like: binding.ModuleRef) -> ir.Module:
    """A module with a C function that calls one of Numba, which returns a status, and its result by a pointer.

    Args:
        signature: of the function.
        description: Numba's name and types of it, with *arguments as one tuple.
        name: of the C function.
        like: the module that will have both.
    """
    context, own = cpu_target.target_context, _c_signature(signature)
    module = ir.Module(name)
    module.triple, module.data_layout = like.triple, like.data_layout
    returned, *taken = [context.get_value_type(kind) for kind in (own.return_type, *own.args)]
    type_ = context.call_conv.get_function_type(description.restype, description.argtypes)
    inner = ir.Function(module, type_, description.llvm_func_name)
    outer = ir.Function(module, ir.FunctionType(returned, taken), name)
    builder = ir.IRBuilder(outer.append_basic_block())
    values = [*outer.args, *[context.get_dummy_value()] * (len(signature.args) - len(own.args))]
    *named, last = arguments = description.argtypes
    if isinstance(last, types.StarArgTuple | types.StarArgUniTuple):
        values = [*values[: len(named)], context.make_tuple(builder, last, values[len(named) :])]
    _, result = context.call_conv.call_function(builder, inner, description.restype, arguments, values)
    builder.ret(result)
    return module
