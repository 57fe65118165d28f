"""Model files: reading, checks of external data, and atomic writing."""

from __future__ import annotations

import contextlib
import filecmp
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_ops.core.errors import Error, LinkError
from onnx_ops.graph import reading
from onnx_ops.graph.light import read_light
from onnx_ops.graph.staging import is_replaceable, staging_folder
from onnx_ops.graph.stored import OpenFile, StoredTensor
from onnx_ops.graph.walk import tensors

MOST_BYTES = 2**31 - 1
"""Maximum size of a protobuf message."""
STORED_DTYPES: dict[int, np.dtype] = {
    element: np.dtype(helper.tensor_dtype_to_np_dtype(element))
    for element in (
        *(TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    )
}
"""The dtypes whose elements have the same bytes in a file as in an array."""


class ModelFileError(Error, ValueError):
    """An unreadable or invalid model file, a path that cannot be written, or missing external data."""


def read_model(path: Path) -> onnx.ModelProto:
    """A model in the format of the file's extension; external data stays external.

    Raises:
        ModelFileError: a file that cannot be read, or is not a model.
    """
    with _errors_of_reading(path):
        return reading.read(path)


def read_light_model(path: Path) -> onnx.ModelProto:
    """As `read_model`; large initializers of the graph are external data in the model's own file."""
    with _errors_of_reading(path):
        model, _ = read_light(path)
        return model


@contextlib.contextmanager
def _errors_of_reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from error
    except LinkError as error:
        raise ModelFileError(str(error)) from error


def write_model(model: onnx.ModelProto, path: Path, source: Path) -> list[str]:
    """Write a model and the files of its external data next to it: all of them or none.

    Args:
        model: the model.
        path: a new file or one to replace; its extension determines the format.
        source: the file of the model, next to which its external data is.

    Returns:
        The copied files of external data, relative to the folder of `path`.

    Raises:
        ModelFileError: external data that is missing or would replace another file; a path that cannot be written; a
            format that cannot represent the model.
    """
    data, data_folder = external_files(model, source), source.parent
    if path in [path.parent / location for location in data]:
        raise ModelFileError(f"cannot write {path}: the model keeps external data in a file of that name")
    try:
        if not is_replaceable(path):
            raise ModelFileError(f"cannot write {path}: it is not a regular file")
        copied = [location for location in data if _must_be_copied(data_folder / location, path.parent / location)]
        with staging_folder(path.parent) as staging:
            _save(model, staging / path.name)
            if path.exists():
                shutil.copymode(path, staging / path.name)
            for location in copied:
                (staging / location).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(data_folder / location, staging / location)
            for location in (*copied, path.name):  # the model last, so that it never exists without its data
                (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
                (staging / location).replace(path.parent / location)
    except OSError as error:
        raise ModelFileError(f"cannot write {path}: {error.strerror}") from error
    return copied


def external_files(model: onnx.ModelProto, path: Path) -> list[str]:
    """The files of external data of a model at `path`, relative to its folder.

    Raises:
        ModelFileError: a file that is missing, too short or outside the folder. If `path` is a symbolic link, files may
            be links into the folder of its target.
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
                raise ModelFileError(f"tensor '{tensor.name}' has its data in {data}, which does not exist")
            if not any(data.resolve().is_relative_to(place) for place in allowed):
                raise ModelFileError(
                    f"tensor '{tensor.name}' has its data in {data}, a link to {data.resolve()}, expected a file below"
                    " the model's folder, as onnxruntime requires"
                )
            sizes[extent.location] = size
        available = sizes[extent.location]
        if available < extent.end:
            raise ModelFileError(
                f"tensor '{tensor.name}' has its data in {data} up to byte {extent.end}, which ends at {available}"
            )
    return list(sizes)


def embed_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Read the external data of a model at `path` into the model, after a check by `external_files`."""
    ExternalData(path).embed_all(model)


class ExternalData:
    """The external data of a model at `path`, to be read after a check by `external_files`.

    Args:
        path: the model's file.
        opened: files that are open already, by their paths relative to its folder.
    """

    def __init__(self, path: Path, opened: Mapping[str, OpenFile] | None = None) -> None:
        self._folder = path.parent
        self._files = dict(opened or {})

    def embed_all(self, model: onnx.ModelProto) -> None:
        """Read the data of all tensors of the model into it."""
        for tensor in _external_tensors(model):
            self.embed(tensor)

    def embed(self, tensor: TensorProto) -> None:
        """Read the data of a tensor into it."""
        file, extent = self._file(tensor)
        tensor.raw_data = file.read(extent.offset, extent.length_in(file))
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")

    def stored(self, tensor: TensorProto) -> StoredTensor | None:
        """A tensor without reading its data; None if they are not the elements of an array of its dtype and shape."""
        file, extent = self._file(tensor)
        dtype = STORED_DTYPES.get(tensor.data_type)
        shape = tuple(tensor.dims)
        if dtype is None or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != extent.length_in(file):
            return None
        return StoredTensor(file, extent.offset, dtype, shape)

    def _file(self, tensor: TensorProto) -> tuple[OpenFile, _Extent]:
        extent = _extent(tensor)
        if extent.location not in self._files:
            self._files[extent.location] = OpenFile(self._folder / extent.location)
        return self._files[extent.location], extent


def _external_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    return (tensor for tensor in tensors(model) if tensor.data_location == TensorProto.EXTERNAL)


def _size(path: Path) -> int | None:
    """The size of a file; None if it does not exist or cannot be accessed."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


@dataclass(frozen=True)
class _Extent:
    """The file, offset and length of a tensor's external data; without a length, up to the end of the file."""

    location: str
    offset: int
    length: int | None

    @property
    def end(self) -> int:
        return self.offset + (self.length or 0)

    def length_in(self, file: OpenFile) -> int:
        """The length in a file that is not shorter than `end`."""
        return max(file.size - self.offset, 0) if self.length is None else self.length


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
        raise ModelFileError(f"tensor '{tensor.name}' has an invalid extent of external data: {error}") from error


def _must_be_copied(source: Path, target: Path) -> bool:
    if not target.exists():
        return True
    if target.samefile(source) or filecmp.cmp(source, target, shallow=False):
        return False
    raise ModelFileError(f"cannot copy {source}: {target} exists already, with different contents")


def _save(model: onnx.ModelProto, path: Path) -> None:
    try:
        onnx.save_model(model, path)
        # A text format may lose information; a file that reads back differently must not replace the model.
        faithful = reading.is_protobuf(path) or same_model(reading.read(path), model)
    except OSError:
        raise
    except Exception as error:  # each format raises exceptions of its own
        raise ModelFileError(f"cannot write {path.name}: {reading.one_line(error)}") from error
    if not faithful:
        raise ModelFileError(f"cannot write {path.name}: a file with this extension cannot hold all of the model")


def same_model(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """Whether two models are equal byte by byte; comparing messages would treat NaN as different from itself."""
    return one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
