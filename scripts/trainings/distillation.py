"""Distils a large reader of digits into one with a tenth of its parameters, with the loss `KlDiv`.

Run it from the repository's root: `python -m scripts.trainings.distillation`. It needs no PyTorch.
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
Distil a large network that reads handwritten digits into one with a tenth of its parameters.

The teacher learns from images of digits and from moved copies of them. Two small networks then start from the same
weights and see the same images, none of them moved, with the same labels, in the same order. The student also gets the
teacher's probabilities for these images, by the op KlDiv; its twin has the labels alone. All are asked for held-out
digits, as they are and moved. This is done anew for each of five seeds.

The quick form shows what the student gains on moved digits. It is too short to show a gain on digits as they are."""

SEEDS = 5
TEACHERS_EPOCHS, QUICK_TEACHERS_EPOCHS = 12, 4
STUDENTS_EPOCHS, QUICK_STUDENTS_EPOCHS = 200, 40
THREADS = 1
"""The networks are so small that what threads save is less than what they cost."""
HELD_OUT_COPIES = 4
CONFIDENCE = 0.95
EXPECTED = 5.0
"""Percentage points by which the student is to be better than its twin on moved digits."""

NETWORKS = "teacher", "student", "twin"
EXAMS = "held-out digits", "moved held-out digits"
COLOURS = {"teacher": pictures.GREY, "student": pictures.ORANGE, "twin": pictures.BLUE}
SHOWN = 8


class Network(NamedTuple):
    """A trained network.

    Attributes:
        size: how many parameters it has.
        accuracies: (E, 2), the shares of the digits of both exams that it reads right after each epoch.
        logits: of the images of both exams.
    """

    size: int
    accuracies: np.ndarray
    logits: tuple[np.ndarray, ...]


class Lesson(NamedTuple):
    """What came of one seed.

    Attributes:
        networks: by their names.
        exams: the digits that they were asked for.
        learned: the digits that the student has learnt from.
        probabilities: (N, 10), what the teacher has told it about them.
    """

    networks: dict[str, Network]
    exams: tuple[Digits, ...]
    learned: Digits
    probabilities: np.ndarray

    def accuracies(self) -> np.ndarray:
        """Of the three networks (rows) in the two exams, after the last epoch."""
        return np.array([self.networks[name].accuracies[-1] for name in NETWORKS])


class Mean(NamedTuple):
    """A mean with half the width of its confidence interval, which is of `CONFIDENCE`."""

    value: float
    half: float

    @property
    def is_shown(self) -> bool:
        """Whether it differs from 0: whether the interval leaves 0 out."""
        return abs(self.value) > self.half

    def __str__(self) -> str:
        return f"{self.value:+.1f} ± {self.half:.1f} points"


def run(options: Options) -> Result:
    """Train the three networks for all seeds, and compare student and twin."""
    seeds = range(options.seed, options.seed + SEEDS)
    lessons = [lesson(seed, options) for seed in seeds]
    points = 100 * np.array([made.accuracies() for made in lessons])  # (seeds, networks, exams)
    held_out, moved = (mean(gain) for gain in (points[:, 1] - points[:, 2]).T)
    for name, (right, right_moved) in zip(NETWORKS, points.mean(axis=0), strict=True):
        print(f"Mean of {len(seeds)} seeds, {name}: {right:.1f}% of digits right, {right_moved:.1f}% of moved ones")
    return Result(
        op="KlDiv",
        task="a network distilled into one with a tenth of its parameters",
        figure=gains_told(held_out, moved),
        reached=is_reached(held_out, moved, quick=options.quick),
        difference=max(TEACHER.difference(), STUDENT.difference()),
        pictures=pictures_of(lessons, points, options.folder),
    )


def gains_told(held_out: Mean, moved: Mean) -> str:
    """What the student has gained over its twin in both exams, as the figure of the training."""
    exams = [(EXAMS[1], moved), (f"{EXAMS[0]} as they are", held_out)]
    told = [f"{gain} over its twin on {exam}" for exam, gain in exams if gain.is_shown]
    told += [f"no difference from its twin shown on {exam} ({gain})" for exam, gain in exams if not gain.is_shown]
    return f"student: {'; '.join(told)}"


def is_reached(held_out: Mean, moved: Mean, *, quick: bool) -> bool:
    """Whether the student's gains are those expected: on digits as they are only the full form is to show one."""
    expected = [moved] if quick else [moved, held_out]
    return moved.value >= EXPECTED and all(gain.is_shown and gain.value > 0 for gain in expected)


def mean(values: np.ndarray) -> Mean:
    """The mean of independent values with its confidence interval by Student's t."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return Mean(float(np.mean(values)), float(error * special.stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)))


# --- training ---------------------------------------------------------------------------------------------------------


def lesson(seed: int, options: Options) -> Lesson:
    """Train teacher, student and twin."""
    learned, held_out = data.split(seed)
    exams = held_out, data.moved(held_out, HELD_OUT_COPIES, np.random.default_rng([seed, 1]))
    teacher = trained("teacher", TEACHER, TEACHER.samples(seed), exams, seed, options)
    exported = InferenceSession(model_path("teacher", seed, options))
    probabilities = softened(exported.run(None, {"images": learned.images})[0])
    samples = {**STUDENT.samples(seed), "probabilities": probabilities}
    student = trained("student", STUDENT, samples, exams, seed, options)
    twin = trained("twin", STUDENT, samples | {"alpha": np.zeros_like(samples["alpha"])}, exams, seed, options)
    return Lesson({"teacher": teacher, "student": student, "twin": twin}, exams, learned, probabilities)


def trained(
    name: str,
    training: Training,
    samples: Mapping[str, np.ndarray],
    exams: tuple[Digits, ...],
    seed: int,
    options: Options,
) -> Network:
    """The network after a training with these samples."""
    if training is TEACHER:
        epochs, rate = QUICK_TEACHERS_EPOCHS if options.quick else TEACHERS_EPOCHS, TEACHER_RATE
    else:
        epochs, rate = QUICK_STUDENTS_EPOCHS if options.quick else STUDENTS_EPOCHS, STUDENT_RATE
    trainer = Trainer(training.started(seed), on_threads())
    run = training.run(trainer, samples, seed)
    record = Record(training, exams, options.folder / f"{name}_{seed}.json")
    command.train(
        run,
        epochs,
        f"{name} {seed}",
        options,
        rate=lambda done: rate * (1 - done),
        after=lambda trainer: record.add(trainer, run.epoch),
    )
    trainer.export(model_path(name, seed, options))
    size = sum(trainer.weights()[parameter].size for parameter in Step.of(training.model).names(InputRole.PARAMETER))
    return Network(size, np.array(record.history.figures), record.logits(trainer))


def on_threads() -> SessionOptions:
    """Options of a session with `THREADS`."""
    made = SessionOptions()
    made.intra_op_num_threads = THREADS
    return made


def model_path(name: str, seed: int, options: Options) -> Path:
    return options.folder / f"{name}_{seed}.onnx"


class Record:
    """How many of the exams' digits a network reads right after each epoch, in a file beside the checkpoint."""

    def __init__(self, training: Training, exams: tuple[Digits, ...], path: Path) -> None:
        inference = training.started(0).inference
        assert inference is not None
        self._session = InferenceSession(inference.SerializeToString(), on_threads())
        self._weights = [value.name for value in self._session.get_inputs() if value.name != "images"]
        self._exams, self.history = exams, command.History(path)

    def add(self, trainer: Trainer, epoch: int) -> dict[str, str]:
        """Set down what is right after so many epochs; returns it as figures to show."""
        right = [
            float(np.mean(logits.argmax(axis=1) == exam.labels))
            for logits, exam in zip(self.logits(trainer), self._exams, strict=True)
        ]
        self.history.note(epoch, right)
        return {name: f"{share:.1%}" for name, share in zip(("right", "moved"), right, strict=True)}

    def logits(self, trainer: Trainer) -> tuple[np.ndarray, ...]:
        """Of the exams' images, by the network as it is now."""
        weights = trainer.weights()
        state = {name: weights[name] for name in self._weights}
        return tuple(self._session.run(None, state | {"images": exam.images})[0] for exam in self._exams)


# --- pictures ---------------------------------------------------------------------------------------------------------


def pictures_of(lessons: list[Lesson], points: np.ndarray, folder: Path) -> dict[Path, str]:
    """Draw what came of it; returns the files with their captions."""
    return {
        answers_drawn(lessons[0], folder / "answers.png"): "Above: digits from which the student learns, and what the "
        "teacher tells it about them, its probabilities of all ten classes, softened by the temperature. Below: moved "
        "digits, such as the student has never seen, and what the three networks read; wrong answers are purple.",
        accuracies_drawn(lessons, points, folder / "accuracy.png"): "Digits read right by teacher, student and twin. "
        f"Each pale line is a seed, the dots are means, their bars {CONFIDENCE:.0%} confidence intervals. Above is the "
        f"mean of the student's paired differences from its twin with its {CONFIDENCE:.0%} interval; a difference is "
        "shown where that leaves out 0. The two halves differ in their scales.",
        epochs_drawn(lessons, folder / "epochs.png"): "Digits read right after each epoch, student and twin: the mean "
        "of all seeds, and as a band the range from the worst to the best. The grey line is the trained teacher.",
    }


def answers_drawn(lesson: Lesson, path: Path) -> Path:
    """What the teacher tells, and what the networks answer to moved digits."""
    with pictures.picture(path, 5.2) as figure:
        parts: Any = figure.subfigures(2, 1, height_ratios=(1.1, 1), hspace=0.05)
        told, asked = parts
        told.suptitle("What the teacher tells the student about digits that both have seen", x=0.01, ha="left")
        rows = told.subplots(2, SHOWN, height_ratios=(1.3, 1), sharey="row")
        for column, number in enumerate(instructive(lesson)):
            pictures.show(rows[0, column], lesson.learned.images[number], vmin=0, vmax=1)
            bars = rows[1, column]
            label = lesson.learned.labels[number]
            colours = [pictures.ORANGE if k == label else pictures.GREY for k in range(DIGITS)]
            bars.bar(range(DIGITS), lesson.probabilities[number], color=colours)
            bars.set_xticks(range(DIGITS), [str(k) for k in range(DIGITS)], fontsize=7)
            bars.tick_params(length=0)
            bars.grid(visible=False, axis="x")
            pictures.in_percent(bars.yaxis)
        asked.suptitle("What they read in digits that are moved", x=0.01, ha="left")
        exam, answers = lesson.exams[1], [lesson.networks[name].logits[1].argmax(axis=1) for name in NETWORKS]
        rows = asked.subplots(2, SHOWN, height_ratios=(1.3, 1))
        for column in range(SHOWN):
            number = np.flatnonzero(exam.labels == column)[0]
            pictures.show(rows[0, column], exam.images[number], vmin=0, vmax=1)
            said, below = rows[1, column], range(len(NETWORKS))
            said.set(xlim=(0, 1), ylim=(len(NETWORKS) - 0.5, -0.5))
            said.set_axis_off()
            for row, name, answer in zip(below, NETWORKS, answers, strict=True):
                wrong = answer[number] != exam.labels[number]
                colour, weight = (pictures.PURPLE, "bold") if wrong else ("black", "normal")
                said.text(0.5, row, str(answer[number]), ha="center", va="center", color=colour, weight=weight)
                if column == 0:
                    said.text(0.1, row, name, ha="right", va="center", color=COLOURS[name])
    return path


def instructive(lesson: Lesson) -> np.ndarray:
    """Digits of several classes, of each that of which the teacher is least sure, though it is right."""
    probabilities, labels = lesson.probabilities, lesson.learned.labels
    sure = np.where(probabilities.argmax(axis=1) == labels, probabilities[np.arange(len(labels)), labels], np.inf)
    return np.array([np.where(labels == k, sure, np.inf).argmin() for k in range(SHOWN)])


def accuracies_drawn(lessons: list[Lesson], points: np.ndarray, path: Path) -> Path:
    """The three networks in both exams."""
    sizes = [lessons[0].networks[name].size for name in NETWORKS]
    with pictures.picture(path, 4.0) as figure:
        for exam, axes in enumerate(figure.subplots(1, 2)):
            for seed in points[:, :, exam]:
                axes.plot(range(3), seed, "-", color="#C8C8C8", linewidth=1, marker="o", markersize=3, zorder=1)
            for place, name in enumerate(NETWORKS):
                value, half = mean(points[:, place, exam])
                axes.errorbar(place, value, half, fmt="o", color=COLOURS[name], markersize=8, capsize=5, zorder=2)
                axes.annotate(f"{value:.1f}%", (place, value), (9, 5), textcoords="offset points")
            gain = mean(points[:, 1, exam] - points[:, 2, exam])
            told = f"student over twin: {gain}" if gain.is_shown else f"no difference shown: {gain}"
            axes.set_title(f"{EXAMS[exam].capitalize()}\n{told}")
            named = [f"{name}\n{size:,}\nparameters" for name, size in zip(NETWORKS, sizes, strict=True)]
            axes.set_xticks(range(3), named)
            axes.set_xlim(-0.4, 2.6)
            axes.grid(visible=False, axis="x")
            pictures.in_percent(axes.yaxis, 100)
        figure.axes[0].set_ylabel("read right")
    return path


def epochs_drawn(lessons: list[Lesson], path: Path) -> Path:
    """How student and twin come on."""
    with pictures.picture(path, 3.8) as figure:
        for exam, axes in enumerate(figure.subplots(1, 2)):
            late = []
            for name in ("student", "twin"):
                curves = 100 * np.array([lesson.networks[name].accuracies[:, exam] for lesson in lessons])
                late.append(curves[:, curves.shape[1] // 20 :].min())
                epochs = np.arange(1, curves.shape[1] + 1)
                axes.fill_between(epochs, curves.min(axis=0), curves.max(axis=0), color=COLOURS[name], alpha=0.2, lw=0)
                axes.plot(epochs, curves.mean(axis=0), color=COLOURS[name], label=name)
            teacher = 100 * np.mean([lesson.networks["teacher"].accuracies[-1, exam] for lesson in lessons])
            axes.axhline(teacher, color=COLOURS["teacher"], linestyle="--", label="teacher, trained")
            # The first epochs would flatten all that is to be seen of the others.
            axes.set(title=EXAMS[exam].capitalize(), xlabel="epoch", ylim=(min(late) - 2, 100))
            pictures.in_percent(axes.yaxis, 100)
        figure.axes[0].set_ylabel("read right")
        figure.axes[0].legend(loc="lower right")
    return path


if __name__ == "__main__":
    sys.exit(command.main(run, DESCRIPTION, NAME))
