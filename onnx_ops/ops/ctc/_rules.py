"""Checks of CTC inputs, and labels and states for the NumPy references."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnx_ops.core.call import Call
from onnx_ops.core.types import Dim
from onnx_ops.loops.primitives import helper

WHOLE_TARGETS = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
TARGETS = (*WHOLE_TARGETS, TensorProto.FLOAT, TensorProto.FLOAT16)
LENGTHS = (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)

WIDTHS: dict[int, int] = {TensorProto.FLOAT16: 1, TensorProto.BFLOAT16: 1, TensorProto.FLOAT: 2, TensorProto.DOUBLE: 3}


def is_narrower(dtype: int, other: int) -> bool:
    """Whether a floating dtype cannot represent all values of another one."""
    return dtype != other and WIDTHS[dtype] <= WIDTHS[other]


def check_inputs(call: Call) -> tuple[Dim, Dim, Dim]:
    """Sizes T, N and C; raises OpError for log_probs, targets, lengths or attributes that do not fit together."""
    call.check_choice("zero_infinity", {0: "no", 1: "yes"})
    shape = call.shape("log_probs")
    if shape is not None and len(shape) != 3:
        raise call.shape_error("log_probs", "(T, N, C)")
    steps, batch, classes = shape or (None, None, None)
    for name in ("input_lengths", "target_lengths"):
        check_batch(call, name, batch)
    targets = call.shape("targets")
    if targets is not None:
        if len(targets) not in (1, 2):
            raise call.shape_error("targets", "(N, S), or one dimension")
        if len(targets) == 2:
            call.same_shape("targets", (batch, targets[1]), "N as in 'log_probs'")
    blank = call.attributes["blank"]
    if blank < 0 or (isinstance(classes, int) and blank >= classes):
        raise call.error(f"attribute 'blank' is {blank}, expected a class in [0, {classes or 'C'})")
    return steps, batch, classes


def check_batch(call: Call, name: str, batch: Dim) -> None:
    """Raise OpError for an input whose shape is not (N,)."""
    call.same_shape(name, (batch,), "the batch size N of 'log_probs'")


def check_labels(
    call: Call, log_probs: np.ndarray, targets: np.ndarray, input_lengths: np.ndarray, target_lengths: np.ndarray
) -> None:
    """Raise OpError for lengths or labels out of range."""
    steps, _, classes = log_probs.shape
    for n, value in enumerate(input_lengths.tolist()):
        if not 0 <= value <= steps:
            raise call.error(f"input 'input_lengths' has {value} at {n}, expected 0 to T = {steps}")
    for n, value in enumerate(target_lengths.tolist()):
        if value < 0:
            raise call.error(f"input 'target_lengths' has {value} at {n}, expected at least 0")
        if targets.ndim == 2 and value > targets.shape[1]:
            raise call.error(
                f"input 'target_lengths' has {value} at {n}, expected at most S = {targets.shape[1]} of 'targets'"
            )
    total = sum(target_lengths.tolist())
    if targets.ndim == 1 and total != targets.shape[0]:
        raise call.error(
            f"input 'targets' has {targets.shape[0]} labels, expected the sum of 'target_lengths', {total}"
        )
    for n, labels in enumerate(labels_of_samples(targets, target_lengths)):
        for label in labels.tolist():
            if not is_class(float(label), classes):
                raise call.error(f"input 'targets' has {label} in sample {n}, expected whole numbers in [0, {classes})")


@helper
def is_class(label: float, classes: int) -> bool:
    """Whether a label is an integer in [0, classes)."""
    return bool(label >= 0 and label < classes and label == np.floor(label))


def labels_of_samples(targets: np.ndarray, target_lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Labels of each sample, from padded (N, S) or concatenated targets."""
    offset = 0
    for n, length in enumerate(target_lengths.tolist()):
        yield targets[n][:length] if targets.ndim == 2 else targets[offset : offset + length]
        offset += length


def extended_labels(labels: np.ndarray, blank: int) -> np.ndarray:
    """Class of each state: blank, t1, blank, ..., tS, blank."""
    extended = np.full(2 * len(labels) + 1, blank, np.int64)
    extended[1::2] = labels
    return extended


def skips_to(extended: np.ndarray) -> np.ndarray:
    """Whether a path may skip from state s - 2 to s, two different labels."""
    skips = np.zeros(len(extended), bool)
    skips[2:] = (extended[2:] != extended[:-2]) & (np.arange(2, len(extended)) % 2 == 1)
    return skips


def log_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """log(exp(a) * exp(b)), with 0 * anything = 0."""
    return np.where((a == -np.inf) | (b == -np.inf), -np.inf, a + b)
