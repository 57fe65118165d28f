"""Knowledge distillation to a classifier with a tenth of the parameters, with the loss `KlDiv`.

Run it from the root of the repository: `python -m scripts.trainings.distillation`. It does not require PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnxruntime import InferenceSession, SessionOptions
from scipy import special

from models.digits import DIGITS
from models.distillation import data
from models.distillation.data import Digits
from models.distillation.training import STUDENT, STUDENT_RATE, TEACHER, TEACHER_RATE, softened
from models.training import Training
from onnx_ops import Trainer
from onnx_ops.core.step_format import InputRole
from onnx_ops.training.step import Step
from scripts.trainings import command, pictures
from scripts.trainings.command import Options, Result

NAME = "distillation"
DESCRIPTION = """\
Distill a classifier of handwritten digits to a network with a tenth of its parameters.

The teacher is trained on images of digits and on moved (rotated, scaled, shifted) copies of them. Two small networks
are trained with the same initial weights and the same batches of the original images: the student with the labels and
the teacher's probabilities, by the op KlDiv, its twin with the labels alone. All are tested on held-out digits, as they
are and moved, for each of five seeds.

The quick form shows the student's gain on moved digits. It is too short for a gain on digits as they are."""

SEEDS = 5
TEACHERS_EPOCHS, QUICK_TEACHERS_EPOCHS = 12, 4
STUDENTS_EPOCHS, QUICK_STUDENTS_EPOCHS = 200, 40
THREADS = 1
"""The networks are too small for more than one thread."""
HELD_OUT_COPIES = 4
CONFIDENCE = 0.95
EXPECTED = 5.0
"""Lower bound of the student's gain over its twin on moved digits, in percentage points."""

NETWORKS = "teacher", "student", "twin"
TEST_SETS = "held-out digits", "moved held-out digits"
COLOURS = {"teacher": pictures.GREY, "student": pictures.ORANGE, "twin": pictures.BLUE}
SHOWN = 8


class Network(NamedTuple):
    """A trained network.

    Attributes:
        size: number of parameters.
        accuracies: (E, 2), accuracy on both test sets after each of E epochs.
        logits: (N, 10) of each test set.
    """

    size: int
    accuracies: np.ndarray
    logits: tuple[np.ndarray, ...]


class Trial(NamedTuple):
    """The result for one seed.

    Attributes:
        networks: by name.
        tests: the test sets.
        learned: the student's training set.
        probabilities: (N, 10), the teacher's for the training set.
    """

    networks: dict[str, Network]
    tests: tuple[Digits, ...]
    learned: Digits
    probabilities: np.ndarray

    def accuracies(self) -> np.ndarray:
        """(3, 2): accuracy of each network on each test set, after the last epoch."""
        return np.array([self.networks[name].accuracies[-1] for name in NETWORKS])


class Mean(NamedTuple):
    """A mean, and half the width of its `CONFIDENCE` interval."""

    value: float
    half: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return abs(self.value) > self.half

    def __str__(self) -> str:
        return f"{self.value:+.1f} ± {self.half:.1f} points"


def run(options: Options) -> Result:
    """Train the three networks for each seed, and compare student and twin."""
    seeds = range(options.seed, options.seed + SEEDS)
    trials = [run_trial(seed, options) for seed in seeds]
    points = 100 * np.array([result.accuracies() for result in trials])  # (seeds, networks, test sets)
    held_out, moved = (mean(gain) for gain in (points[:, 1] - points[:, 2]).T)
    for name, (right, right_moved) in zip(NETWORKS, points.mean(axis=0), strict=True):
        print(f"Mean of {len(seeds)} seeds, {name}: {right:.1f}% of digits right, {right_moved:.1f}% of moved ones")
    return Result(
        op="KlDiv",
        task="knowledge distillation to a tenth of the parameters",
        figure=gain_text(held_out, moved),
        reached=is_reached(held_out, moved, quick=options.quick),
        difference=max(TEACHER.difference(), STUDENT.difference()),
        pictures=pictures_of(trials, points, options.folder),
    )


def gain_text(held_out: Mean, moved: Mean) -> str:
    """The student's gain over its twin on both test sets, as the result of the training."""
    gains = [(TEST_SETS[1], moved), (f"{TEST_SETS[0]} as they are", held_out)]
    texts = [f"{gain} over its twin on {name}" for name, gain in gains if gain.is_significant]
    texts += [
        f"no significant difference from its twin on {name} ({gain})" for name, gain in gains if not gain.is_significant
    ]
    return f"student: {'; '.join(texts)}"


def is_reached(held_out: Mean, moved: Mean, *, quick: bool) -> bool:
    """Whether the student's gains reach their targets; the quick form has none for digits as they are."""
    expected = [moved] if quick else [moved, held_out]
    return moved.value >= EXPECTED and all(gain.is_significant and gain.value > 0 for gain in expected)


def mean(values: np.ndarray) -> Mean:
    """The mean of independent values (N,) with its confidence interval by Student's t-distribution."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return Mean(float(np.mean(values)), float(error * special.stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)))


# --- training ---------------------------------------------------------------------------------------------------------


def run_trial(seed: int, options: Options) -> Trial:
    """Train teacher, student and twin."""
    learned, held_out = data.split(seed)
    tests = held_out, data.moved(held_out, HELD_OUT_COPIES, np.random.default_rng([seed, 1]))
    teacher = trained("teacher", TEACHER, TEACHER.samples(seed), tests, seed, options)
    exported = InferenceSession(model_path("teacher", seed, options))
    probabilities = softened(exported.run(None, {"images": learned.images})[0])
    samples = {**STUDENT.samples(seed), "probabilities": probabilities}
    student = trained("student", STUDENT, samples, tests, seed, options)
    twin = trained("twin", STUDENT, samples | {"alpha": np.zeros_like(samples["alpha"])}, tests, seed, options)
    return Trial({"teacher": teacher, "student": student, "twin": twin}, tests, learned, probabilities)


def trained(
    name: str,
    training: Training,
    samples: Mapping[str, np.ndarray],
    tests: tuple[Digits, ...],
    seed: int,
    options: Options,
) -> Network:
    """Train a network on `samples`."""
    if training is TEACHER:
        epochs, rate = QUICK_TEACHERS_EPOCHS if options.quick else TEACHERS_EPOCHS, TEACHER_RATE
    else:
        epochs, rate = QUICK_STUDENTS_EPOCHS if options.quick else STUDENTS_EPOCHS, STUDENT_RATE
    trainer = Trainer(training.started(seed), session_options())
    run = training.run(trainer, samples, seed)
    evaluation = Evaluation(training, tests, options.folder / f"{name}_{seed}.json")
    command.train(
        run,
        epochs,
        f"{name} {seed}",
        options,
        rate=lambda done: rate * (1 - done),
        after=lambda trainer: evaluation.add(trainer, run.epoch),
    )
    trainer.export(model_path(name, seed, options))
    size = sum(trainer.weights()[parameter].size for parameter in Step.of(training.model).names(InputRole.PARAMETER))
    return Network(size, np.array(evaluation.history.metrics), evaluation.logits(trainer))


def session_options() -> SessionOptions:
    """Options of a session with `THREADS` threads."""
    result = SessionOptions()
    result.intra_op_num_threads = THREADS
    return result


def model_path(name: str, seed: int, options: Options) -> Path:
    return options.folder / f"{name}_{seed}.onnx"


class Evaluation:
    """The accuracies on the test sets after each epoch, in a file beside the checkpoint."""

    def __init__(self, training: Training, tests: tuple[Digits, ...], path: Path) -> None:
        inference = training.started(0).inference
        assert inference is not None
        self._session = InferenceSession(inference.SerializeToString(), session_options())
        self._weights = [value.name for value in self._session.get_inputs() if value.name != "images"]
        self._tests = tests
        self.history: command.History[list[float]] = command.History(path)

    def add(self, trainer: Trainer, epoch: int) -> dict[str, str]:
        """Write the accuracies after an epoch; returns them as text."""
        accuracies = [
            float(np.mean(logits.argmax(axis=1) == test.labels))
            for logits, test in zip(self.logits(trainer), self._tests, strict=True)
        ]
        self.history.add(epoch, accuracies)
        return {name: f"{accuracy:.1%}" for name, accuracy in zip(("right", "moved"), accuracies, strict=True)}

    def logits(self, trainer: Trainer) -> tuple[np.ndarray, ...]:
        """Logits (N, 10) of each test set, with the trainer's current parameters."""
        weights = trainer.weights()
        state = {name: weights[name] for name in self._weights}
        return tuple(self._session.run(None, state | {"images": test.images})[0] for test in self._tests)


# --- pictures ---------------------------------------------------------------------------------------------------------


def pictures_of(trials: list[Trial], points: np.ndarray, folder: Path) -> dict[Path, str]:
    """Draw the figures.

    Args:
        trials: of all seeds.
        points: (seeds, networks, test sets), accuracies in percent.
        folder: to write to.

    Returns:
        Captions by path.
    """
    return {
        predictions_drawn(trials[0], folder / "answers.png"): "Above: images of the training set with the teacher's "
        "probabilities, softened by the temperature. Below: moved digits of the test set and the predictions of the "
        "three networks; wrong ones are purple.",
        accuracies_drawn(trials, points, folder / "accuracy.png"): "Accuracy of teacher, student and twin. Each pale "
        f"line is a seed; dots are means, their bars {CONFIDENCE:.0%} confidence intervals. Above: the mean paired "
        f"difference between student and twin with its {CONFIDENCE:.0%} interval, significant if that excludes 0. "
        "The scales of the two halves differ.",
        epochs_drawn(trials, folder / "epochs.png"): "Accuracy of student and twin after each epoch: mean over the "
        "seeds, and a band from the worst to the best. The grey line is the trained teacher.",
    }


def predictions_drawn(trial: Trial, path: Path) -> Path:
    """The teacher's probabilities, and the predictions of all networks for moved digits."""
    with pictures.picture(path, 5.2) as figure:
        parts: Any = figure.subfigures(2, 1, height_ratios=(1.1, 1), hspace=0.05)
        above, below = parts
        above.suptitle("Training set: the teacher's probabilities", x=0.01, ha="left")
        rows = above.subplots(2, SHOWN, height_ratios=(1.3, 1), sharey="row")
        for column, number in enumerate(least_confident(trial)):
            pictures.show(rows[0, column], trial.learned.images[number], vmin=0, vmax=1)
            bars = rows[1, column]
            label = trial.learned.labels[number]
            colours = [pictures.ORANGE if k == label else pictures.GREY for k in range(DIGITS)]
            bars.bar(range(DIGITS), trial.probabilities[number], color=colours)
            bars.set_xticks(range(DIGITS), [str(k) for k in range(DIGITS)], fontsize=7)
            bars.tick_params(length=0)
            bars.grid(visible=False, axis="x")
            pictures.in_percent(bars.yaxis)
        below.suptitle("Moved held-out digits: predictions", x=0.01, ha="left")
        test, predictions = trial.tests[1], [trial.networks[name].logits[1].argmax(axis=1) for name in NETWORKS]
        rows = below.subplots(2, SHOWN, height_ratios=(1.3, 1))
        for column in range(SHOWN):
            number = np.flatnonzero(test.labels == column)[0]
            pictures.show(rows[0, column], test.images[number], vmin=0, vmax=1)
            axes = rows[1, column]
            axes.set(xlim=(0, 1), ylim=(len(NETWORKS) - 0.5, -0.5))
            axes.set_axis_off()
            for row, (name, predicted) in enumerate(zip(NETWORKS, predictions, strict=True)):
                wrong = predicted[number] != test.labels[number]
                colour, weight = (pictures.PURPLE, "bold") if wrong else ("black", "normal")
                axes.text(0.5, row, str(predicted[number]), ha="center", va="center", color=colour, weight=weight)
                if column == 0:
                    axes.text(0.1, row, name, ha="right", va="center", color=COLOURS[name])
    return path


def least_confident(trial: Trial) -> np.ndarray:
    """Indices (SHOWN,): of each of the first classes the image that the teacher classifies right, but least surely."""
    probabilities, labels = trial.probabilities, trial.learned.labels
    right = np.where(probabilities.argmax(axis=1) == labels, probabilities[np.arange(len(labels)), labels], np.inf)
    return np.array([np.where(labels == k, right, np.inf).argmin() for k in range(SHOWN)])


def accuracies_drawn(trials: list[Trial], points: np.ndarray, path: Path) -> Path:
    """Accuracies of the three networks on both test sets."""
    sizes = [trials[0].networks[name].size for name in NETWORKS]
    with pictures.picture(path, 4.0) as figure:
        for test, axes in enumerate(figure.subplots(1, 2)):
            for seed in points[:, :, test]:
                axes.plot(range(3), seed, "-", color="#C8C8C8", linewidth=1, marker="o", markersize=3, zorder=1)
            for place, name in enumerate(NETWORKS):
                value, half = mean(points[:, place, test])
                axes.errorbar(place, value, half, fmt="o", color=COLOURS[name], markersize=8, capsize=5, zorder=2)
                axes.annotate(f"{value:.1f}%", (place, value), (9, 5), textcoords="offset points")
            gain = mean(points[:, 1, test] - points[:, 2, test])
            text = f"student over twin: {gain}" if gain.is_significant else f"not significant: {gain}"
            axes.set_title(f"{TEST_SETS[test].capitalize()}\n{text}")
            named = [f"{name}\n{size:,}\nparameters" for name, size in zip(NETWORKS, sizes, strict=True)]
            axes.set_xticks(range(3), named)
            axes.set_xlim(-0.4, 2.6)
            axes.grid(visible=False, axis="x")
            pictures.in_percent(axes.yaxis, 100)
        figure.axes[0].set_ylabel("accuracy")
    return path


def epochs_drawn(trials: list[Trial], path: Path) -> Path:
    """Accuracies of student and twin by epoch."""
    with pictures.picture(path, 3.8) as figure:
        for test, axes in enumerate(figure.subplots(1, 2)):
            late = []
            for name in ("student", "twin"):
                curves = 100 * np.array([trial.networks[name].accuracies[:, test] for trial in trials])
                late.append(curves[:, curves.shape[1] // 20 :].min())
                epochs = np.arange(1, curves.shape[1] + 1)
                axes.fill_between(epochs, curves.min(axis=0), curves.max(axis=0), color=COLOURS[name], alpha=0.2, lw=0)
                axes.plot(epochs, curves.mean(axis=0), color=COLOURS[name], label=name)
            teacher = 100 * np.mean([trial.networks["teacher"].accuracies[-1, test] for trial in trials])
            axes.axhline(teacher, color=COLOURS["teacher"], linestyle="--", label="teacher, trained")
            # The range of the y axis excludes the low accuracies of the first epochs.
            axes.set(title=TEST_SETS[test].capitalize(), xlabel="epoch", ylim=(min(late) - 2, 100))
            pictures.in_percent(axes.yaxis, 100)
        figure.axes[0].set_ylabel("accuracy")
        figure.axes[0].legend(loc="lower right")
    return path


if __name__ == "__main__":
    sys.exit(command.main(run, DESCRIPTION, NAME))
