"""State of the process, which persists when the package is reloaded.

onnxruntime uses the registered structs and callbacks until the process ends, so that they must never be freed nor
registered twice. They are attributes of an entry of `sys.modules` outside of the package. After a reload onnxruntime
still runs the kernels that were registered first.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import os
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_NAME = "_onnx_ops_process"
STACK_BYTES = 16 << 20
"""Stack size of threads that run Python or LLVM, independent of the user's threads."""
ANSWER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
"""Type of the start function of a thread, `void *(*)(void *)`."""


class _State(types.ModuleType):
    """The state of the process, a singleton.

    Attributes:
        registering: lock of the registration of kernels; acquired before `busy`.
        busy: lock of compilation and of requests from onnxruntime.
        kept: objects that must never be freed.
        shared: what modules keep for the whole process, by name.
        ending: whether the interpreter is finalizing.
        ended: whether, in addition, compilations and requests have finished.
        at_the_end: called when the interpreter finalizes.
        in_child: called in a forked child.
    """

    def __init__(self) -> None:
        super().__init__(_NAME, __doc__)
        self.registering = threading.RLock()
        self.busy = threading.RLock()
        self.kept: list[Any] = []
        self.shared: dict[str, Any] = {}
        self.ending = self.ended = False
        self.at_the_end: list[Callable[[], None]] = []
        self.in_child: list[Callable[[], None]] = []

    def acquire(self) -> None:
        self.registering.acquire()
        self.busy.acquire()

    def release(self) -> None:
        self.busy.release()
        self.registering.release()

    def after_fork(self) -> None:
        self.release()
        for call in self.in_child:
            call()

    def end(self) -> None:
        """Called by atexit on the main thread, besides which only daemon threads run; `registering` remains locked."""
        self.ending = True
        self.registering.acquire()
        for call in self.at_the_end:  # before waiting for requests: their callers check `ending` when they return
            call()
        with self.busy:
            self.ended = True

    def enter_onnxruntime(self) -> None:
        """Called before a session is created; blocks all but the main thread while the interpreter finalizes.

        Python would terminate other threads when they return from C++, which ends the process by std::terminate.
        """
        if self.ending and threading.get_ident() != threading.main_thread().ident:
            threading.Event().wait()


def _made() -> _State:
    state = _State()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(state))  # not freed when the interpreter finalizes
    # Fork and exit wait for compilations: a fork would leave the locks of Numba and LLVM acquired in the child, and
    # LLVM crashes if it compiles while the process exits.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=state.acquire, after_in_parent=state.release, after_in_child=state.after_fork)
    atexit.register(state.end)
    return state


def _state() -> _State:
    state = sys.modules.get(_NAME)
    if state is None:
        state = sys.modules.setdefault(_NAME, _made())
    return state  # type: ignore[return-value]


STATE = _state()


def keep(thing: T) -> T:
    """Keep an object until the process ends; returns it."""
    STATE.kept.append(thing)
    return thing


# --- threads ---------------------------------------------------------------------------------------------------------


@functools.cache
def libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    return library


@functools.cache
def thread_attributes() -> int:
    """Address of a pthread_attr_t with a stack size of `STACK_BYTES`."""
    attributes = keep(ctypes.create_string_buffer(256))  # larger than any libc's pthread_attr_t
    libc().pthread_attr_init(attributes)
    libc().pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
    return ctypes.addressof(attributes)


def aside(function: Callable[[], T]) -> T:
    """Run a function on a new thread; returns or raises what it does.

    KeyboardInterrupt is raised in the caller, and does not interrupt the function.
    """
    if STATE.ended:
        return function()
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    number = next(_numbers)
    _works[number] = work
    thread = ctypes.c_void_p()
    arguments = (ctypes.c_void_p(thread_attributes()), _run_work, ctypes.c_void_p(number))
    if error := libc().pthread_create(ctypes.byref(thread), *arguments):
        del _works[number]
        raise OSError(error, "no thread can be made")
    libc().pthread_detach(thread)
    return outcome.result()


_numbers = itertools.count(1)
_works: dict[int, Callable[[], None]] = {}
"""Functions of threads that have not started yet, by number."""
_run_work = keep(ANSWER(lambda number: _works.pop(number)()))
