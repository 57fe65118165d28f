"""Errors of training steps and of workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnx_ops.core.errors import Error
from onnx_ops.graph.reading import one_line


class StepError(Error, ValueError):
    """A model that is no training step, or a state, batch, checkpoint or inference graph that does not fit one."""


class StateLostError(StepError):
    """A state that a step has updated only in part before it failed; another one must be loaded."""


class UpdateFailedError(Error, RuntimeError):
    """A run that has failed after it began to update the state in place; the cause is onnxruntime's exception."""


class WorkerError(Error, RuntimeError):
    """Workers that cannot continue: one has failed, or they differ in what they train or with what settings."""


@contextlib.contextmanager
def refusals_as_step_errors(what: str) -> Iterator[None]:
    """Raise a StepError, whose text begins with `what`, for exceptions other than this package's and OSError.

    Those that onnx and onnxruntime raise for a damaged model have no common base class.
    """
    try:
        yield
    except (Error, OSError):
        raise
    except Exception as error:
        raise StepError(f"{what}: {one_line(error)}") from error
