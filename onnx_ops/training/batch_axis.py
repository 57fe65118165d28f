"""The axis of a batch along which its samples lie."""

from __future__ import annotations

from collections.abc import Mapping

from onnx_ops.core.types import TensorType
from onnx_ops.training.errors import StepError


def counted_axis(
    inputs: Mapping[str, TensorType], batch_dimension: str | None = None, *, required: bool = True
) -> tuple[str, int] | None:
    """The input, and its axis, whose size is the number of samples in a batch; None if the step fixes that number.

    Args:
        inputs: the inputs of the step's batch.
        batch_dimension: name of a dimension; by default that of the first axis of an input, preferably a symbolic one.
        required: whether an ambiguous axis without `batch_dimension` is an error; the result is None otherwise.

    Raises:
        StepError: an ambiguous axis.
    """
    try:
        check_dimension(inputs, batch_dimension)
    except StepError:
        if required or batch_dimension is not None:
            raise
        return None
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


def check_dimension(inputs: Mapping[str, TensorType], batch_dimension: str | None) -> None:
    """Raise StepError for a name that no dimension has, or for several candidates without a name."""
    names = {t.shape[0]: name for name, t in inputs.items() if t.shape and isinstance(t.shape[0], str)}
    if batch_dimension is None and len(names) > 1:
        listed = ", ".join(f"'{dim}' of '{name}'" for dim, name in names.items())
        raise StepError(f"the first dimensions of the inputs have different names, {listed}: name the batch dimension")
    if batch_dimension is not None and all(batch_dimension not in (t.shape or ()) for t in inputs.values()):
        raise StepError(f"no input has a dimension named '{batch_dimension}'")
