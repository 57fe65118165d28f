"""Columns in Parquet files and in data sets of Hugging Face, where pyarrow and datasets are installed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from onnx_ops.core.types import TensorType, shape_text
from onnx_ops.fitting.columns import Column, Table
from onnx_ops.training.arrays import check_names, tensor_text
from onnx_ops.training.errors import StepError

if TYPE_CHECKING:
    import datasets
    import pyarrow

INSTALLATION = "pip install 'onnx-ops[data]'"


def read_parquet(paths: Sequence[Path], inputs: Mapping[str, TensorType]) -> dict[str, Column]:
    """Read the columns of Parquet files for the inputs of a step; other columns are not read.

    They are copied row group by row group into temporary files, which are memory-mapped, as Parquet has no access to
    single rows. Rows are numbers, or lists of as many numbers in each row.

    Raises:
        OSError: a file that cannot be read.
        StepError: no Parquet file; missing columns; what are no numbers; lists of different lengths; missing values.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise StepError(f"{paths[0]} needs pyarrow, which is not installed: {INSTALLATION}") from error
    try:
        files = [parquet.ParquetFile(path) for path in paths]
        rows = sum(file.metadata.num_rows for file in files)
        columns: dict[str, np.ndarray] = {}
        first = 0
        for path, file in zip(paths, files, strict=True):
            check_names(str(path), inputs, set(file.schema_arrow.names) & inputs.keys())
            for batch in file.iter_batches(columns=list(inputs)):
                for name in inputs:
                    part = array_of(batch.column(name), f"'{name}' of {path}")
                    if name not in columns:
                        columns[name] = _temporary(part.dtype, (rows, *part.shape[1:]))
                    whole = columns[name]
                    if (part.dtype, part.shape[1:]) != (whole.dtype, whole.shape[1:]):
                        raise StepError(
                            f"rows of '{name}' of {path} are {part.dtype} {shape_text(part.shape[1:])}, expected"
                            f" {whole.dtype} {shape_text(whole.shape[1:])} as in the first ones"
                        )
                    whole[first : first + len(part)] = part
                first += batch.num_rows
    except (OSError, StepError):
        raise
    except Exception as error:  # pyarrow's errors derive from several classes
        raise StepError(f"{paths[0]} is no Parquet file that can be read: {error}") from error
    if not rows:
        raise StepError(f"{paths[0]} has no rows")
    return dict(columns)


def _temporary(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array in a temporary file, which is removed with it."""
    if 0 in shape:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        return np.asarray(np.memmap(file, dtype, "w+", shape=shape))


def array_of(column: pyarrow.Array | pyarrow.ChunkedArray, what: str) -> np.ndarray:
    """The rows of a column of Arrow as an array; nested lists become further axes.

    Raises:
        StepError: what are no numbers; lists of different lengths; missing values. Messages begin with `what`.
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        parts = [array_of(chunk, what) for chunk in column.chunks if len(chunk)]
        shapes = sorted({part.shape[1:] for part in parts})
        if len(shapes) > 1:
            raise StepError(f"{what} has rows of shapes {' and '.join(map(shape_text, shapes))}, expected one")
        return np.concatenate(parts) if parts else np.empty(0)
    if isinstance(column, pa.ExtensionArray):
        is_tensor = isinstance(column.type, pa.FixedShapeTensorType)
        shape = tuple(column.type.shape) if is_tensor else ()
        rows = array_of(column.storage, what)
        return rows.reshape(len(column), *shape) if is_tensor else rows
    if column.null_count:
        raise StepError(f"{what} has {column.null_count} missing values, expected none")
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        elements = array_of(column.flatten(), what)
        lengths = np.diff(column.offsets.to_numpy()) if hasattr(column, "offsets") else np.array([kind.list_size])
        if len(set(lengths.tolist())) > 1:
            found = f"{lengths.min()} to {lengths.max()}"
            raise StepError(f"{what} has lists of {found} elements, expected the same number in each row")
        return elements.reshape(len(column), int(lengths[0]) if len(lengths) else 0, *elements.shape[1:])
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise StepError(f"{what} is of Arrow's type {kind}, expected numbers, or lists of them")
    return column.to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class _Rows:
    """A column of a data set of Hugging Face.

    Attributes:
        dataset: with this column, as Arrow.
        name: of the column.
        label: of the data set, in messages.
    """

    dataset: datasets.Dataset
    name: str
    label: str

    @cached_property
    def _first(self) -> np.ndarray:
        return self.take(np.arange(min(1, len(self.dataset))), 0)

    @property
    def dtype(self) -> np.dtype:
        return self._first.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.dataset), *self._first.shape[1:])

    def take(self, indices: np.ndarray, axis: int, /) -> np.ndarray:
        """The rows at these indices; `axis` is 0."""
        return array_of(self.dataset[indices.tolist()].column(self.name), f"'{self.name}' of {self.label}")


def table_of_dataset(dataset: datasets.Dataset, label: str, inputs: Mapping[str, TensorType]) -> Table:
    """The columns of a data set of Hugging Face for the inputs of a step; rows are read when they are needed.

    Raises:
        StepError: missing columns; no rows.
    """
    check_names(label, inputs, set(dataset.column_names) & inputs.keys())
    if not len(dataset):
        raise StepError(f"{label} has no rows")
    for name, tensor in inputs.items():
        if tensor.shape is not None and not tensor.shape:
            raise StepError(f"'{name}' is {tensor_text(tensor)}, which a column of {label} cannot be")
    return Table(label, {n: _Rows(dataset.select_columns([n]).with_format("arrow"), n, label) for n in inputs})


def load_dataset(folder: Path, inputs: Mapping[str, TensorType]) -> Table:
    """The data set that `datasets.Dataset.save_to_disk` has written to a folder; errors as `table_of_dataset`."""
    try:
        from datasets import Dataset, load_from_disk
    except ImportError as error:
        raise StepError(f"{folder} needs datasets, which is not installed: {INSTALLATION}") from error
    found = load_from_disk(str(folder))
    if not isinstance(found, Dataset):
        raise StepError(f"{folder} has several data sets: {', '.join(found)}; expected the folder of one of them")
    return table_of_dataset(found, str(folder), inputs)
