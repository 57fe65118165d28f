"""Sequence recognition of lines of handwritten digits, with connectionist temporal classification, `CtcLoss`.

Run it from the root of the repository: `python -m scripts.trainings.line_reader`. It does not require PyTorch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullFormatter

import onnx_ops
from models.line_reader import data
from models.line_reader.training import EPOCHS, QUICK_EPOCHS, TRAINING, learning_rate
from onnx_ops import Trainer
from scripts.trainings import command, pictures
from scripts.trainings.command import Options, Result

NAME = "line_reader"
DESCRIPTION = f"""\
Train a network to read lines of handwritten digits.

A line has {data.LENGTHS[0]} to {data.LENGTHS[1]} digits, some of which touch. The labels are the digits without their
positions: the loss is the op CtcLoss, which sums the probabilities of all alignments. The test set has digits of other
writers than the training set."""

EXPECTED, QUICK_EXPECTED = 0.95, 0.8
"""Lower bound of 1 - character error rate."""

EARLY_STEPS = 80
"""The figure shows predictions after this number of steps, after the first epoch and after the last."""
SHOWN = 4


def run(options: Options) -> Result:
    """Train the reader and evaluate it on the held-out lines."""
    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    held_out = data.held_out_lines(options.seed)
    history: command.History[float] = command.History(options.folder / "held_out.json")
    training = TRAINING.run(Trainer(TRAINING.started(options.seed)), TRAINING.samples(options.seed), options.seed)
    early, first, last = (options.folder / f"{name}.onnx" for name in ("early_reader", "first_reader", "reader"))

    def after(trainer: Trainer) -> dict[str, str]:
        trainer.export(last)
        if training.epoch == 1:
            trainer.export(first)
        share = 1 - error_rate(log_probs(last, held_out), held_out)
        history.add(training.epoch, share)
        return {"digits right": f"{share:.1%}"}

    if not (options.resume and early.exists()):
        for step in range(EARLY_STEPS):
            training.trainer.learning_rate = learning_rate(step / (epochs * training.samples.steps))
            training.advance()
        training.trainer.export(early)
    command.train(training, epochs, NAME.replace("_", " "), options, rate=learning_rate, after=after)
    stages = {
        f"After {EARLY_STEPS} steps": log_probs(early, held_out),
        "After the first epoch": log_probs(first, held_out),
        f"After epoch {epochs}": (final := log_probs(last, held_out)),
    }
    share = 1 - error_rate(final, held_out)
    readings = data.read(final, held_out.widths)
    correct = np.mean([reading == expected for reading, expected in zip(readings, data.written(held_out), strict=True)])
    return Result(
        op="CtcLoss",
        task="reading lines of handwritten digits",
        figure=f"{share:.1%} of digits read right, {correct:.0%} of lines without error",
        reached=share > (QUICK_EXPECTED if options.quick else EXPECTED),
        difference=TRAINING.difference(),
        pictures={
            stages_drawn(held_out, stages, options.folder / "lines.png"): "Held-out lines, and below each of them the "
            "probabilities of the ten digits and the blank in each column, early in training and at its end. Greedy "
            "decoding takes the most probable class of each column, without repetitions and blanks; wrong results are "
            "orange.",
            curves_drawn(training.losses, history.metrics, options.folder / "curves.png"): "Training loss, and digits "
            "read right in held-out lines. At first the network predicts the blank in all columns.",
        },
    )


def log_probs(model: Path, lines: data.DigitLines) -> np.ndarray:
    """Log-probabilities of the classes of each column, (N, W, 11), by an exported model."""
    outputs: list[np.ndarray] = onnx_ops.InferenceSession(model).run(None, {"images": lines.images})
    return outputs[0]


def error_rate(log_probs: np.ndarray, lines: data.DigitLines) -> float:
    """The character error rate of greedy decoding of log-probabilities (N, W, 11)."""
    return data.error_rate(data.read(log_probs, lines.widths), list(data.written(lines)))


def stages_drawn(lines: data.DigitLines, stages: dict[str, np.ndarray], path: Path) -> Path:
    """Some lines with the probabilities of each column and the decoded digits; a column of the figure per stage."""
    truth = list(data.written(lines))
    readings = {stage: data.read(log_probs, lines.widths) for stage, log_probs in stages.items()}
    shown = interesting(list(readings.values())[-1], truth)
    widest = lines.widths[shown].max()
    with pictures.picture(path, 1.65 * SHOWN + 0.5) as figure:
        rows = figure.subplots(2 * SHOWN, len(stages), height_ratios=(data.HEIGHT, data.CLASSES + 3) * SHOWN)
        for column, (stage, log_probs) in enumerate(stages.items()):
            for row, line in enumerate(shown):
                above, below = rows[2 * row : 2 * row + 2, column]
                pictures.show(above, 1 - lines.images[line, :, :widest], vmin=0, vmax=1, aspect="auto")
                probabilities = np.exp(log_probs[line, :widest]).T
                probabilities[:, lines.widths[line] :] = np.nan
                drawn = below.imshow(probabilities, vmin=0, vmax=1, cmap="Blues", aspect="auto")
                below.grid(visible=False)
                below.spines[:].set_visible(False)
                below.set_xticks([])
                below.set_yticks((0, 5, 10), ("0", "5", "blank") if column == 0 else ())
                below.tick_params(length=2)
                reading = readings[stage][line]
                label_reading(below, reading, right=reading == truth[line])
                if row == 0:
                    above.set_title(stage)
        figure.colorbar(drawn, ax=rows[:, -1], label="probability", shrink=0.35, aspect=25)
    return path


def interesting(readings: list[list[int]], truth: list[list[int]]) -> list[int]:
    """Indices of SHOWN lines of at least five digits: the first ones that are right, and one that is wrong, if any."""
    long = [n for n, right in enumerate(truth) if len(right) >= 5]
    wrong = [n for n in long if readings[n] != truth[n]][:1]
    return [*[n for n in long if readings[n] == truth[n]][: SHOWN - len(wrong)], *wrong]


def label_reading(axes: Axes, reading: list[int], *, right: bool) -> None:
    """Write the decoded digits below the probabilities of a line."""
    text = f"reads {' '.join(map(str, reading))}" if reading else "reads nothing"
    color = pictures.GREEN if right else pictures.ORANGE
    axes.set_xlabel(text, loc="left", color=color, weight="bold", labelpad=3)


def curves_drawn(losses: list[float], shares: list[float], path: Path) -> Path:
    """Training loss and share of digits read right, by epoch."""
    epochs = np.arange(1, len(losses) + 1)
    with pictures.picture(path, 3.2) as figure:
        left, right = figure.subplots(1, 2)
        left.semilogy(epochs, losses, "o-", color=pictures.BLUE, markersize=4)
        left.yaxis.set_major_formatter("{x:g}")
        left.yaxis.set_minor_formatter(NullFormatter())
        left.set_title("CTC loss per digit, mean over the epoch")
        right.plot(epochs, shares, "o-", color=pictures.GREEN, markersize=4)
        right.axhline(EXPECTED, color=pictures.GREY, linestyle=":")
        right.set_title("Digits read right in held-out lines")
        right.set_ylim(min(0.7, *shares), 1)
        pictures.in_percent(right.yaxis)
        for axes in (left, right):
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return path


if __name__ == "__main__":
    sys.exit(command.main(run, DESCRIPTION, NAME))
