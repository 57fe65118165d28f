"""What onnx and onnxruntime refuse, as an error of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnx_ops.core.errors import Error
from onnx_ops.graph.reading import one_line
from onnx_ops.training.step import StepError


@contextlib.contextmanager
def refusals_as_step_errors(what: str) -> Iterator[None]:
    """Raise a StepError, whose text begins with `what`, for every exception that is none of this package's or a file's.

    What onnx and onnxruntime raise for a model that is damaged has no class in common.
    """
    try:
        yield
    except (Error, OSError):
        raise
    except Exception as error:
        raise StepError(f"{what}: {one_line(error)}") from error
