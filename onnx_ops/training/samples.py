"""Arrays of samples, and the batches of an epoch."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from onnx_ops.core.types import TensorType, shape_text
from onnx_ops.training.step import StepError, array_text, check_names, conversion_hint, numpy_dtype, tensor_text

USUAL_BATCH_SIZE = 32


def read_arrays(path: Path, inputs: Mapping[str, TensorType]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file for the inputs of a step.

    Names and dtypes are compared before anything is decompressed.

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
"""What reads the headers of arrays, by the version of their format."""
_UNNAMED = np.dtype("V2")
"""All that .npz files say of bfloat16."""


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, tensor: TensorType) -> None:
    """Refuse an array of another dtype, or of more elements than the file has."""
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
        raise ValueError(f"'{name}' is said to be {dtype} {shape_text(shape)}, but has {rest} bytes")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, tensor: TensorType) -> np.ndarray:
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    return array.view(numpy_dtype(tensor))


@dataclass(frozen=True)
class Samples:
    """What a step is trained with.

    Attributes:
        arrays: by the names of the step's inputs.
        axes: the axis along which the samples lie; an array without one is given whole to each step.
        count: how many samples there are; 1 if all arrays are given whole.
        batch_size: how many of them a step takes.
        fixed: whether the step takes no fewer, so that the rest of each epoch is left out.
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
        """Find out along which axes the samples lie.

        An array lies along the dimension named `batch_dimension`; one whose input lacks it is given whole. Without that
        name: along the first axis if the step gives it a name or leaves it open, and the names agree; if its size is
        fixed, along the first axis if the array is longer there than the input, else the array is given whole.

        Args:
            arrays: for each of `inputs`.
            inputs: those of the step's batch.
            batch_size: how many samples a step takes; without one as many as the step says, else 32.
            batch_dimension: the name of a dimension.

        Raises:
            StepError: where it is not clear which axis that is; arrays with different numbers of samples, or none; a
                batch size that the step does not take.
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
            told = ", ".join(f"{count} of '{name}'" for count, name in counts.items())
            raise StepError(f"the arrays have different numbers of samples: {told}")
        count = next(iter(counts), 1)
        sizes = {size for name, axis in axes.items() if isinstance(size := (inputs[name].shape or (None,))[axis], int)}
        if len(sizes) > 1:
            raise StepError(f"the step takes {' and '.join(map(str, sorted(sizes)))} samples at a time")
        fixed = next(iter(sizes), None)
        if fixed is not None and batch_size not in (None, fixed):
            raise StepError(f"the batch size is {batch_size}, expected {fixed}, for the step takes no other")
        size = fixed or batch_size or min(USUAL_BATCH_SIZE, count)
        if count < (1 if fixed is None else fixed):
            raise StepError(f"there are {count} samples, expected at least {fixed or 1}")
        return cls(arrays, axes, count, size, fixed is not None)

    @property
    def steps(self) -> int:
        """How many batches an epoch has."""
        return self.count // self.batch_size if self.fixed else -(-self.count // self.batch_size)

    @property
    def left_out(self) -> int:
        """How many samples of each epoch are too few for a batch; others each time."""
        return self.count % self.batch_size if self.fixed else 0

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The samples of an epoch in an order of its own, which seed and epoch alone determine."""
        return np.random.default_rng([seed, epoch]).permutation(self.count)

    def batch(self, order: np.ndarray, number: int) -> dict[str, np.ndarray]:
        """The batch of this number, from 0 on, of an epoch."""
        chosen = self.chosen(order, number)
        return {
            name: array.take(chosen, self.axes[name]) if name in self.axes else array
            for name, array in self.arrays.items()
        }

    def chosen(self, order: np.ndarray, number: int) -> np.ndarray:
        """The samples in that batch."""
        return order[number * self.batch_size : (number + 1) * self.batch_size]


def counted_axis(inputs: Mapping[str, TensorType], batch_dimension: str | None = None) -> tuple[str, int] | None:
    """The input, and its axis, whose size is the number of samples in a batch; None if the step fixes that number.

    Args:
        inputs: those of the step's batch.
        batch_dimension: the name of a dimension; without it the first axis of an input counts, one with a name before
            others.

    Raises:
        StepError: where it is not clear which axis that is.
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
        told = ", ".join(f"'{dim}' of '{name}'" for dim, name in names.items())
        raise StepError(f"the first dimensions of the inputs have different names, {told}: say which is the batch")
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
