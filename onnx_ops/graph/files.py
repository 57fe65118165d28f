"""Models as files: read, their external data looked for, and written in one go."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import onnx
from onnx import TensorProto
from onnx.serialization import registry

from onnx_ops.core.errors import LinkError
from onnx_ops.graph import reading
from onnx_ops.graph.staging import staging_folder
from onnx_ops.graph.walk import tensors


class ModelFileError(ValueError):
    """A file that holds no model or cannot be written, or weights that are not where a model looks for them."""


def read_model(path: Path) -> onnx.ModelProto:
    """A model in the format that the file's ending stands for; external data stays external.

    Raises:
        ModelFileError: a file that cannot be read, or that is no model.
    """
    try:
        return reading.read(path)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from error
    except LinkError as error:
        raise ModelFileError(str(error)) from error


def write_model(model: onnx.ModelProto, path: Path, source: Path) -> list[str]:
    """Write a model and, beside it, the files of its external data: all of it or nothing.

    Args:
        model: what to write, in the format that the ending of `path` stands for.
        path: a new file or one to replace.
        source: the file that it comes from; its external data lies beside that.

    Returns:
        The files of external data that were copied, relative to the folder of `path`.

    Raises:
        ModelFileError: external data that is not there or would replace another file; a path that cannot be written;
            a format that cannot hold the model.
    """
    data, data_folder = external_files(model, source), source.parent
    if path in [path.parent / location for location in data]:
        raise ModelFileError(f"cannot write {path}: the model keeps external data in a file of that name")
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ModelFileError(f"cannot write {path}: it is no regular file")
        copied = [location for location in data if _must_be_copied(data_folder / location, path.parent / location)]
        with staging_folder(path.parent) as staging:
            _save(model, staging / path.name)
            if path.exists():
                shutil.copymode(path, staging / path.name)
            for location in copied:
                (staging / location).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(data_folder / location, staging / location)
            for location in (*copied, path.name):  # the model last: it is never there without its data
                (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
                (staging / location).replace(path.parent / location)
    except OSError as error:
        raise ModelFileError(f"cannot write {path}: {error.strerror}") from error
    return copied


def external_files(model: onnx.ModelProto, path: Path) -> list[str]:
    """The files that hold the external data of a model that lies at `path`, relative to its folder.

    Raises:
        ModelFileError: a file that is not there, that is too short, or that lies outside of the folder; a symbolic link
            may lead to where the model lies itself if `path` is one.
    """
    folder = path.parent
    allowed = {folder.resolve(), path.resolve().parent}
    sizes: dict[str, int] = {}
    for tensor in _external_tensors(model):
        extent = _extent(tensor)
        data = folder / extent.location
        if extent.location not in sizes:
            size = _size(data)
            if size is None:
                raise ModelFileError(f"tensor '{tensor.name}' has its data in {data}, which is not there")
            if not any(data.resolve().is_relative_to(place) for place in allowed):
                raise ModelFileError(
                    f"tensor '{tensor.name}' has its data in {data}, a link to {data.resolve()}, expected a file below"
                    " the model's folder, for onnxruntime takes no other"
                )
            sizes[extent.location] = size
        available = sizes[extent.location]
        if available < extent.end:
            raise ModelFileError(
                f"tensor '{tensor.name}' has its data in {data} up to byte {extent.end}, which ends at {available}"
            )
    return list(sizes)


def embed_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Read the external data of a model that lies at `path` into it; `external_files` has found it in order."""
    for tensor in _external_tensors(model):
        extent = _extent(tensor)
        with (path.parent / extent.location).open("rb") as file:
            file.seek(extent.offset)
            tensor.raw_data = file.read(extent.length)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _external_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    return (tensor for tensor in tensors(model) if tensor.data_location == TensorProto.EXTERNAL)


def _size(path: Path) -> int | None:
    """The size of a file; None if there is none that can be reached."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


@dataclass(frozen=True)
class _Extent:
    """Where a tensor's external data lies, as far as the tensor tells; without a length to the end of the file."""

    location: str
    offset: int
    length: int | None

    @property
    def end(self) -> int:
        return self.offset + (self.length or 0)


def _extent(tensor: TensorProto) -> _Extent:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if not location or PurePath(location).is_absolute() or ".." in PurePath(location).parts:
        raise ModelFileError(
            f"tensor '{tensor.name}' has its data in '{location}', expected a file below the model's folder"
        )
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries["length"]) if "length" in entries else None
        if min(offset, length or 0) < 0:
            raise ValueError(f"offset {offset}, length {length}")
        return _Extent(location, offset, length)
    except ValueError as error:
        raise ModelFileError(f"tensor '{tensor.name}' has external data of no proper extent: {error}") from error


def _must_be_copied(source: Path, target: Path) -> bool:
    if not target.exists():
        return True
    if target.samefile(source) or filecmp.cmp(source, target, shallow=False):
        return False
    raise ModelFileError(f"cannot copy {source}: {target} is there already, with other contents")


def _save(model: onnx.ModelProto, path: Path) -> None:
    try:
        onnx.save_model(model, path)
        # A text format may leave something out; what cannot be read back must not take the model's place.
        binary = registry.get_format_from_file_extension(path.suffix) in (None, "protobuf")
        faithful = binary or same_model(reading.read(path), model)
    except OSError:
        raise
    except Exception as error:  # the writer and the parser of each format have exceptions of their own
        raise ModelFileError(f"cannot write {path.name}: {reading.one_line(error)}") from error
    if not faithful:
        raise ModelFileError(f"cannot write {path.name}: a file with this ending does not hold all of the model")


def same_model(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """Whether two models agree in every byte; the comparison of messages takes NaN for different from itself."""
    return one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
