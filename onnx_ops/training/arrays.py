"""Checks of arrays against the types of a step's inputs, and how messages describe both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from onnx import helper

from onnx_ops.core.types import TensorType, shape_text
from onnx_ops.graph.stored import Source, StoredTensor
from onnx_ops.training.errors import StepError


def numpy_dtype(tensor: TensorType) -> np.dtype:
    """The NumPy dtype of a tensor of known element type."""
    assert tensor.dtype is not None
    return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.dtype))


def element_count(tensor: TensorType) -> int:
    """The number of elements of a tensor of the state, whose shape is fixed."""
    return math.prod(dim for dim in tensor.shape or () if isinstance(dim, int))


def byte_count(tensor: TensorType) -> int:
    """The memory of a tensor of the state."""
    return element_count(tensor) * numpy_dtype(tensor).itemsize


def tensor_text(tensor: TensorType) -> str:
    """A type in messages, such as "float32 (N, 3)", with NumPy's name of the dtype."""
    dtype = "of unknown dtype" if tensor.dtype is None else helper.tensor_dtype_to_np_dtype(tensor.dtype).name
    return f"{dtype} of unknown shape" if tensor.shape is None else f"{dtype} {shape_text(tensor.shape)}"


def array_text(array: Source) -> str:
    """The type of an array in messages, as in `tensor_text`."""
    return f"{array.dtype} {shape_text(array.shape)}"


def conversion_hint(dtype: np.dtype) -> str:
    """How to convert an array to the expected dtype, for messages."""
    name = f"{'numpy' if dtype.isbuiltin == 1 else 'ml_dtypes'}.{dtype.type.__name__}"
    return f"convert it with numpy.asarray(..., {name})"


def check_state(wanted: Mapping[str, TensorType], state: Mapping[str, object]) -> None:
    """Raise StepError unless the state has a tensor of the right dtype and shape for each name, and no other names."""
    check_names("the state", wanted, state)
    for name, tensor in wanted.items():
        array = state[name]
        if not isinstance(array, np.ndarray | StoredTensor):
            raise StepError(f"'{name}' is a {type(array).__name__}, expected an array, {tensor_text(tensor)}")
        check_unmasked(name, array)
        if array.dtype != numpy_dtype(tensor) or array.shape != tensor.shape:
            raise StepError(f"'{name}' is {array_text(array)}, expected {tensor_text(tensor)}")


def check_names(what: str, wanted: Mapping[str, TensorType], given: Iterable[str]) -> None:
    """Raise StepError for missing and unknown names; the message begins with `what`."""
    names = set(given)
    missing = [f"'{name}' ({tensor_text(tensor)})" for name, tensor in wanted.items() if name not in names]
    unknown = sorted(f"'{name}'" for name in names if name not in wanted)
    problems = [f"lacks {listed(missing)}"] if missing else []
    if unknown:
        known = listed([f"'{name}'" for name in wanted]) or "nothing"
        problems.append(f"has {listed(unknown)}, where the step wants {known}")
    if problems:
        raise StepError(f"{what} {' and '.join(problems)}")


def listed(texts: Sequence[str]) -> str:
    """Texts in messages, at most ten of them."""
    more = f" and {len(texts) - 10} more" if len(texts) > 10 else ""
    return ", ".join(texts[:10]) + more


def check_unmasked(name: str, array: Source) -> None:
    """Raise StepError for a masked array: its mask would be ignored."""
    if isinstance(array, np.ma.MaskedArray):
        raise StepError(
            f"'{name}' is a masked array, {array_text(array)}, expected one without a mask, such as"
            " numpy.ma.filled(array, value)"
        )
