"""Writes the files with which train.cpp trains the digit classifier and the line reader.

    python -m scripts.examples.cpp.files FOLDER

A task has a folder of its own, `digits` or `lines`, with step.onnx and data.safetensors. The tensors of the latter are

    learned.NAME    the training set, by the names of the step's inputs
    order           (steps, samples), int64: the samples of each step
    learning_rates  (steps,), float64
    held_out.NAME   the held-out set, by the names of the inference graph's inputs, and what should be read in it:
                    `labels` (N,), or `digits` (N, S) and `lengths` (N,), int64
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from models import digit_training, digits
from models.line_reader import data as lines
from models.line_reader import training as line_training
from models.perceptron import perceptron_step
from onnx_ops.training.checkpoints import write_checkpoint
from onnx_ops.training.step_files import prepare_step, step_model

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    """What is trained: the step, sets as in data.safetensors, and hyperparameters."""

    step: onnx.ModelProto
    learned: Arrays
    held_out: Arrays
    batch_size: int
    epochs: int
    learning_rate: Callable[[float], float]


def digit_classifier(epochs: int = digit_training.EPOCHS) -> Task:
    """The classifier of single digits."""
    data = digit_training.load()
    images, labels = digit_training.augmented(data)
    return Task(
        perceptron_step((digits.PIXELS, *digit_training.HIDDEN, digits.DIGITS), seed=digit_training.SEED),
        {"x": images, "labels": labels},
        {"x": data.held_out_images, "labels": data.held_out_labels},
        digit_training.BATCH,
        epochs,
        digit_training.learning_rate,
    )


def line_reader(epochs: int = line_training.QUICK_EPOCHS) -> Task:
    """The reader of lines of digits."""
    training, held_out = line_training.TRAINING, lines.held_out_lines(0)
    started = training.started(0)
    return Task(
        step_model(started.model, started.state, started.inference),
        training.samples(0),
        {"images": held_out.images, "digits": held_out.digits, "lengths": held_out.lengths},
        training.batch_size,
        epochs,
        line_training.learning_rate,
    )


def write(task: Task, folder: Path) -> None:
    """Write the files of a task into a folder, which may exist."""
    folder.mkdir(parents=True, exist_ok=True)
    prepare_step(task.step, folder / "step.onnx")  # a library of the kernels updates its state in place
    rng = np.random.default_rng(0)
    count = len(next(iter(task.learned.values())))
    orders = [rng.permutation(count)[: count - count % task.batch_size] for _ in range(task.epochs)]
    order = np.concatenate(orders).reshape(-1, task.batch_size)
    rates = np.array([task.learning_rate(step / len(order)) for step in range(len(order))])
    arrays = {"order": order, "learning_rates": rates}
    arrays |= {f"learned.{name}": array for name, array in task.learned.items()}
    arrays |= {f"held_out.{name}": array for name, array in task.held_out.items()}
    write_checkpoint(folder / "data.safetensors", arrays, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write(digit_classifier(), folder / "digits")
    write(line_reader(), folder / "lines")


if __name__ == "__main__":
    main()
