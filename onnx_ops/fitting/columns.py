"""Columns: the samples of one input of a step, in memory or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from onnx_ops.core.types import TensorType, shape_text
from onnx_ops.training.arrays import check_names, check_unmasked, conversion_hint, numpy_dtype, tensor_text
from onnx_ops.training.errors import StepError


class Column(Protocol):
    """An array of which parts are read; NumPy's arrays, also memory-mapped ones, are columns."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def take(self, indices: np.ndarray, axis: int, /) -> Any:
        """The elements at these indices along an axis, as an array."""


@dataclass(frozen=True)
class Table:
    """Columns by name.

    Attributes:
        label: what the columns belong to, in messages.
        columns: by the names of the step's inputs.
    """

    label: str
    columns: Mapping[str, Column]

    @classmethod
    def of_arrays(cls, label: str, arrays: Mapping[str, Any], inputs: Mapping[str, TensorType]) -> Table:
        """A table of arrays in memory; StepError for names that are not those of the inputs, and for no arrays."""
        check_names(label, inputs, arrays)
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise StepError(
                    f"'{name}' of {label} is a {type(array).__name__}, expected an array, {tensor_text(inputs[name])}"
                )
            check_unmasked(name, array)
        return cls(label, {name: np.asarray(arrays[name]) for name in inputs})

    def check_dtypes(self, inputs: Mapping[str, TensorType], cast: bool) -> None:
        """Raise StepError for columns of other dtypes than the inputs, or with `cast` for those not converted."""
        for name, tensor in inputs.items():
            column = self.columns[name]
            check_dtype(f"'{name}' of {self.label}", column.dtype, column.shape, tensor, cast)


def check_dtype(what: str, dtype: np.dtype, shape: tuple[int, ...], tensor: TensorType, cast: bool) -> None:
    """Raise StepError for a column of another dtype than that of the input, or with `cast` for one not converted."""
    wanted = numpy_dtype(tensor)
    if dtype == wanted or (cast and _is_convertible(dtype, wanted)):
        return
    hint = conversion_hint(wanted)
    if not cast and _is_convertible(dtype, wanted):
        hint += ", or pass cast=True (--cast)"
    raise StepError(f"{what} is {dtype} {shape_text(shape)}, expected {tensor_text(tensor)}; {hint}")


def converted(name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """An array in another dtype; StepError for integers that this dtype does not have."""
    if array.dtype == dtype:
        return array
    result = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(result, array):
        wrong = array[result != array].flat[0]
        raise StepError(f"'{name}' has {wrong}, which {dtype} does not have")
    return result


def _is_convertible(dtype: np.dtype, wanted: np.dtype) -> bool:
    """Whether columns of a dtype are converted: to floating numbers from all numbers, to integers from integers."""
    from_integers = dtype.kind in "biu"
    return (_is_floating(wanted) and (from_integers or _is_floating(dtype))) or (wanted.kind in "iu" and from_integers)


def _is_floating(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16
