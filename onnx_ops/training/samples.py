"""Samples in arrays, and the batches of an epoch."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from onnx_ops.core.types import TensorType, shape_text
from onnx_ops.training.arrays import array_text, check_names, conversion_hint, numpy_dtype, tensor_text
from onnx_ops.training.errors import StepError

USUAL_BATCH_SIZE = 32


def read_arrays(path: Path, inputs: Mapping[str, TensorType]) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file for the inputs of a step.

    Names, dtypes and sizes are checked before anything is decompressed.

    Raises:
        OSError: a file that cannot be read.
        StepError: one that is no .npz file, or has arrays of other names or dtypes than the inputs.
    """
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            arrays = ", ".join(f"{name}=..." if name.isidentifier() else f"**{{{name!r}: ...}}" for name in inputs)
            wanted = f"expected what numpy.savez(path, {arrays}) writes"
            raise StepError(f"{path} is no .npz file, or not all of one; {wanted}")
        try:
            with zipfile.ZipFile(file) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                check_names(str(path), inputs, members)
                for name, tensor in inputs.items():
                    _check_header(archive, members[name], name, tensor)
                return {name: _read(archive, members[name], tensor) for name, tensor in inputs.items()}
        except (OSError, StepError):
            raise
        except Exception as error:  # zip files and arrays in them have exceptions of their own
            raise StepError(f"{path} is no .npz file: {error}") from error


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of the header of an array, by version of the .npy format."""
_UNNAMED = np.dtype("V2")
"""The dtype of bfloat16 arrays in .npy files."""


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, tensor: TensorType) -> None:
    """Raise StepError for an array of another dtype, ValueError for one whose size does not fit its shape."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"'{name}' is of version {version} of NumPy's format, expected 1.0 or 2.0")
        shape, _, dtype = _HEADERS[version](file)
        rest = member.file_size - file.tell()
    wanted = numpy_dtype(tensor)
    if dtype != wanted and not (wanted == ml_dtypes.bfloat16 and dtype == _UNNAMED):
        given = tensor_text(tensor)
        raise StepError(
            f"'{name}' of the data is {dtype} {shape_text(shape)}, expected {given}; {conversion_hint(wanted)}"
        )
    if math.prod(shape) * dtype.itemsize != rest:
        raise ValueError(f"'{name}' is {dtype} {shape_text(shape)} by its header, but has {rest} bytes")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, tensor: TensorType) -> np.ndarray:
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    return array.view(numpy_dtype(tensor))


@dataclass(frozen=True)
class Samples:
    """The samples of a training.

    Attributes:
        arrays: by the names of the step's inputs.
        axes: for each input the batch axis of its array; an array without one is passed whole to each step.
        count: number of samples; 1 if all arrays are passed whole.
        batch_size: number of samples in a batch.
        fixed: whether the step takes no smaller batch, so that the remainder of each epoch is dropped.
    """

    arrays: Mapping[str, np.ndarray]
    axes: Mapping[str, int]
    count: int
    batch_size: int
    fixed: bool

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, np.ndarray],
        inputs: Mapping[str, TensorType],
        batch_size: int | None = None,
        batch_dimension: str | None = None,
    ) -> Samples:
        """Determine the batch axes.

        With `batch_dimension`, the batch axis of an input is the dimension of that name; an array whose input has none
        is passed whole. Without it, the batch axis is the first one if its dimension in the step is symbolic or
        unknown; symbolic ones must have the same name. If that dimension is fixed, the array is passed whole if it has
        that size, else its batch axis is the first one.

        Args:
            arrays: for each of `inputs`.
            inputs: the inputs of the step's batch.
            batch_size: number of samples in a batch; by default that of the step if it is fixed, else 32.
            batch_dimension: name of a dimension.

        Raises:
            StepError: an ambiguous batch axis; arrays with different numbers of samples, or none; a batch size that the
                step does not take.
        """
        _check_dimension(inputs, batch_dimension)
        for name, tensor in inputs.items():
            if tensor.shape is not None and arrays[name].ndim != len(tensor.shape):
                raise StepError(f"'{name}' of the data is {array_text(arrays[name])}, expected {tensor_text(tensor)}")
        axes = {
            name: axis
            for name, tensor in inputs.items()
            if (axis := _axis(arrays[name], tensor, batch_dimension)) is not None
        }
        counts = {arrays[name].shape[axis]: name for name, axis in axes.items()}
        if len(counts) > 1:
            listed = ", ".join(f"{count} of '{name}'" for count, name in counts.items())
            raise StepError(f"the arrays have different numbers of samples: {listed}")
        count = next(iter(counts), 1)
        sizes = {size for name, axis in axes.items() if isinstance(size := (inputs[name].shape or (None,))[axis], int)}
        if len(sizes) > 1:
            raise StepError(f"the step takes {' and '.join(map(str, sorted(sizes)))} samples at a time")
        fixed = next(iter(sizes), None)
        if fixed is not None and batch_size not in (None, fixed):
            raise StepError(f"the batch size is {batch_size}, expected {fixed}, as the step takes no other")
        size = fixed or batch_size or min(USUAL_BATCH_SIZE, count)
        if count < (1 if fixed is None else fixed):
            raise StepError(f"there are {count} samples, expected at least {fixed or 1}")
        return cls(arrays, axes, count, size, fixed is not None)

    @property
    def steps(self) -> int:
        """Number of batches in an epoch."""
        return self.count // self.batch_size if self.fixed else -(-self.count // self.batch_size)

    @property
    def left_out(self) -> int:
        """Number of samples that each epoch drops, different ones each time."""
        return self.count % self.batch_size if self.fixed else 0

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """A permutation of the samples, a function of seed and epoch."""
        return np.random.default_rng([seed, epoch]).permutation(self.count)

    def batch(self, order: np.ndarray, number: int) -> dict[str, np.ndarray]:
        """Batch `number`, counted from 0, of an epoch with this order of samples."""
        chosen = self.chosen(order, number)
        return {
            name: array.take(chosen, self.axes[name]) if name in self.axes else array
            for name, array in self.arrays.items()
        }

    def chosen(self, order: np.ndarray, number: int) -> np.ndarray:
        """The indices of the samples in a batch."""
        return order[number * self.batch_size : (number + 1) * self.batch_size]


def counted_axis(inputs: Mapping[str, TensorType], batch_dimension: str | None = None) -> tuple[str, int] | None:
    """The input, and its axis, whose size is the number of samples in a batch; None if the step fixes that number.

    Args:
        inputs: the inputs of the step's batch.
        batch_dimension: name of a dimension; by default that of the first axis of an input, preferably a symbolic one.

    Raises:
        StepError: an ambiguous axis.
    """
    _check_dimension(inputs, batch_dimension)
    if batch_dimension is not None:
        return next(
            (name, axis)
            for name, tensor in inputs.items()
            for axis, size in enumerate(tensor.shape or ())
            if size == batch_dimension
        )
    firsts = {name: None if t.shape is None else t.shape[0] for name, t in inputs.items() if t.shape != ()}
    found = [name for kind in (str, type(None)) for name, size in firsts.items() if isinstance(size, kind)]
    return (found[0], 0) if found else None


def _check_dimension(inputs: Mapping[str, TensorType], batch_dimension: str | None) -> None:
    names = {t.shape[0]: name for name, t in inputs.items() if t.shape and isinstance(t.shape[0], str)}
    if batch_dimension is None and len(names) > 1:
        listed = ", ".join(f"'{dim}' of '{name}'" for dim, name in names.items())
        raise StepError(f"the first dimensions of the inputs have different names, {listed}: name the batch dimension")
    if batch_dimension is not None and all(batch_dimension not in (t.shape or ()) for t in inputs.values()):
        raise StepError(f"no input has a dimension named '{batch_dimension}'")


def _axis(array: np.ndarray, tensor: TensorType, batch_dimension: str | None) -> int | None:
    shape = tensor.shape
    if batch_dimension is not None:
        return shape.index(batch_dimension) if shape and batch_dimension in shape else None
    if not array.ndim or shape == ():
        return None
    first = None if shape is None else shape[0]
    return None if isinstance(first, int) and array.shape[0] == first else 0
