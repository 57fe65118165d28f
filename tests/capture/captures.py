"""Captures without the inference graph, in two thirds of the time, for tests that do not look at it."""

from __future__ import annotations

import functools
from typing import Any

from update_order import late_readers

import onnx_ops.torch
from onnx_ops.torch.capture import Capture
from onnx_ops.training.in_place import in_place
from onnx_ops.training.step_runner import loss_output

gradients = functools.partial(onnx_ops.torch.gradients, inference=False)


def training_step(*args: Any, **options: Any) -> Capture:
    """A captured step, whose state can be updated in place, with updates after all readers."""
    capture = onnx_ops.torch.training_step(*args, **{"inference": False, **options})
    rewritten = in_place(capture.model, loss_output(capture.model))
    assert rewritten is not None
    assert late_readers(rewritten.model) == []
    return capture
