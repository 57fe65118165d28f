"""Arrays in files: .npy, .npz, .safetensors, and raw .bin as tools of CANN write it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from onnx_ops.core.errors import Error
from onnx_ops.core.types import shape_text
from onnx_ops.training.errors import StepError
from onnx_ops.training.safetensors_format import open_safetensors

SUFFIXES = (".npy", ".npz", ".safetensors", ".bin")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SAVED_BFLOAT16 = np.dtype("V2")
"""The dtype that NumPy writes into .npy files for bfloat16, which it does not know."""


class ArrayFileError(Error, ValueError):
    """A file that holds no arrays, or other ones than expected."""


@dataclass(frozen=True)
class Layout:
    """Dtype and shape of the array in a raw file; without a shape it is a vector of all elements."""

    dtype: np.dtype
    shape: tuple[int, ...] | None

    @classmethod
    def parsed(cls, text: str) -> Layout:
        """From a text such as "float16:3x4", "float16:" for a scalar, or "float16"; ArrayFileError for another one."""
        name, colon, sizes = text.partition(":")
        dtype = BFLOAT16 if name == BFLOAT16.name else _DTYPES.get(name)
        if dtype is None or not re.fullmatch(r"(\d+(x\d+)*)?", sizes):
            known = ", ".join((*_DTYPES, BFLOAT16.name))
            raise ArrayFileError(f"'{text}' is no dtype and shape such as float16:3x4; the dtypes are {known}")
        return cls(dtype, tuple(map(int, filter(None, sizes.split("x")))) if colon else None)

    def read(self, path: Path) -> np.ndarray:
        """The array in a file that holds its elements only, little-endian; ArrayFileError for one of another size."""
        data = path.read_bytes()
        shape = (len(data) // self.dtype.itemsize,) if self.shape is None else self.shape
        size = math.prod(shape) * self.dtype.itemsize
        if len(data) != size:
            raise ArrayFileError(f"{path} has {len(data)} bytes, expected {size}: {self.dtype} {shape_text(shape)}")
        return np.frombuffer(data, self.dtype).reshape(shape)


_DTYPES = {
    np.dtype(kind).name: np.dtype(kind)
    for kind in ("?", "u1", "i1", "<u2", "<i2", "<f2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8")
}


def read_arrays(path: Path, layout: Layout | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file by name; that of an .npy or .bin file is named as the file.

    Args:
        path: a file with one of `SUFFIXES`.
        layout: of a raw .bin file.

    Raises:
        ArrayFileError: no such file, or one with pickled objects; a .bin file without a layout, or of another size.
        OSError: a file that cannot be read.
    """
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ArrayFileError(f"{path} is no file of arrays, expected one of {', '.join(SUFFIXES)}")
    if kind == ".bin":
        if layout is None:
            raise ArrayFileError(f"{path} has neither dtype nor shape, expected --like, such as --like float16:3x4")
        return {path.stem: layout.read(path)}
    if kind == ".safetensors":
        try:
            tensors, _ = open_safetensors(path)
        except StepError as error:
            raise ArrayFileError(str(error)) from error
        return {name: np.asarray(tensor) for name, tensor in tensors.items()}
    try:
        loaded = np.load(path, allow_pickle=False)
        found = {path.stem: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, EOFError) as error:
        raise ArrayFileError(f"{path} holds no arrays: {error}") from error
    return {name: array.view(BFLOAT16) if array.dtype == SAVED_BFLOAT16 else array for name, array in found.items()}


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an array into an .npy file, or its elements, little-endian, into a .bin file."""
    if path.suffix == ".bin":
        path.write_bytes(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    else:
        np.save(path, array, allow_pickle=False)


def array_files(folder: Path) -> Iterator[Path]:
    """The files of arrays in a folder and the folders in it, in order."""
    return (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES and path.is_file())


def pairs(
    got: Path, golden: Path, layout: Layout | None = None
) -> Iterator[tuple[str, np.ndarray | None, np.ndarray | None]]:
    """The arrays of two files or two folders that belong together, None where one is missing.

    Two files with one array each belong together, whatever their names; else arrays with the same name do, and in
    folders files with the same path, whatever their suffix.

    Raises:
        ArrayFileError: as `read_arrays`; a file and a folder; two files of a folder that differ in the suffix only.
        OSError: a file that cannot be read.
    """
    for path in (got, golden):
        path.stat()
    if got.is_dir() != golden.is_dir():
        file, folder = (golden, got) if got.is_dir() else (got, golden)
        raise ArrayFileError(f"{file} is a file and {folder} a folder, expected two files or two folders")
    if not got.is_dir():
        yield from _of_files(read_arrays(got, layout), read_arrays(golden, layout))
        return
    ours, theirs = _by_name(got), _by_name(golden)
    for name in sorted(ours.keys() | theirs.keys()):
        both = [read_arrays(files[name], layout) if name in files else {} for files in (ours, theirs)]
        alone = all(len(found) < 2 for found in both)
        for inner, ours_here, theirs_here in _of_files(*both):
            yield name if alone else f"{name}/{inner}", ours_here, theirs_here


def _of_files(
    got: Mapping[str, np.ndarray], golden: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray | None, np.ndarray | None]]:
    if len(got) == len(golden) == 1:
        (ours,), ((name, theirs),) = got.values(), golden.items()
        yield name, ours, theirs
        return
    for name in sorted(got.keys() | golden.keys()):
        yield name, got.get(name), golden.get(name)


def _by_name(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in array_files(folder):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in found:
            raise ArrayFileError(f"{found[name]} and {path} have the same name, expected one of them")
        found[name] = path
    if not found:
        raise ArrayFileError(f"{folder} has no files of arrays: {', '.join(SUFFIXES)}")
    return found
