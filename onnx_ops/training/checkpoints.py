"""Checkpoints: arrays by name in a safetensors file, which is written atomically."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from onnx_ops.core.step_format import CHECKSUM_METADATA, FORMAT, FORMAT_METADATA, UNVERSIONED, check_format
from onnx_ops.graph.staging import staging_folder
from onnx_ops.training.errors import StepError

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "U16": np.uint16,
        "I16": np.int16,
        "U32": np.uint32,
        "I32": np.int32,
        "U64": np.uint64,
        "I64": np.int64,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "F32": np.float32,
        "F64": np.float64,
    }.items()
}
"""NumPy dtypes by their names in safetensors files."""


def write_checkpoint(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write contiguous arrays, and strings as metadata; an existing file is replaced once the new one is on disk.

    Raises:
        OSError: a file that cannot be written.
        StepError: a path that is no regular file; a dtype that safetensors files do not have.
    """
    import safetensors
    import safetensors.numpy

    for name, array in arrays.items():
        if array.dtype not in DTYPES.values():
            raise StepError(f"'{name}' is of dtype {array.dtype}, which safetensors files do not have")
    try:
        with _replacing(path) as staged:
            texts = {**metadata, FORMAT_METADATA: str(FORMAT)}
            texts[CHECKSUM_METADATA] = _checksum(arrays, texts)
            safetensors.numpy.save_file(dict(arrays), staged, texts)
            _sort_metadata(staged)
    except safetensors.SafetensorError as error:  # a full disk, say
        raise OSError(f"cannot write {path}: {error}") from error
    except OSError as error:  # which names a temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sort_metadata(path: Path) -> None:
    """Sort the metadata in the header of a safetensors file, which the library writes in random order."""
    with open(path, "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(size)
        if len(ordered) == size:  # both write compact JSON
            file.seek(8)
            file.write(ordered)


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of a safetensors file, and its metadata without checksum and format version.

    Raises:
        OSError: a file that cannot be read.
        StepError: no safetensors file; a format version that is not supported; a dtype that NumPy does not have; a
            wrong checksum. Files of other programs, without format version and checksum, are read too.
    """
    import safetensors

    content = path.read_bytes()
    try:
        arrays = dict(safetensors.deserialize(content))
    except safetensors.SafetensorError as error:
        raise StepError(f"{path} is no safetensors file: {error}") from error
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = header.get("__metadata__") or {}  # which may be null
    try:
        check_format(metadata.get(FORMAT_METADATA, str(UNVERSIONED)))
    except ValueError as error:
        raise StepError(f"{path} cannot be read: {error}") from error
    for name, array in arrays.items():
        if array["dtype"] not in DTYPES:
            raise StepError(f"'{name}' in {path} is of dtype {array['dtype']}, which NumPy does not have")
    found = {
        name: np.frombuffer(array["data"], DTYPES[array["dtype"]]).reshape(array["shape"])
        for name, array in arrays.items()
    }
    checksum = metadata.pop(CHECKSUM_METADATA, None)
    if checksum not in (None, _checksum(found, metadata)):
        raise StepError(f"{path} is damaged: its contents do not have the checksum that it was written with")
    metadata.pop(FORMAT_METADATA, None)
    return found, metadata


def _checksum(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes of the arrays, and of the metadata."""
    names = sorted(arrays)
    types = [[name, arrays[name].dtype.name, arrays[name].shape] for name in names]
    checksum = hashlib.sha256(json.dumps([types, sorted(metadata.items())]).encode())
    for name in names:
        checksum.update(arrays[name].reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """The path of a temporary file that atomically replaces `path` on exit, once it is on disk."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise StepError(f"cannot write {path}: it is no regular file")
    with staging_folder(path.parent) as folder:
        staged, usual = folder / "staged", folder / "usual"
        yield staged
        usual.touch()
        # safetensors ignores the umask and makes files that only their owner can read.
        shutil.copymode(path if path.exists() else usual, staged)
        _to_disk(staged)
        staged.replace(path)
    _to_disk(path.parent)


def _to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
