"""Shared by the benchmarks: sessions with preallocated inputs and outputs, torch's equivalents, the machine, JSON.

The calls come from the records of the ops in tests/ops. torch is optional.
"""

import argparse
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike
from onnx import ModelProto

import onnx_ops
from models.single_op import onnx_element_type, single_op_model
from onnx_ops.core.types import dtype_name
from onnx_ops.runtime.loops.compilation import available_cores
from tests.ops import RECORDS
from tests.ops._shared.arrays import FLOATS
from tests.ops._shared.record import Array, Call

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

DTYPES: Mapping[str, np.dtype[Any]] = {dtype.name: dtype for dtype in FLOATS}
ALIGNMENT = 64

Run = Callable[[], object]


# Calls


def model_of(call: Call) -> ModelProto:
    """A model with one node, of the dtypes and shapes of the call."""
    arrays = RECORDS[call.op].arrays(call)
    types = [None if array is None else (array.dtype, array.shape) for array in arrays]
    return single_op_model(call.op, types, call.attributes, call.outputs)


def bytes_moved(call: Call, outputs: Mapping[str, Array]) -> int:
    """Bytes of all inputs that are read, except scalars, and of the outputs."""
    unread = RECORDS[call.op].unread
    read = [array.nbytes for name, array in call.given.items() if array.size > 1 and name not in unread]
    return sum(read) + sum(array.nbytes for array in outputs.values())


def in_aligned_memory(call: Call) -> Call:
    """The same call with inputs aligned to ALIGNMENT bytes, as onnxruntime and torch align theirs."""
    return call.but({name: None if array is None else aligned_copy(array) for name, array in call.inputs.items()})


def aligned(shape: Sequence[int], dtype: DTypeLike) -> Array:
    """An empty array, aligned to ALIGNMENT bytes."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned_copy(array: Array) -> Array:
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


# Sessions


def quiet_options(threads: int) -> ort.SessionOptions:
    """Options of a session with `threads` intra-op threads that logs errors only."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


def body_session(model: ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session that runs the function bodies: of the linked model, without registered kernels."""
    return ort.InferenceSession(onnx_ops.link(model).SerializeToString(), options)


def library_session(model: ModelProto, options: ort.SessionOptions, library: Path) -> ort.InferenceSession:
    """A session that runs the kernels of a library."""
    options.register_custom_ops_library(str(library))
    return ort.InferenceSession(onnx_ops.link(model).SerializeToString(), options)


def empty_outputs(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Empty arrays for all outputs, by name. The session runs once, for shapes may depend on values."""
    binding = bound_to(session, feeds)
    names = [output.name for output in session.get_outputs()]
    for name in names:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    return {
        name: aligned(value.shape(), _DTYPES_BY_TYPE[value.data_type()])
        for name, value in zip(names, binding.get_outputs(), strict=True)
    }


_DTYPES_BY_TYPE = {
    f"tensor({dtype_name(onnx_element_type(dtype))})": dtype
    for dtype in (*FLOATS, np.dtype(np.bool_), np.dtype(np.int64))
}


def bound_run(session: ort.InferenceSession, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> Run:
    """A call that runs the session from `feeds` into `outputs` without copies. The arrays must outlive it."""
    binding = bound_to(session, feeds)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, onnx_element_type(array.dtype), array.shape, array.ctypes.data)
    return functools.partial(session.run_with_iobinding, binding)


def bound_to(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> ort.IOBinding:
    """An IOBinding whose inputs are the memory of `feeds`."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_input(name, "cpu", 0, onnx_element_type(array.dtype), array.shape, array.ctypes.data)
    return binding


# torch


def torch_call(
    call: Call, made_by: Callable[[Any, Call], Callable[[], Any] | None] | None = None
) -> Callable[[], Any] | None:
    """A call of torch's equivalent of the op, on the same memory.

    Args:
        call: the call of the op.
        made_by: makes torch's call; default: that of the op's record.

    Returns:
        None without torch, or if torch does not have the op or the dtype.
    """
    made_by = made_by or RECORDS[call.op].torch
    if torch is None or made_by is None:
        return None
    warnings.filterwarnings("ignore", "reduction: 'mean' divides")  # kl_div advises batchmean
    try:
        run = made_by(torch, call)
        if run is not None:
            run()
    except NotImplementedError:  # a dtype that torch does not support
        return None
    return run


# Command line and files


def argument_parser(description: str | None, dtypes: Sequence[str], json_path: str | None) -> argparse.ArgumentParser:
    """A parser with the common options of the benchmarks; `dtypes` and `json_path` are defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--op", nargs="+", choices=list(RECORDS), default=list(RECORDS), metavar="OP")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=list(dtypes), metavar="DTYPE")
    parser.add_argument("--threads", type=int, default=available_cores(), help="of onnxruntime and of torch")
    parser.add_argument("--json", type=Path, default=json_path, metavar="PATH", help="default: %(default)s")
    return parser


def machine(threads: int) -> dict[str, str | int]:
    """Processor, number of cores and threads, system, versions of packages."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    packages = ["numpy", "onnx", "onnxruntime", "onnxruntime-extensions", "numba", *(["torch"] if torch else [])]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": available_cores(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file; its folder is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def write_rows(path: Path, machine: Mapping[str, str | int], rows: Sequence[Any], tables: str) -> Path:
    """Write results as JSON and as Markdown.

    Args:
        path: of the JSON file.
        machine: as of `machine`.
        rows: dataclasses.
        tables: the contents of the Markdown file.

    Returns:
        The path of the Markdown file, `path` with the suffix .md.
    """
    write_json(path, {"machine": machine, "rows": [asdict(row) for row in rows]})
    summary = path.with_suffix(".md")
    summary.write_text(f"{tables}\n")
    return summary
