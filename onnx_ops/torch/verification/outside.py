"""Random numbers that a step draws outside of PyTorch, which a graph cannot draw."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np

from onnx_ops.torch.base.arrays import as_array
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.tracing import Tensors
from onnx_ops.torch.verification.tolerances import compare


class OutsideDraws:
    """Compares two runs of a step from the same state, with the same random numbers of PyTorch."""

    def __init__(self) -> None:
        self._before = _states()
        self._difference: CaptureError | None = None

    def compare(self, first: Tensors, second: Tensors) -> None:
        """Compare the real results of the runs, by name; `check` tells whether they differ."""
        results, again = (
            {name: as_array(tensor) for name, tensor in run.items() if not tensor.is_complex()}
            for run in (first, second)
        )
        try:
            compare("results", again, results)
        except CaptureError as error:
            self._difference = error

    def check(self) -> None:
        """Raise a CaptureError if the results of the runs differ; warn if others drew since the start."""
        drawn = [name for name, state in _states().items() if state != self._before[name]]
        by = f"draws random numbers by {' and '.join(drawn)}" if drawn else ""
        if self._difference is not None:
            cause = by or "draws random numbers outside of PyTorch, or changes what is neither a parameter nor a buffer"
            raise CaptureError(
                f"two runs of the loss with the same parameters and batch differ: it {cause}, which a graph cannot do."
                " Draw them by PyTorch, such as torch.rand, or before the step and pass them in"
            ) from self._difference
        if drawn:
            warnings.warn(
                f"the loss {by}. They have changed nothing in two runs, and the step has those of the example; draw"
                " them by PyTorch if they matter",
                stacklevel=6,
            )


def _states() -> dict[str, Any]:
    """The states of the global generators of Python and NumPy."""
    return {"random": random.getstate(), "numpy.random": repr(_plain(np.random.get_state(legacy=False)))}  # noqa: NPY002


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tobytes() if isinstance(value, np.ndarray) else value
