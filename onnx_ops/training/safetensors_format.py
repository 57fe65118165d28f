"""The safetensors format: the length of a header, the header in JSON, and the bytes of the tensors.

https://huggingface.co/docs/safetensors describes it. Tensors are written and read one by one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

import ml_dtypes
import numpy as np

from onnx_ops.graph.stored import OpenFile, Source, StoredTensor, blocks
from onnx_ops.training.errors import StepError

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "I16": np.int16,
        "U16": np.uint16,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "I32": np.int32,
        "U32": np.uint32,
        "F32": np.float32,
        "F64": np.float64,
        "I64": np.int64,
        "U64": np.uint64,
    }.items()
}
"""NumPy dtypes by their names in safetensors files. Tensors of the last one come first, so that all are aligned."""

METADATA = "__metadata__"
LENGTH = 8
"""Bytes of the header's length, of which the header's length is a multiple."""
LONGEST_HEADER = 100_000_000
"""Bytes, as in the library safetensors."""


def write_safetensors(path: Path, tensors: Mapping[str, Source], metadata: Mapping[str, str]) -> dict[str, int]:
    """Write a file of tensors, with strings as metadata.

    Returns:
        The offset of each tensor in the file.

    Raises:
        OSError: a file that cannot be written.
        StepError: a dtype that safetensors files do not have.
    """
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}
    names = {dtype: name for name, dtype in DTYPES.items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in ranks:
            raise StepError(f"'{name}' is of dtype {tensor.dtype}, which safetensors files do not have")
    header: dict[str, object] = {METADATA: dict(sorted(metadata.items()))}
    order = sorted(tensors, key=lambda name: (-ranks[tensors[name].dtype], name))
    starts, end = {}, 0
    for name in order:
        starts[name], end = end, end + tensors[name].nbytes
        shape, offsets = list(tensors[name].shape), [starts[name], end]
        header[name] = {"dtype": names[tensors[name].dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text = text.ljust(math.ceil(len(text) / LENGTH) * LENGTH)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH, "little") + text)
        for name in order:
            for block in blocks(tensors[name]):
                file.write(block)
    return {name: LENGTH + len(text) + start for name, start in starts.items()}


def open_safetensors(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of a file, which are not read yet, and its metadata.

    Raises:
        OSError: a file that cannot be read.
        StepError: no safetensors file; a dtype that NumPy does not have.
    """
    file = OpenFile(path)
    try:
        header, start = _header(file)
        metadata = header.pop(METADATA, None) or {}  # which may be null
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError(f"its '{METADATA}' is no object of strings")
        tensors = {name: _tensor(file, start, name, entry) for name, entry in header.items()}
        end = start
        for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
            _require(tensor.offset == end, "its tensors do not follow one another")
            end += tensor.nbytes
        _require(end == file.size, f"its tensors end at byte {end}, the file at {file.size}")
    except ValueError as error:
        if isinstance(error, StepError):
            raise
        raise StepError(f"{path} is no safetensors file: {error}") from error
    return tensors, metadata


def _header(file: OpenFile) -> tuple[dict[str, object], int]:
    """The header, and the offset of the bytes after it."""
    _require(file.size >= LENGTH, "it is too short for a header")
    length = int.from_bytes(file.read(0, LENGTH), "little")
    _require(length <= min(file.size - LENGTH, LONGEST_HEADER), f"its header would have {length} bytes")
    try:
        header = json.loads(file.read(LENGTH, length))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header, LENGTH + length


def _tensor(file: OpenFile, start: int, name: str, entry: object) -> StoredTensor:
    keys = ("dtype", "shape", "data_offsets")
    dtype, shape, offsets = (entry.get(key) for key in keys) if isinstance(entry, dict) else (None, None, None)
    if not (isinstance(dtype, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise ValueError(f"'{name}' is {json.dumps(entry)}, expected dtype, shape and data_offsets")
    if dtype not in DTYPES:
        raise StepError(f"'{name}' in {file.path} is of dtype {dtype}, which NumPy does not have")
    tensor = StoredTensor(file, start + offsets[0], DTYPES[dtype], tuple(shape))
    _require(offsets[1] - offsets[0] == tensor.nbytes, f"'{name}' has {offsets[1] - offsets[0]} bytes")
    return tensor


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)
