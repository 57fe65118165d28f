"""Registers the ops with onnxruntime, through the library of onnxruntime-extensions.

Facts (onnxruntime 1.23 to 1.32, onnxruntime-extensions 0.10 to 0.15):
- Custom ops passed to `AddExternalCustomOp` before `register_custom_ops_library` are in the domain ai.onnx.contrib of
  later sessions. Their structs and callbacks must never be freed.
- A kernel is selected, and the dtypes of its outputs are determined, by the dtypes that the OrtCustomOp declares. So
  there is one for each combination of dtypes of the inputs that determine those of outputs; other inputs are undefined.
  InferOutputShapeFn cannot set the dtype of an output of unknown rank.
- The OrtApi is passed when any kernel is created: a session with one node is created to get it.
- A session makes a schema of each custom op that is registered with its options: 1.4 ms for those of
  onnxruntime-extensions, 4 ms for all of ours. Options may have one OrtCustomOpDomain of each name.
- KernelDestroy may be called while the interpreter finalizes, so it is libc's free.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import functools
import importlib.machinery
import importlib.util
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import onnxruntime as ort
from onnx import TensorProto, helper

from onnx_ops.core.domain import KERNEL_DOMAIN, kernel_name
from onnx_ops.core.errors import KernelsUnavailableError, is_of_onnxruntime
from onnx_ops.core.op import Op
from onnx_ops.runtime import callbacks, heap_callbacks, reuse
from onnx_ops.runtime.abi import API_VERSION, VP, Api, object_of_pybind
from onnx_ops.runtime.callbacks import CustomOp
from onnx_ops.runtime.compiler import compile_native
from onnx_ops.runtime.declarations import ANY, Declaration, Dtypes, Kernels, declarations
from onnx_ops.runtime.heap_record import Functions
from onnx_ops.runtime.launch import compute
from onnx_ops.runtime.process import STATE, aside, keep, libc
from onnx_ops.runtime.requests import ORT_VERSION, Registered, custom_ops, naming, operators, python_record, reserving
from onnx_ops.runtime.signatures import COMPUTE

__all__ = ["heap_functions", "is_registered", "naming", "register", "reserving"]

PROBE = kernel_name("Probe", 1)
COMPLETE = kernel_name("Complete", 1)
"""Another op without effect, which is added after all kernels."""
OF_EXTENSIONS = "StringUpper"
"""An op of onnxruntime-extensions itself."""
PROVIDER = keep(C.create_string_buffer(b"CPUExecutionProvider"))
SAFE_SHAPE_INFERENCE = (1, 24)
"""Before this version, onnxruntime's shape inference crashes on an omitted input."""


def _custom_op(op: Op | None, declared: Declaration) -> Registered:
    """An OrtCustomOp of an op, or without effect (None)."""
    name = C.create_string_buffer(declared.kernel_name.encode())
    native = CustomOp(
        version=API_VERSION,
        KernelComputeV2=compile_native(compute, COMPUTE),
        KernelDestroy=C.cast(libc().free, VP).value,
        name=C.addressof(name),
        provider=C.addressof(PROVIDER),
        inputs=len(declared.input_types),
        outputs=len(declared.output_types),
        python=python_record().ctypes.data,
        **callbacks.addresses(),
        **(reuse.addresses(reuse.pairs_of(op, declared)) if op else {}),
    )
    native.optional[: native.inputs] = declared.optional_inputs
    native.input_type[: native.inputs] = declared.input_types
    native.output_type[: native.outputs] = declared.output_types
    native.optional_output[: native.outputs] = declared.optional_outputs
    if any(declared.optional_inputs) and ORT_VERSION < SAFE_SHAPE_INFERENCE:
        native.InferOutputShapeFn = None
    return Registered(op, native, name)


def _without_effect(name: str) -> Registered:
    return _custom_op(None, Declaration(name, [TensorProto.FLOAT], [False], [TensorProto.FLOAT], [False]))


def _library_path() -> str | None:
    """onnxruntime_extensions.get_library_path(), without the import, which takes a second if PyTorch is installed."""
    package = importlib.util.find_spec("onnxruntime_extensions")
    folders = package.submodule_search_locations if package else None
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    files = (Path(folder) / f"_extensions_pydll{suffix}" for folder in folders or () for suffix in suffixes)
    return next((str(file) for file in files if file.exists()), None)


def _opened() -> tuple[str, Callable[[int], bool]]:
    """The library of onnxruntime-extensions with the probe added: its path, and the function that adds an OrtCustomOp.

    The session of the probe passes the OrtApi.

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
    add(C.addressof(_kept(_without_effect(PROBE)).native))
    options = ort.SessionOptions()
    options.register_custom_ops_library(path)
    if failure := _failure(options, PROBE):
        raise KernelsUnavailableError(f"onnxruntime {ort.__version__} does not take the kernels: {failure}")
    return path, add


def _kept(custom_op: Registered) -> Registered:
    custom_ops[C.addressof(custom_op.native)] = custom_op
    return custom_op


def _declared(op: Op, wanted: Collection[Dtypes] = (ANY,)) -> list[Registered]:
    """The OrtCustomOps of an op, one for each of its declarations for calls with the given dtypes."""
    made: dict[tuple[str, tuple[int, ...]], Registered] = STATE.shared.setdefault("declared", {})
    found = {(op.kernel_name, tuple(declared.input_types)): declared for declared in declarations(op, wanted)}
    made.update({key: _kept(_custom_op(op, declared)) for key, declared in found.items() if key not in made})
    return [made[key] for key in found]


def _open_once(ops: Iterable[Op]) -> None:
    with STATE.registering:
        if "library" not in STATE.shared:
            STATE.shared["ops"], STATE.shared["added"] = tuple(ops), set()
            try:
                STATE.shared["library"] = _opened(), ""
            except Exception as error:  # whatever the error, function bodies run without kernels
                expected = isinstance(error, KernelsUnavailableError)
                STATE.shared["library"] = None, str(error) if expected else f"{type(error).__name__}: {error}"


def _add_once(kernels: Collection[str]) -> None:
    (_, add), _ = STATE.shared["library"]
    with STATE.registering:
        missing = {op.kernel_name: op for op in operators() if op.kernel_name not in STATE.shared["added"]}
        for name in missing.keys() & kernels:
            for custom_op in _declared(missing.pop(name)):
                add(C.addressof(custom_op.native))
            STATE.shared["added"].add(name)
        if not missing and COMPLETE not in STATE.shared["added"]:
            add(C.addressof(_kept(_without_effect(COMPLETE)).native))
            STATE.shared["added"].add(COMPLETE)


def _library(ops: Iterable[Op]) -> str:
    """The path of the library of onnxruntime-extensions, which is opened once per process.

    Args:
        ops: all ops; ignored after the first call in the process.

    Raises:
        KernelsUnavailableError: as `_opened`.
    """
    if "library" not in STATE.shared:
        aside(functools.partial(_open_once, ops))
    library, reason = STATE.shared["library"]
    if library is None:
        raise KernelsUnavailableError(reason)
    return str(library[0])


def _add_to_extensions(kernels: Collection[str]) -> None:
    """Add the kernels of these names to the opened library, once per process."""
    if not STATE.shared["added"].issuperset(kernels):
        aside(functools.partial(_add_once, kernels))  # an interrupt would leave only some of an op's kernels added


def _add_domain(options: ort.SessionOptions, kernels: Kernels) -> bool:
    """Whether kernels could be added to options without onnxruntime-extensions, in an OrtCustomOpDomain of their own.

    The domains are made once per process and never freed; whether sessions take them is tried with that of the probe.
    """
    if not kernels:
        return True
    domains: dict[_Chosen, int | None] = STATE.shared.setdefault("domains", {})
    wanted = frozenset((name, frozenset(dtypes)) for name, dtypes in kernels.items())
    if wanted not in domains:
        aside(functools.partial(_make_domain, wanted))
    return domains[_TRIED] is not None and _take_domain(options, domains[wanted])


_Chosen = frozenset[tuple[str, frozenset[Dtypes]]]
_TRIED: _Chosen = frozenset([(PROBE, frozenset([ANY]))])


def _make_domain(kernels: _Chosen) -> None:
    with STATE.registering:
        domains = STATE.shared["domains"]
        if _TRIED not in domains:
            domain, options = _domain_of([_kept(_without_effect(PROBE))]), ort.SessionOptions()
            domains[_TRIED] = domain if _take_domain(options, domain) and not _failure(options, PROBE) else None
        if kernels not in domains:
            ops = {op.kernel_name: op for op in operators()}
            domains[kernels] = _domain_of(c for name, dtypes in kernels for c in _declared(ops[name], dtypes))


def _domain_of(added: Iterable[Registered]) -> int | None:
    """An OrtCustomOpDomain; None if onnxruntime refuses to make it."""
    api = STATE.shared["api"]
    domain: int | None = api.word(Api.CreateCustomOpDomain, KERNEL_DOMAIN.encode())
    taken = [api.succeeds(Api.CustomOpDomain_Add, domain, C.addressof(custom_op.native)) for custom_op in added]
    return domain if domain and all(taken) else None


def _take_domain(options: ort.SessionOptions, domain: int | None) -> bool:
    """Whether session options could be given an OrtCustomOpDomain."""
    address = object_of_pybind(options)
    return bool(address and domain and STATE.shared["api"].succeeds(Api.AddCustomOpDomain, address, domain))


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
    return "library" in STATE.shared and STATE.shared["library"][0] is not None


def register(
    options: ort.SessionOptions | None, ops: Iterable[Op], kernels: Kernels | None = None
) -> ort.SessionOptions:
    """SessionOptions, new ones by default, with the kernels registered once.

    Args:
        options: modified and returned.
        ops: the ops; ignored after the first call in the process.
        kernels: those that suffice, all by default; only for new options, with which others cannot be registered
            later. A session spends 10 µs on each combination of dtypes of a kernel that is registered with its options.
            The ops of onnxruntime-extensions are among them by default, else only where they cannot be left out.

    Raises:
        KernelsUnavailableError: the kernels cannot be registered in this process.
        RuntimeError: onnxruntime-extensions was registered with these options before the kernels were added to it; a
            library can be registered only once.
    """
    path, given = _library(ops), options
    options = ort.SessionOptions() if options is None else options
    if kernels is not None:
        if not _add_domain(options, kernels):
            _add_to_extensions(kernels)
            options.register_custom_ops_library(path)
        return options
    _add_to_extensions({op.kernel_name for op in operators()})
    with STATE.registering:
        registered: weakref.WeakSet[ort.SessionOptions] = STATE.shared.setdefault("options", weakref.WeakSet())
        if given is not None:
            if options in registered or _failure(options, COMPLETE) is None:
                return options
            if _failure(options, OF_EXTENSIONS, TensorProto.STRING) is None:
                raise RuntimeError(
                    "onnx_ops cannot add its kernels to these SessionOptions: onnxruntime-extensions was registered"
                    " with them before. Leave that to onnx_ops.register_kernels, which registers both"
                )
        options.register_custom_ops_library(path)
        registered.add(options)
        return options


def heap_functions() -> Functions:
    """The functions of heaps; kernels must have been registered."""
    own = {name: compile_native(*function) for name, function in heap_callbacks.FUNCTIONS.items()}
    return Functions(STATE.shared["api"].address, **own)
