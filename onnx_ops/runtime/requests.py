"""Handles the requests of onnxruntime to custom ops and their kernels, while it makes and runs sessions.

Facts (onnxruntime 1.23 to 1.32):
- InferOutputShapeFn has no access to the OrtApi, which is the same in the whole process and is passed when any kernel
  is created.
- Errors of InferOutputShapeFn are ignored, and an input of unknown rank looks like a scalar in it. So it only sets
  shapes; errors are raised by CreateKernelV2 and at run time.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
from onnx import helper

from onnx_ops.core.call import Call
from onnx_ops.core.domain import is_omitted
from onnx_ops.core.errors import OpError, at_node, node_label
from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.loops.memory import array_at
from onnx_ops.loops.records import KERNEL, NO_MEMORY
from onnx_ops.runtime import callbacks
from onnx_ops.runtime.abi import I64, VP, Api, OrtApi, decoded, encoded
from onnx_ops.runtime.callbacks import ARGUMENTS, ASKER, KIND, WORDS, CustomOp
from onnx_ops.runtime.kernels import Parts, attributes_at, compile_kernel
from onnx_ops.runtime.process import ANSWER, STATE, keep, libc, thread_attributes
from onnx_ops.runtime.records import PYTHON

UNANSWERED = keep(C.create_string_buffer(b"onnx_ops: there is no thread or no memory for this node"))
ORT_VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
SAFE_OUTPUTS = (1, 31)
"""This version returns an error if the shape of an omitted output is set. 1.23 ends the process; versions in between
are untested."""

_fresh = count()


class Registered(NamedTuple):
    """An OrtCustomOp that was added to the library of onnxruntime-extensions.

    Attributes:
        op: None for one without effect.
        native: the struct.
        name: the memory of its name.
    """

    op: Op | None
    native: CustomOp
    name: C.Array[C.c_char]


custom_ops: dict[int, Registered] = STATE.shared.setdefault("structs", {})
"""By address of the struct."""


def operators() -> Sequence[Op]:
    """The registered ops; a second import of the package does not replace them."""
    ops: Sequence[Op] = STATE.shared["ops"]
    return ops


def python_record() -> np.ndarray:
    """The record of callbacks into Python (`runtime.records.PYTHON`)."""
    if "python" not in STATE.shared:
        record = np.zeros(1, PYTHON)
        answer = keep(ANSWER(_answer))
        finalizing = getattr(C.pythonapi, "Py_IsFinalizing", None) or C.pythonapi._Py_IsFinalizing
        functions = {
            "answer": answer,
            "is_finalizing": finalizing,
            "holds_lock": C.pythonapi.PyGILState_Check,
            "save_thread": C.pythonapi.PyEval_SaveThread,
            "restore_thread": C.pythonapi.PyEval_RestoreThread,
            "create_thread": libc().pthread_create,
            "join_thread": libc().pthread_join,
            "this_thread": libc().pthread_self,
            "pause": libc().pause,
        }
        for name, function in functions.items():
            record[name] = C.cast(function, VP).value
        record["fail"] = callbacks.address_of_fail()
        record["attributes"] = thread_attributes()
        record["unanswered"] = C.addressof(UNANSWERED)
        record["main_thread"] = threading.main_thread().ident
        STATE.in_child.append(lambda: record.__setitem__("main_thread", threading.get_ident()))
        STATE.at_the_end.append(lambda: record.__setitem__("ending", 1))
        STATE.shared["python"] = record
    return STATE.shared["python"]


def _answer(address: int) -> None:
    """Handle a request (`runtime.callbacks`), on a thread created by native code."""
    words = (I64 * WORDS).from_address(address)
    api: OrtApi | None = STATE.shared.get("api")
    try:
        with STATE.busy:
            if api is None and words[KIND] == callbacks.CREATE:
                api = STATE.shared["api"] = OrtApi(words[ARGUMENTS + 1])
            if api is not None:
                _ANSWERS[words[KIND]](api, words[ASKER], *words[ARGUMENTS:])
        words[callbacks.ANSWER] = 0
    except BaseException as error:  # native code returns an OrtStatus with this text
        text = str(error) if isinstance(error, OpError) else f"onnx_ops: {type(error).__name__}: {error}"
        if api is not None:
            words[callbacks.ANSWER] = api.status(text) or 0


def _create_kernel(api: OrtApi, asker: int, own: int, api_address: int, info: int, kernel: int) -> None:
    op = custom_ops[own].op
    if op is None:
        parts, label = _PROBE_PARTS, ""
    else:
        outputs = ["" if is_omitted(name) else name for name in _output_names(api, info)]
        label = _node_label(asker, next(filter(None, outputs), ""))
        with at_node(label):
            call = _call_of_node(api, op, info, outputs)
            op.infer(call)
            parts = _parts_of(op, call)
        if size := _reserved.pop(asker, 0):
            _reserve(api, info, size)
    parts.kernel["api"], parts.kernel["python"] = api_address, python_record().ctypes.data
    VP.from_address(kernel).value = parts.written(label, libc().malloc)


_PROBE_PARTS = Parts(np.zeros(1, KERNEL), None, np.zeros(1, np.int64), {})


def _output_names(api: OrtApi, info: int) -> list[str]:
    count = api.word(Api.KernelInfo_GetOutputCount, info) or 0
    return [api.text(Api.KernelInfo_GetOutputName, info, index) for index in range(count)]


@contextlib.contextmanager
def naming(label_of: Callable[[str], str | None]) -> Iterator[None]:
    """Within this context, sessions created on this thread map output names to node descriptions for error messages.

    onnxruntime drops the names of nodes that call a function, as all nodes of the domain do.
    """
    own = threading.get_ident()
    _naming[own] = label_of
    try:
        yield
    finally:
        del _naming[own]


_naming: dict[int, Callable[[str], str | None]] = STATE.shared.setdefault("naming", {})
"""By thread."""


@contextlib.contextmanager
def reserving(size: int) -> Iterator[None]:
    """Within this context, the memory arena of a session created on this thread gets a region of `size` bytes.

    Without one, the arena grows by regions of its own choice, and cannot join free blocks of several. Memory of a
    region takes none of the system's until it is written.
    """
    own = threading.get_ident()
    _reserved[own] = size
    try:
        yield
    finally:
        _reserved.pop(own, None)


_reserved: dict[int, int] = STATE.shared.setdefault("reserved", {})
"""By thread; the first kernel of the session takes the entry."""

DEFAULT_MEMORY = 0
"""OrtMemTypeDefault."""


def _reserve(api: OrtApi, info: int, size: int) -> None:
    """Let the arena of a kernel's session have a free block; nothing happens if there is no memory for it."""
    if allocator := api.word(Api.KernelInfoGetAllocator, info, DEFAULT_MEMORY):
        if block := api.word(Api.AllocatorAlloc, allocator, size):
            api(Api.AllocatorFree, allocator, block)
        api(Api.ReleaseAllocator, allocator)


def _node_label(asker: int, output: str) -> str:
    label_of = _naming.get(asker)
    return (label_of(output) if label_of else None) or node_label("", output) or ""


def _call_of_node(api: OrtApi, op: Op, info: int, outputs: Sequence[str]) -> Call:
    """The call that a node with these outputs makes."""
    tensors: list[TensorType | None] = []
    for i in range(min(api.word(Api.KernelInfo_GetInputCount, info) or 0, len(op.input_names))):
        type_info = api.word(Api.KernelInfo_GetInputTypeInfo, info, i)
        tensor = api.word(Api.CastTypeInfoToTensorInfo, type_info) if type_info else None
        tensors.append(_tensor_type(api, tensor) if tensor else None)
        if type_info:
            api(Api.ReleaseTypeInfo, type_info)
    values = {name: api.node_attribute(a.type, info, name) for name, a in op.attributes.items()}
    given = {name: value for name, value in values.items() if value is not None}
    return op.call(tensors, given, list(map(bool, outputs)))


def _tensor_type(api: OrtApi, info: int) -> TensorType | None:
    dtype, shape = api.element_type(info), api.dimensions(info)
    return TensorType(dtype, shape or None) if dtype else None


def _parts_of(op: Op, call: Call) -> Parts:
    """The kernel of a call, cached by dtypes, attributes and outputs."""
    dtypes = tuple(call.dtype(name) for name in op.input_names)
    values = tuple(tuple(value) if isinstance(value, list) else value for value in call.attributes.values())
    number = next(number for number, other in enumerate(operators()) if other is op)
    return _parts(number, dtypes, values, call.outputs)


@functools.lru_cache(maxsize=256)
def _parts(number: int, dtypes: tuple[int | None, ...], values: tuple[Any, ...], outputs: tuple[str, ...]) -> Parts:
    op = operators()[number]
    attributes = dict(zip(op.attributes, values, strict=True))
    wanted = [name in outputs for name in op.output_names]
    call = op.call([None if dtype is None else TensorType(dtype) for dtype in dtypes], attributes, wanted)
    parts = compile_kernel(op, call)
    parts.kernel["op"] = number
    return parts


def _infer_output_shape(api: OrtApi, asker: int, own: int, context: int, *_: int) -> None:
    struct = custom_ops[own]
    op = struct.op
    if op is None:
        return
    tensors: list[TensorType | None] = []
    for i in range(min(api.word(Api.ShapeInferContext_GetInputCount, context) or 0, len(op.input_names))):
        info = api.word(Api.ShapeInferContext_GetInputTypeShape, context, i)
        tensors.append(_tensor_type(api, info) if info else None)
    values = {name: api.inferred_attribute(a.type, context, name) for name, a in op.attributes.items()}
    given = {name: value for name, value in values.items() if value is not None}
    try:
        # Omitted outputs are unknown here; the types of all outputs are inferred.
        required = [not parameter.optional for parameter in op.outputs]
        outputs = op.infer(op.call(tensors, given, required))
    except OpError:
        if all(struct.native.output_type[: len(op.output_names)]):
            raise
        # An output without a dtype fails the session before `create_kernel` can raise the reason.
        dtype = next(tensor.dtype for tensor in tensors if tensor)
        outputs = (TensorType(dtype),) * len(op.output_names)
    for index, (parameter, output) in enumerate(zip(op.outputs, outputs, strict=True)):
        if not parameter.optional or ORT_VERSION >= SAFE_OUTPUTS:
            _set_output(api, context, index, output)


def _set_output(api: OrtApi, context: int, index: int, output: TensorType) -> None:
    if output.dtype is None or (output.shape is None):
        return
    shape = api.word(Api.CreateTensorTypeAndShapeInfo)
    assert shape is not None
    rank = len(output.shape)
    sizes = (I64 * rank)(*(d if isinstance(d, int) else -1 for d in output.shape))
    # A dimension without a name would be taken for -1, and folded into constants.
    names = ["" if isinstance(d, int) else (d or f"onnx_ops_unknown_{next(_fresh)}") for d in output.shape]
    api(Api.SetTensorElementType, shape, output.dtype)
    api(Api.SetDimensions, shape, sizes, rank)
    api(Api.SetSymbolicDimensions, shape, (C.c_char_p * rank)(*map(encoded, names)), rank)
    api.succeeds(Api.ShapeInferContext_SetOutputTypeShape, context, index, shape)  # fails for an omitted output
    api(Api.ReleaseTensorTypeAndShapeInfo, shape)


def _explain(api: OrtApi, asker: int, kernel: int, context: int, code: int, *_: int) -> None:
    """Raise the error of a run that native code rejected, found by the Python checks of the op."""
    record = array_at(kernel, 1, KERNEL)[0]
    label = decoded(C.string_at(int(record["node_label"]), int(record["node_label_bytes"])))
    op = operators()[record["op"]]
    if code == NO_MEMORY:
        raise MemoryError(f"{op.name}: no memory for intermediate results; {label}")
    arrays = [_array(api, context, i) if record["element_type"][i] else None for i in range(int(record["inputs"]))]
    attributes = attributes_at(op.schema, int(record["attributes"]))
    wanted = [bool(record["output_type"][k]) for k in range(len(op.output_names))]
    with at_node(label):
        op.check_arrays(arrays, attributes, wanted)
    raise AssertionError(f"{op.name}: the kernel refused a call that its checks accept")


_ANSWERS: dict[int, Callable[..., None]] = {
    callbacks.CREATE: _create_kernel,
    callbacks.INFER: _infer_output_shape,
    callbacks.FAIL: _explain,
}


def _array(api: OrtApi, context: int, index: int) -> np.ndarray:
    """An input of a run, without a copy."""
    value = api.word(Api.KernelContext_GetInput, context, index)
    info = api.word(Api.GetTensorTypeAndShape, value)
    assert info is not None
    shape = tuple(int(d) for d in api.dimensions(info) if isinstance(d, int))
    dtype = helper.tensor_dtype_to_np_dtype(api.element_type(info))
    api(Api.ReleaseTensorTypeAndShapeInfo, info)
    size = math.prod(shape)
    address = api.word(Api.GetTensorMutableData, value)
    if size == 0 or not address:
        return np.empty(shape, dtype)
    return np.asarray(array_at(address, size, dtype)).reshape(shape)
