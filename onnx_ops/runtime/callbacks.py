"""Callbacks of a custom op, in native code.

Python must not run on a thread of onnxruntime: an exception that leaves a ctypes callback is a dangling pointer in C++,
and on the main thread KeyboardInterrupt can be raised between any two lines. So each request to Python runs on a new
thread, for which the native code waits. Signal handlers do not run on that thread; an interrupt remains pending, and is
raised when the call returns to the user. The new thread has the stack size that Python and LLVM need.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from numba import njit, types
from numba.core.typing import Signature

from onnx_ops.loops.records import MAX_INPUTS, MAX_OUTPUTS
from onnx_ops.runtime.abi import I64, INVALID_ARGUMENT, VP, Api, OrtCustomOp
from onnx_ops.runtime.compiler import Function, compile_native
from onnx_ops.runtime.memory import i8_at, kernel_at, python_at, stack
from onnx_ops.runtime.native import OPTIONS, call


class CustomOp(OrtCustomOp):
    """An OrtCustomOp, followed by the values that its callbacks return."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("name", VP),
        ("provider", VP),
        ("inputs", I64),
        ("input_type", I64 * MAX_INPUTS),
        ("optional", I64 * MAX_INPUTS),
        ("outputs", I64),
        ("output_type", I64 * MAX_OUTPUTS),
        ("optional_output", I64 * MAX_OUTPUTS),
        ("python", VP),
    )


def _place(field: str) -> int:
    """Index of a field of a CustomOp, in 64-bit words."""
    return int(getattr(CustomOp, field).offset) // 8


NAME, PROVIDER, INPUTS, OUTPUTS, PYTHON_AT = map(_place, ("name", "provider", "inputs", "outputs", "python"))
INPUT_TYPE, OPTIONAL = _place("input_type"), _place("optional")
OUTPUT_TYPE, OPTIONAL_OUTPUT = _place("output_type"), _place("optional_output")
LAST_VERSION = 2**31 - 1


def name(own):
    return i8_at(own)[NAME]


def provider(own):
    return i8_at(own)[PROVIDER]


def input_type(own, index):
    return i8_at(own)[INPUT_TYPE + index]


def input_count(own):
    return i8_at(own)[INPUTS]


def input_characteristic(own, index):
    return i8_at(own)[OPTIONAL + index]


def output_count(own):
    return i8_at(own)[OUTPUTS]


def output_type(own, index):
    return i8_at(own)[OUTPUT_TYPE + index]


def output_characteristic(own, index):
    return i8_at(own)[OPTIONAL_OUTPUT + index]


def nothing(own, index):
    return 0


def one(own):
    return 1


def last_version(own):
    return LAST_VERSION


# --- requests to Python ----------------------------------------------------------------------------------------------

# A request to Python is an array of WORDS 64-bit words: kind, result, id of the calling thread, four arguments.
KIND, ANSWER, ASKER, ARGUMENTS = 0, 1, 2, 3
WORDS = 7
REQUEST_BYTES = 8 * WORDS
CREATE, INFER, FAIL = 0, 1, 2
UNANSWERED = -1
CREATE_STATUS = int(Api.CreateStatus)
INT_BITS = 0xFFFFFFFF  # the upper 32 bits of a returned C int are undefined


@njit(**OPTIONS)
def request(python, kind, a, b, c, d):
    """Run a request in Python on a new thread; returns its result, UNANSWERED if no thread can be created."""
    record = stack(REQUEST_BYTES)
    words = i8_at(record)
    words[KIND], words[ANSWER] = kind, UNANSWERED
    words[ARGUMENTS], words[ARGUMENTS + 1], words[ARGUMENTS + 2], words[ARGUMENTS + 3] = a, b, c, d
    words[ASKER] = call(python.this_thread, (0,))
    is_main = words[ASKER] == python.main_thread
    if call(python.is_finalizing, (0,)) & INT_BITS:
        if is_main:  # neither Python on other threads nor signal handlers can run any more
            call(python.answer, (record,))
    else:
        held = call(python.holds_lock, (0,)) & INT_BITS
        saved = call(python.save_thread, (0,)) if held else 0
        thread = stack(8)
        if call(python.create_thread, (thread, python.attributes, python.answer, record)) & INT_BITS == 0:
            call(python.join_thread, (i8_at(thread)[0], 0))
        if held and (is_main or not python.ending):
            call(python.restore_thread, (saved,))
    # Python would terminate this thread inside C++, and thereby the process: it waits forever instead.
    while python.ending and not is_main:
        call(python.pause, (0,))
    return words[ANSWER]


@njit(**OPTIONS)
def status_of(answer, api, python):
    """The OrtStatus of a result; a new one for UNANSWERED."""
    if answer == UNANSWERED:
        return call(i8_at(api)[CREATE_STATUS], (INVALID_ARGUMENT, python.unanswered))
    return answer


def create_kernel(own, api, info, kernel):
    python = python_at(i8_at(own)[PYTHON_AT])
    return status_of(request(python, CREATE, own, api, info, kernel), api, python)


def infer_output_shape(own, context):
    """onnxruntime ignores errors of this callback; `create_kernel` raises them."""
    request(python_at(i8_at(own)[PYTHON_AT]), INFER, own, context, 0, 0)
    return 0


def fail(kernel_address, context, code):
    """The OrtStatus of a call that the kernel rejected."""
    kernel = kernel_at(kernel_address)
    python = python_at(kernel.python)
    return status_of(request(python, FAIL, kernel_address, context, code, 0), kernel.api, python)


def _words(count: int) -> Signature:
    """Signature of a C function of `count` 64-bit words that returns one."""
    return types.int64(*[types.int64] * count)


FUNCTIONS: Mapping[str, Function] = {
    "GetName": (name, _words(1)),
    "GetExecutionProviderType": (provider, _words(1)),
    "GetInputType": (input_type, _words(2)),
    "GetInputTypeCount": (input_count, _words(1)),
    "GetOutputType": (output_type, _words(2)),
    "GetOutputTypeCount": (output_count, _words(1)),
    "GetInputCharacteristic": (input_characteristic, _words(2)),
    "GetOutputCharacteristic": (output_characteristic, _words(2)),
    "GetInputMemoryType": (nothing, _words(2)),
    "GetVariadicInputMinArity": (nothing, _words(2)),
    "GetVariadicInputHomogeneity": (nothing, _words(2)),
    "GetVariadicOutputMinArity": (nothing, _words(2)),
    "GetVariadicOutputHomogeneity": (nothing, _words(2)),
    "GetStartVersion": (one, _words(1)),
    "GetEndVersion": (last_version, _words(1)),
}
"""The callbacks that read the struct, by field of OrtCustomOp."""
REQUESTS: Mapping[str, Function] = {
    "CreateKernelV2": (create_kernel, _words(4)),
    "InferOutputShapeFn": (infer_output_shape, _words(2)),
}
"""Those that run Python."""


@functools.cache
def addresses() -> dict[str, int]:
    """Addresses of the callbacks by field of OrtCustomOp, except KernelCompute and KernelDestroy."""
    return {field: compile_native(*function) for field, function in {**FUNCTIONS, **REQUESTS}.items()}


def address_of_fail() -> int:
    return compile_native(fail, _words(3))
