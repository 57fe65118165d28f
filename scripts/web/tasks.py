"""The tasks of the page of `make web`: a training step, arrays and settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import onnx

from models import digit_training, digits
from models.line_reader import data as lines
from models.line_reader import training as line_training
from models.perceptron import perceptron_step
from onnx_ops.training.step_files import step_model

HELD_OUT_LINES = 100
"""Fewer than in Python: the page evaluates them repeatedly, on one thread."""
LINE_EPOCHS, LINES_PER_STEP = 1, 8
"""So that the reader is trained within a minute. A step takes 30 ms of one core, of which 20 ms for any number."""
HANDS = 12
"""Held-out images of each digit, from which the visitor composes lines."""


class ArrayPlace(TypedDict):
    """An array in `Task.data`: its dtype, its shape and the offset of its first byte."""

    type: str
    dims: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Task:
    """A task of the page.

    Attributes:
        step: the training step.
        data: the bytes of all arrays.
        setup: settings for JSON, with the `ArrayPlace` of each array.
    """

    step: onnx.ModelProto
    data: bytes
    setup: dict[str, Any]


@functools.cache
def all_tasks() -> dict[str, Task]:
    """The tasks, by the names that the page uses."""
    return {"digits": single_digits(), "lines": lines_of_digits()}


def single_digits() -> Task:
    """The classifier of single digits."""
    data = digit_training.load()
    images, labels = digit_training.augmented(data)
    return task(
        perceptron_step((digits.PIXELS, *digit_training.HIDDEN, digits.DIGITS), seed=digit_training.SEED),
        digit_training.learning_rate,
        digit_training.EPOCHS,
        digit_training.BATCH,
        {
            "learned": {"x": images, "labels": labels},
            "heldOut": {"x": data.held_out_images, "labels": data.held_out_labels.astype(np.uint8)},
        },
        hidden=digit_training.HIDDEN,
        copies=digit_training.COPIES,
        side=digits.SIDE,
    )


def lines_of_digits() -> Task:
    """The reader of lines."""
    started, held_out = line_training.TRAINING.started(0), lines.held_out_lines(0, HELD_OUT_LINES)
    single = lines.digits(held_out=True)
    hands = [np.flatnonzero(single.labels == digit)[:HANDS] for digit in range(digits.DIGITS)]
    return task(
        step_model(started.model, started.state, started.inference),
        line_training.learning_rate,
        LINE_EPOCHS,
        LINES_PER_STEP,
        {
            "learned": line_training.TRAINING.samples(0),
            "heldOut": held_out._asdict(),
            "hands": {"images": single.images[np.stack(hands)]},
        },
        side=lines.SIDE,
        height=lines.HEIGHT,
        width=lines.WIDTH,
        classes=lines.CLASSES,
        blank=lines.BLANK,
    )


def task(
    step: onnx.ModelProto,
    learning_rate: Callable[[float], float],
    epochs: int,
    batch_size: int,
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    **settings: int | tuple[int, ...],
) -> Task:
    """A task.

    Args:
        step: the training step.
        learning_rate: schedule, a function of the fraction of the training that is done.
        epochs: number of epochs.
        batch_size: maximal number of samples per step.
        arrays: by group and name; the group `learned` is the training set, with axis 0 as batch axis.
        settings: other settings for the page.
    """
    count = len(next(iter(arrays["learned"].values())))
    per_epoch = -(-count // batch_size)
    steps = epochs * per_epoch
    data, places = packed(arrays)
    setup = {
        "seed": 0,
        "epochs": epochs,
        "stepsPerEpoch": per_epoch,
        "learningRates": [learning_rate(step / steps) for step in range(steps)],
        "arrays": places,
    }
    return Task(step, data, setup | settings)


def packed(arrays: Mapping[str, Mapping[str, np.ndarray]]) -> tuple[bytes, dict[str, dict[str, ArrayPlace]]]:
    """The bytes of all arrays, little-endian, and their places; offsets are multiples of 8, as typed arrays require."""
    parts: list[bytes] = []
    places: dict[str, dict[str, ArrayPlace]] = {}
    at = 0
    for group, members in arrays.items():
        places[group] = {}
        for name, array in members.items():
            content = array.astype(array.dtype.newbyteorder("<")).tobytes()
            places[group][name] = {"type": array.dtype.name, "dims": array.shape, "offset": at}
            parts.append(content + bytes(-len(content) % 8))
            at += len(parts[-1])
    return b"".join(parts), places
