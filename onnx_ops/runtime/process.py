"""What belongs to the process, not to a module: it stays when the package is reloaded or imported once more.

onnxruntime keeps the addresses of what was registered with it until the process ends, so nothing behind them may ever
be freed, and nothing may be registered twice. All of it hangs on one entry of `sys.modules` under a name outside of the
package. After a reload the kernels that were registered first go on serving.
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
"""The stack of a thread that runs Python or LLVM for us, whatever threads the user makes."""
ANSWER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
"""What a thread of libc runs."""


class _State(types.ModuleType):
    """There is one in a process.

    Attributes:
        registering: held by whoever registers kernels; taken before `busy` where both are.
        busy: held by whoever compiles or answers onnxruntime.
        kept: what must never be freed.
        settled: results of what is done once per process, by name.
        ending: whether the interpreter is about to end.
        ended: whether besides nothing is being compiled or answered any more.
        at_the_end: called when the interpreter is about to end.
        in_child: called in a forked child.
    """

    def __init__(self) -> None:
        super().__init__(_NAME, __doc__)
        self.registering = threading.RLock()
        self.busy = threading.RLock()
        self.kept: list[Any] = []
        self.settled: dict[str, Any] = {}
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
        """Called on the main thread, when only daemon threads are left besides; `registering` stays closed to them."""
        self.ending = True
        self.registering.acquire()
        for call in self.at_the_end:  # before what is being answered is done, for it is then that its asker looks
            call()
        with self.busy:
            self.ended = True

    def enter_onnxruntime(self) -> None:
        """Called before a session is made: only the main thread goes on when the interpreter is about to end.

        On its way back from C++ Python would end any other thread, and that ends the process by std::terminate.
        """
        if self.ending and threading.get_ident() != threading.main_thread().ident:
            threading.Event().wait()


def _made() -> _State:
    state = _State()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(state))  # the end of the interpreter must not free it either
    # Fork, and the end of the process, wait for a thread that is at work: cut off by a fork it would leave Numba and
    # LLVM locked in the child, and LLVM crashes where it is at work while the process takes itself apart.
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
    """Never free it."""
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
    """Address of the attributes, as libc has them, of a thread with a stack of `STACK_BYTES`."""
    attributes = keep(ctypes.create_string_buffer(256))  # larger than any libc's pthread_attr_t
    libc().pthread_attr_init(attributes)
    libc().pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
    return ctypes.addressof(attributes)


def aside(function: Callable[[], T]) -> T:
    """What a function returns or raises, run on a thread of its own.

    An interrupt takes the caller away and leaves the work alone, which goes on to its end.
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
"""What threads are about to do."""
_run_work = keep(ANSWER(lambda number: _works.pop(number)()))
