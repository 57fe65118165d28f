"""Where data come from: files, folders, arrays and data sets as tables."""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from onnx_ops.core.types import TensorType, shape_text
from onnx_ops.fitting.arrow import load_dataset, read_parquet, table_of_dataset
from onnx_ops.fitting.columns import Column, Table, check_dtype
from onnx_ops.training.arrays import check_names, numpy_dtype
from onnx_ops.training.errors import StepError
from onnx_ops.training.safetensors_format import open_safetensors

FORMATS = "a file .npz, .safetensors or .parquet, or a folder of .npy files, of .parquet files or of a saved data set"


def open_table(data: object, label: str, inputs: Mapping[str, TensorType], *, cast: bool = False) -> Table | None:
    """The table of arrays by name, of a path, or of a data set of Hugging Face; None for anything else.

    Args:
        data: what is opened. Files other than .npz are memory-mapped.
        label: of the data in messages, unless they are a file.
        inputs: the inputs of the step's batch.
        cast: whether dtypes may be others than those of the inputs.

    Raises:
        OSError: a file that cannot be read.
        StepError: what is none of the formats; names or dtypes that are not those of the inputs.
    """
    datasets = sys.modules.get("datasets")
    if isinstance(data, str | os.PathLike):
        table = _open_path(Path(data), inputs, cast)
    elif isinstance(data, Mapping):
        table = Table.of_arrays(label, data, inputs)
    elif datasets is not None and isinstance(data, datasets.Dataset):
        table = table_of_dataset(data, label, inputs)
    else:
        return None
    table.check_dtypes(inputs, cast)
    return table


def _open_path(path: Path, inputs: Mapping[str, TensorType], cast: bool) -> Table:
    columns: Mapping[str, Column]
    if path.is_dir():
        if (path / "state.json").exists() and (path / "dataset_info.json").exists():
            return load_dataset(path, inputs)
        files = sorted(path.glob("*.parquet"))
        columns = read_parquet(files, inputs) if files else map_folder(path, inputs)
    elif path.suffix == ".safetensors":
        columns = map_safetensors(path, inputs)
    elif path.suffix == ".parquet":
        columns = read_parquet([path], inputs)
    else:
        columns = read_npz(path, inputs, cast=cast)
    return Table(str(path), columns)


def read_npz(path: Path, inputs: Mapping[str, TensorType], *, cast: bool = False) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file for the inputs of a step.

    Names, dtypes and sizes are checked before anything is decompressed.

    Raises:
        OSError: a file that cannot be read.
        StepError: one that is no .npz file, or has arrays of other names or dtypes than the inputs.
    """
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            arrays = ", ".join(f"{name}=..." if name.isidentifier() else f"**{{{name!r}: ...}}" for name in inputs)
            wanted = f"expected {FORMATS}, such as numpy.savez(path, {arrays}) writes"
            raise StepError(f"{path} is no .npz file, or not all of one; {wanted}")
        try:
            with zipfile.ZipFile(file) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                check_names(str(path), inputs, members)
                for name, tensor in inputs.items():
                    _check_header(archive, members[name], f"'{name}' of {path}", tensor, cast)
                return {name: _read(archive, members[name], tensor) for name, tensor in inputs.items()}
        except (OSError, StepError):
            raise
        except Exception as error:  # zip files and arrays in them have exceptions of their own
            raise StepError(f"{path} is no .npz file: {error}") from error


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of the header of an array, by version of the .npy format."""
_UNNAMED = np.dtype("V2")
"""The dtype of bfloat16 arrays in .npy files."""


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str, tensor: TensorType, cast: bool) -> None:
    """Raise StepError for an array of another dtype, ValueError for one whose size does not fit its shape."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{what} is of version {version} of NumPy's format, expected 1.0 or 2.0")
        shape, _, dtype = _HEADERS[version](file)
        rest = member.file_size - file.tell()
    check_dtype(what, _named(dtype, tensor), shape, tensor, cast)
    if math.prod(shape) * dtype.itemsize != rest:
        raise ValueError(f"{what} is {dtype} {shape_text(shape)} by its header, but has {rest} bytes")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, tensor: TensorType) -> np.ndarray:
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    return array.view(_named(array.dtype, tensor))


def _named(dtype: np.dtype, tensor: TensorType) -> np.dtype:
    """The dtype of an array in a .npy file, for an input of that type."""
    wanted = numpy_dtype(tensor)
    return wanted if dtype == _UNNAMED and wanted == ml_dtypes.bfloat16 else dtype


def map_folder(folder: Path, inputs: Mapping[str, TensorType]) -> dict[str, np.ndarray]:
    """The .npy files of a folder, named as the inputs of a step, memory-mapped.

    Raises:
        OSError: a file that cannot be read.
        StepError: files of other names; files that are no arrays.
    """
    files = {path.name.removesuffix(".npy"): path for path in folder.glob("*.npy")}
    if not files:
        raise StepError(f"{folder} has no .npy files; expected {FORMATS}")
    check_names(str(folder), inputs, files)
    arrays = {}
    for name, tensor in inputs.items():
        try:
            array = np.load(files[name], mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise StepError(f"{files[name]} is no .npy file: {error}") from error
        if not isinstance(array, np.ndarray):
            raise StepError(f"{files[name]} is no .npy file")
        arrays[name] = np.asarray(array).view(_named(array.dtype, tensor))
    return arrays


def map_safetensors(path: Path, inputs: Mapping[str, TensorType]) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, memory-mapped.

    Raises:
        OSError: a file that cannot be read.
        StepError: no safetensors file, or one with tensors of other names.
    """
    tensors, _ = open_safetensors(path)
    check_names(str(path), inputs, tensors)
    mapped = np.asarray(np.memmap(path, np.uint8, "r"))
    found = {}
    for name in inputs:
        tensor = tensors[name]
        part = mapped[tensor.offset : tensor.offset + tensor.nbytes]
        found[name] = part.view(tensor.dtype).reshape(tensor.shape)
    return found
