"""Checks of the arrays of a batch."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from onnx_ops.core.types import Shape, TensorType
from onnx_ops.training.arrays import array_text, check_names, check_unmasked, conversion_hint, numpy_dtype, tensor_text
from onnx_ops.training.errors import StepError
from onnx_ops.training.ranges import IndexRange
from onnx_ops.training.step import Bounds

Sizes = dict[str, tuple[int, str]]
"""The sizes of named dimensions, each with the first input that has it."""


class Batches:
    """Checks batches against the inputs of a step.

    Args:
        inputs: types of the arrays, by name.
        bounds: sizes that named dimensions may have.
        ranges: ranges of indices.
        counted: the input, and its axis, whose size is the number of samples; None if unknown.
        may_be_empty: whether a batch may have no samples; its bounds and ranges are then not checked.
    """

    def __init__(
        self,
        inputs: Mapping[str, TensorType],
        bounds: Mapping[str, Bounds],
        ranges: Sequence[IndexRange],
        counted: tuple[str, int] | None,
        may_be_empty: bool,
    ) -> None:
        self._types = inputs
        self._inputs = [_Input.of(name, tensor) for name, tensor in inputs.items()]
        self._bounds, self._ranges = bounds, ranges
        self.counted, self.may_be_empty = counted, may_be_empty

    def checked(self, batch: Mapping[str, object]) -> dict[str, np.ndarray]:
        """The arrays of a batch, contiguous; StepError for names, dtypes, shapes or indices that do not fit."""
        if batch.keys() != self._types.keys():
            check_names("the batch", self._types, batch)
        sizes: Sizes = {}
        arrays = {wanted.name: wanted.checked(batch[wanted.name], sizes) for wanted in self._inputs}
        if self.counted is not None and not arrays[self.counted[0]].shape[self.counted[1]]:
            if self.may_be_empty:
                return arrays
            name = self.counted[0]
            raise StepError(f"the batch has no samples: '{name}' is {array_text(arrays[name])}; expected at least 1")
        for dimension, bounds in self._bounds.items():
            if dimension in sizes and not bounds.hold(sizes[dimension][0]):
                name = sizes[dimension][1]
                given, wanted = array_text(arrays[name]), tensor_text(self._types[name])
                raise StepError(f"'{name}' is {given}, expected {wanted} with {dimension} {bounds}")
        for found in self._ranges:
            if problem := found.problem(arrays[found.input]):
                raise StepError(problem)
        return arrays


MULTIPLE = re.compile(
    r"(?:(?P<factor>[1-9]\d{0,8})\*)?(?P<root>[^\W\d]\w*)(?: (?P<sign>[+-]) (?P<offset>\d{1,9}))?", re.ASCII
)
"""The name of a dimension in terms of another one, such as "2*pairs + 1"."""


class _Multiple(NamedTuple):
    """The sizes `factor * root + offset` of a dimension, `root` being the size of another one."""

    root: str
    factor: int
    offset: int


@functools.cache
def _multiple(dimension: str) -> _Multiple | None:
    """The sizes that the name of a dimension says; None for one that is not in terms of another."""
    found = MULTIPLE.fullmatch(dimension)
    if found is None or found["root"] == dimension:
        return None
    return _Multiple(found["root"], int(found["factor"] or 1), int(f"{found['sign'] or '+'}{found['offset'] or 0}"))


class _Input(NamedTuple):
    """An input of the batch: its name, type, NumPy dtype and shape."""

    name: str
    tensor: TensorType
    dtype: np.dtype
    shape: Shape | None

    @classmethod
    def of(cls, name: str, tensor: TensorType) -> _Input:
        return cls(name, tensor, numpy_dtype(tensor), tensor.shape)

    def checked(self, array: object, sizes: Sizes) -> np.ndarray:
        """The array, contiguous; `sizes` of named dimensions are compared and added to."""
        if isinstance(array, np.generic):
            array = np.asarray(array)
        if not isinstance(array, np.ndarray) or array.dtype != self.dtype:
            given = array_text(array) if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
            raise StepError(
                f"'{self.name}' is {given}, expected {tensor_text(self.tensor)}; {conversion_hint(self.dtype)}"
            )
        check_unmasked(self.name, array)
        if self.shape is not None:
            if len(array.shape) != len(self.shape):
                raise StepError(f"'{self.name}' is {array_text(array)}, expected {tensor_text(self.tensor)}")
            for wanted, size in zip(self.shape, array.shape, strict=True):
                if isinstance(wanted, str):
                    self._check_size(array, wanted, size, sizes)
                elif wanted is not None and wanted != size:
                    raise StepError(f"'{self.name}' is {array_text(array)}, expected {tensor_text(self.tensor)}")
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def _check_size(self, array: np.ndarray, dimension: str, size: int, sizes: Sizes) -> None:
        """Raise StepError for a size that is not that of the dimension elsewhere; enter it otherwise."""
        expected = f"'{self.name}' is {array_text(array)}, expected {tensor_text(self.tensor)}"
        known, other = sizes.setdefault(dimension, (size, self.name))
        if known != size:
            raise StepError(f"{expected} with {dimension} = {known} as in '{other}'")
        if (multiple := _multiple(dimension)) is not None:
            root, rest = divmod(size - multiple.offset, multiple.factor)
            if rest or root < 0:
                raise StepError(f"{expected} for a number {multiple.root}")
            self._check_size(array, multiple.root, root, sizes)
