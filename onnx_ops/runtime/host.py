"""Registers the ops with onnxruntime, through the library of onnxruntime-extensions.

Facts (onnxruntime 1.23 to 1.32, onnxruntime-extensions 0.10 to 0.15):
- Custom ops passed to `AddExternalCustomOp` before `register_custom_ops_library` are in the domain ai.onnx.contrib of
  later sessions. Their structs and callbacks must never be freed.
- A kernel is selected, and the dtypes of its outputs are determined, by the dtypes that the OrtCustomOp declares. So
  there is one for each combination of dtypes of the inputs that determine those of outputs; other inputs are undefined.
  InferOutputShapeFn cannot set the dtype of an output of unknown rank.
- InferOutputShapeFn has no access to the OrtApi, which is the same in the whole process and is passed when any kernel
  is created: a session with one node is created to get it.
- Errors of InferOutputShapeFn are ignored, and an input of unknown rank looks like a scalar in it. So it only sets
  shapes; errors are raised by CreateKernelV2 and at run time.
- KernelDestroy may be called while the interpreter finalizes, so it is libc's free.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import functools
import importlib.machinery
import importlib.util
import math
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from onnx_ops.core.call import Call
from onnx_ops.core.domain import KERNEL_DOMAIN, kernel_name
from onnx_ops.core.errors import KernelsUnavailableError, OpError, at_node, is_of_onnxruntime, node_label
from onnx_ops.core.op import Op
from onnx_ops.core.schema import is_optional
from onnx_ops.core.types import TensorType
from onnx_ops.loops.memory import array_at
from onnx_ops.loops.records import KERNEL, NO_MEMORY
from onnx_ops.runtime import callbacks, reuse
from onnx_ops.runtime.abi import API_VERSION, I64, VP, Api, OrtApi, decoded, encoded
from onnx_ops.runtime.callbacks import ARGUMENTS, ASKER, KIND, WORDS, CustomOp
from onnx_ops.runtime.compiler import compile_native
from onnx_ops.runtime.declarations import Declaration, declarations
from onnx_ops.runtime.kernels import Parts, attributes_at, compile_kernel
from onnx_ops.runtime.launch import compute
from onnx_ops.runtime.process import ANSWER, STATE, aside, keep, libc, thread_attributes
from onnx_ops.runtime.records import PYTHON
from onnx_ops.runtime.signatures import COMPUTE

PROBE = kernel_name("Probe", 1)
COMPLETE = kernel_name("Complete", 1)
"""Another op without effect, which is added after all kernels."""
OF_EXTENSIONS = "StringUpper"
"""An op of onnxruntime-extensions itself."""
PROVIDER = keep(C.create_string_buffer(b"CPUExecutionProvider"))
UNANSWERED = keep(C.create_string_buffer(b"onnx_ops: there is no thread or no memory for this node"))
ORT_VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
SAFE_SHAPE_INFERENCE = (1, 24)
"""Before this version, onnxruntime's shape inference crashes on an omitted input."""

SAFE_OUTPUTS = (1, 31)
"""This version returns an error if the shape of an omitted output is set. 1.23 ends the process; versions in between
are untested."""

_fresh = count()


# --- custom ops ------------------------------------------------------------------------------------------------------


class _Struct:
    """A registered OrtCustomOp: of an op, or one of PROBE and COMPLETE (None)."""

    def __init__(self, op: Op | None, declared: Declaration) -> None:
        self.op = op
        self.name = C.create_string_buffer(declared.kernel_name.encode())
        self.native = CustomOp(
            version=API_VERSION,
            KernelComputeV2=compile_native(compute, COMPUTE),
            KernelDestroy=C.cast(libc().free, VP).value,
            name=C.addressof(self.name),
            provider=C.addressof(PROVIDER),
            inputs=len(declared.input_types),
            outputs=len(declared.output_types),
            python=_python().ctypes.data,
            **callbacks.addresses(),
            **(reuse.addresses(reuse.pairs_of(op, declared)) if op else {}),
        )
        self.native.optional[: self.native.inputs] = declared.optional_inputs
        self.native.input_type[: self.native.inputs] = declared.input_types
        self.native.output_type[: self.native.outputs] = declared.output_types
        self.native.optional_output[: self.native.outputs] = declared.optional_outputs
        if any(declared.optional_inputs) and ORT_VERSION < SAFE_SHAPE_INFERENCE:
            self.native.InferOutputShapeFn = None


def _without_effect(name: str) -> _Struct:
    return _Struct(None, Declaration(name, [TensorProto.FLOAT], [False], [TensorProto.FLOAT], [False]))


_structs: dict[int, _Struct] = STATE.settled.setdefault("structs", {})
"""By address."""


def _python() -> np.ndarray:
    """The record of callbacks into Python (`runtime.records.PYTHON`)."""
    if "python" not in STATE.settled:
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
        STATE.settled["python"] = record
    return STATE.settled["python"]


# --- requests of onnxruntime -----------------------------------------------------------------------------------------


def _answer(address: int) -> None:
    """Handle a request (`runtime.callbacks`), on a thread created by native code."""
    words = (I64 * WORDS).from_address(address)
    api: OrtApi | None = STATE.settled.get("api")
    try:
        with STATE.busy:
            if api is None and words[KIND] == callbacks.CREATE:
                api = STATE.settled["api"] = OrtApi(words[ARGUMENTS + 1])
            if api is not None:
                _ANSWERS[words[KIND]](api, words[ASKER], *words[ARGUMENTS:])
        words[callbacks.ANSWER] = 0
    except BaseException as error:  # native code returns an OrtStatus with this text
        text = str(error) if isinstance(error, OpError) else f"onnx_ops: {type(error).__name__}: {error}"
        if api is not None:
            words[callbacks.ANSWER] = api.status(text) or 0


def _create_kernel(api: OrtApi, asker: int, own: int, api_address: int, info: int, kernel: int) -> None:
    op = _structs[own].op
    if op is None:
        parts, label = _PROBE_PARTS, ""
    else:
        outputs = _output_names(api, info)
        label = _node_label(asker, next(filter(None, outputs), ""))
        with at_node(label):
            call = _call_of_node(api, op, info, outputs)
            op.infer(call)
            parts = _parts_of(op, call)
        if size := _reserved.pop(asker, 0):
            _reserve(api, info, size)
    parts.kernel["api"], parts.kernel["python"] = api_address, _python().ctypes.data
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


_naming: dict[int, Callable[[str], str | None]] = STATE.settled.setdefault("naming", {})
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


_reserved: dict[int, int] = STATE.settled.setdefault("reserved", {})
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
    values = {name: api.node_attribute(a.type, info, name) for name, a in op.schema.attributes.items()}
    given = {name: value for name, value in values.items() if value is not None}
    return op.call(tensors, given, list(map(bool, outputs)))


def _tensor_type(api: OrtApi, info: int) -> TensorType | None:
    dtype, shape = api.element_type(info), api.dimensions(info)
    return TensorType(dtype, shape or None) if dtype else None


def _parts_of(op: Op, call: Call) -> Parts:
    """The kernel of a call, cached by dtypes, attributes and outputs."""
    dtypes = tuple(call.dtype(name) for name in op.input_names)
    values = tuple(tuple(value) if isinstance(value, list) else value for value in call.attributes.values())
    number = next(number for number, other in enumerate(_operators()) if other is op)
    return _parts(number, dtypes, values, call.outputs)


@functools.lru_cache(maxsize=256)
def _parts(number: int, dtypes: tuple[int | None, ...], values: tuple[Any, ...], outputs: tuple[str, ...]) -> Parts:
    op = _operators()[number]
    attributes = dict(zip(op.schema.attributes, values, strict=True))
    wanted = [name in outputs for name in op.output_names]
    call = op.call([None if dtype is None else TensorType(dtype) for dtype in dtypes], attributes, wanted)
    parts = compile_kernel(op, call)
    parts.kernel["op"] = number
    return parts


def _operators() -> Sequence[Op]:
    """The registered ops; a second import of the package does not replace them."""
    ops: Sequence[Op] = STATE.settled["ops"]
    return ops


def _infer_output_shape(api: OrtApi, asker: int, own: int, context: int, *_: int) -> None:
    struct = _structs[own]
    op = struct.op
    if op is None:
        return
    tensors: list[TensorType | None] = []
    for i in range(min(api.word(Api.ShapeInferContext_GetInputCount, context) or 0, len(op.input_names))):
        info = api.word(Api.ShapeInferContext_GetInputTypeShape, context, i)
        tensors.append(_tensor_type(api, info) if info else None)
    values = {name: api.inferred_attribute(a.type, context, name) for name, a in op.schema.attributes.items()}
    given = {name: value for name, value in values.items() if value is not None}
    try:
        # Omitted outputs are unknown here; the types of all outputs are inferred.
        required = [not is_optional(parameter) for parameter in op.schema.outputs]
        outputs = op.infer(op.call(tensors, given, required))
    except OpError:
        if all(struct.native.output_type[: len(op.output_names)]):
            raise
        # An output without a dtype fails the session before `create_kernel` can raise the reason.
        dtype = next(tensor.dtype for tensor in tensors if tensor)
        outputs = (TensorType(dtype),) * len(op.output_names)
    for index, (parameter, output) in enumerate(zip(op.schema.outputs, outputs, strict=True)):
        if not is_optional(parameter) or ORT_VERSION >= SAFE_OUTPUTS:
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
    if status := api(Api.ShapeInferContext_SetOutputTypeShape, context, index, shape):  # of an omitted output
        api(Api.ReleaseStatus, status)
    api(Api.ReleaseTensorTypeAndShapeInfo, shape)


def _explain(api: OrtApi, asker: int, kernel: int, context: int, code: int, *_: int) -> None:
    """Raise the error of a run that native code rejected, found by the Python checks of the op."""
    record = array_at(kernel, 1, KERNEL)[0]
    label = decoded(C.string_at(int(record["node_label"]), int(record["node_label_bytes"])))
    op = _operators()[record["op"]]
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


# --- registration --------------------------------------------------------------------------------------------------


def _structs_of(op: Op) -> list[_Struct]:
    return [_Struct(op, declared) for declared in declarations(op)]


def _library_path() -> str | None:
    """onnxruntime_extensions.get_library_path(), without the import, which takes a second if PyTorch is installed."""
    package = importlib.util.find_spec("onnxruntime_extensions")
    folders = package.submodule_search_locations if package else None
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    files = (Path(folder) / f"_extensions_pydll{suffix}" for folder in folders or () for suffix in suffixes)
    return next((str(file) for file in files if file.exists()), None)


def _opened() -> tuple[str, Callable[[int], bool]]:
    """The library of onnxruntime-extensions with the probe added: its path, and the function that adds an OrtCustomOp.

    Raises:
        KernelsUnavailableError: there is none, or kernels do not run.
    """
    path = _library_path()
    if path is None:
        raise KernelsUnavailableError("onnxruntime-extensions is not installed")
    try:
        add = C.CDLL(path).AddExternalCustomOp
    except (OSError, AttributeError) as error:
        raise KernelsUnavailableError(f"onnxruntime-extensions supports no external kernels here: {error}") from error
    add.argtypes, add.restype = [VP], C.c_bool
    _add(add, [_without_effect(PROBE)])
    options = ort.SessionOptions()
    options.register_custom_ops_library(path)
    if failure := _failure(options, PROBE):
        raise KernelsUnavailableError(f"onnxruntime {ort.__version__} does not take the kernels: {failure}")
    return path, add


def _add(add: Callable[[int], bool], structs: Iterable[_Struct]) -> None:
    for struct in structs:
        address = C.addressof(struct.native)
        _structs[address] = struct
        add(address)


def _open_once(ops: Iterable[Op]) -> None:
    with STATE.registering:
        if "library" not in STATE.settled:
            STATE.settled["ops"], STATE.settled["added"] = tuple(ops), set()
            try:
                STATE.settled["library"] = _opened(), ""
            except Exception as error:  # whatever the error, function bodies run without kernels
                expected = isinstance(error, KernelsUnavailableError)
                STATE.settled["library"] = None, str(error) if expected else f"{type(error).__name__}: {error}"


def _add_once(kernels: Collection[str]) -> None:
    (_, add), _ = STATE.settled["library"]
    with STATE.registering:
        missing = {op.kernel_name: op for op in _operators() if op.kernel_name not in STATE.settled["added"]}
        for name in missing.keys() & kernels:
            _add(add, _structs_of(missing.pop(name)))
            STATE.settled["added"].add(name)
        if not missing and COMPLETE not in STATE.settled["added"]:
            _add(add, [_without_effect(COMPLETE)])
            STATE.settled["added"].add(COMPLETE)


def _library(ops: Iterable[Op], kernels: Collection[str] | None = None) -> str:
    """The path of the library of onnxruntime-extensions, with kernels added once per process.

    Args:
        ops: all ops; ignored after the first call in the process.
        kernels: the names of those to add; all by default.

    Raises:
        KernelsUnavailableError: as `_opened`.
    """
    if "library" not in STATE.settled:
        aside(functools.partial(_open_once, ops))
    library, reason = STATE.settled["library"]
    if library is None:
        raise KernelsUnavailableError(reason)
    wanted = {op.kernel_name for op in _operators()} if kernels is None else kernels
    if not STATE.settled["added"].issuperset(wanted):
        aside(functools.partial(_add_once, wanted))  # an interrupt would leave only some of an op's kernels added
    return str(library[0])


def _failure(options: ort.SessionOptions, op_type: str, dtype: int = TensorProto.FLOAT) -> str | None:
    """The error of a session with one node, or None. That of PROBE passes the OrtApi and shows whether kernels run."""
    value = [helper.make_tensor_value_info(name, dtype, [1]) for name in ("x", "y")]
    node = helper.make_node(op_type, ["x"], ["y"], domain=KERNEL_DOMAIN)
    graph = helper.make_graph([node], "probe", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(KERNEL_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    try:
        with _writing_nothing(options):
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if not is_of_onnxruntime(error):
            raise
        return str(error)
    return None


@contextlib.contextmanager
def _writing_nothing(options: ort.SessionOptions) -> Iterator[None]:
    """Sessions write no profile or optimized model to disk; options without such settings are unchanged."""
    profiling, saved_model = options.enable_profiling, options.optimized_model_filepath
    if not profiling and not saved_model:
        yield
        return
    options.enable_profiling, options.optimized_model_filepath = False, ""
    try:
        yield
    finally:
        options.enable_profiling, options.optimized_model_filepath = profiling, saved_model


def is_registered() -> bool:
    """Whether sessions of this process can have the kernels."""
    return "library" in STATE.settled and STATE.settled["library"][0] is not None


def register(
    options: ort.SessionOptions | None, ops: Iterable[Op], kernels: Collection[str] | None = None
) -> ort.SessionOptions:
    """SessionOptions, new ones by default, with the kernels registered once.

    Args:
        options: modified and returned.
        ops: the ops; ignored after the first call in the process.
        kernels: the names of those that suffice, all by default; only for new options, with which others cannot be
            registered later. A session spends up to 0.1 ms on each op that is registered with its options, those of
            onnxruntime-extensions and those that were registered before included.

    Raises:
        KernelsUnavailableError: the kernels cannot be registered in this process.
        RuntimeError: onnxruntime-extensions was registered with these options before the kernels were added to it; a
            library can be registered only once.
    """
    path = _library(ops, kernels)
    with STATE.registering:
        registered: weakref.WeakSet[ort.SessionOptions] = STATE.settled.setdefault("options", weakref.WeakSet())
        if options is None:
            options = ort.SessionOptions()
        elif kernels is None:
            if options in registered or _failure(options, COMPLETE) is None:
                return options
            if _failure(options, OF_EXTENSIONS, TensorProto.STRING) is None:
                raise RuntimeError(
                    "onnx_ops cannot add its kernels to these SessionOptions: onnxruntime-extensions was registered"
                    " with them before. Leave that to onnx_ops.register_kernels, which registers both"
                )
        options.register_custom_ops_library(path)
        if kernels is None:
            registered.add(options)
        return options
