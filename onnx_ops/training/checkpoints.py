"""Checkpoints: arrays by name in a safetensors file with a checksum, which is written atomically."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from onnx_ops.core.step_format import CHECKSUM_METADATA, FORMAT_METADATA, UNCONDITIONAL, UNVERSIONED, check_format
from onnx_ops.graph.staging import is_replaceable, replacing
from onnx_ops.graph.stored import Source, StoredTensor, blocks
from onnx_ops.training.errors import StepError
from onnx_ops.training.safetensors_format import open_safetensors, write_safetensors


def write_checkpoint(path: Path, tensors: Mapping[str, Source], metadata: Mapping[str, str]) -> None:
    """Write tensors, and strings as metadata; an existing file is replaced once the new one is on disk.

    Raises:
        OSError: a file that cannot be written.
        StepError: a path that is no regular file; a dtype that safetensors files do not have.
    """
    if not is_replaceable(path):
        raise StepError(f"cannot write {path}: it is no regular file")
    with replacing(path) as folder:
        write_safetensors(folder / path.name, tensors, checkpoint_metadata(tensors, metadata))


def checkpoint_metadata(tensors: Mapping[str, Source], metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a checkpoint: those given, format version and checksum."""
    texts = {**metadata, FORMAT_METADATA: str(UNCONDITIONAL)}
    return {**texts, CHECKSUM_METADATA: _checksum(tensors, texts)}


def open_checkpoint(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of a safetensors file, and its metadata without checksum and format version.

    The tensors are read twice: for the checksum, block by block, and later where they are needed.

    Raises:
        OSError: a file that cannot be read.
        StepError: no safetensors file; a format version that is not supported; a dtype that NumPy does not have; a
            wrong checksum. Files of other programs, without format version and checksum, are read too.
    """
    tensors, metadata = open_safetensors(path)
    try:
        check_format(metadata.get(FORMAT_METADATA, str(UNVERSIONED)))
    except ValueError as error:
        raise StepError(f"{path} cannot be read: {error}") from error
    checksum = metadata.pop(CHECKSUM_METADATA, None)
    if checksum not in (None, _checksum(tensors, metadata)):
        raise StepError(f"{path} is damaged: its contents do not have the checksum that it was written with")
    metadata.pop(FORMAT_METADATA, None)
    return tensors, metadata


def _checksum(tensors: Mapping[str, Source], metadata: Mapping[str, str]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes of the tensors, and of the metadata."""
    names = sorted(tensors)
    types = [[name, tensors[name].dtype.name, tensors[name].shape] for name in names]
    checksum = hashlib.sha256(json.dumps([types, sorted(metadata.items())]).encode())
    for name in names:
        for block in blocks(tensors[name]):
            checksum.update(block)
    return checksum.hexdigest()
