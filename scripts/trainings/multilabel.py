"""Multi-label classification with rare classes, with the loss `BinaryCrossEntropyWithLogits`.

Run it from the root of the repository: `python -m scripts.trainings.multilabel`. It does not require PyTorch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from sklearn.metrics import precision_recall_curve

from models import digits
from models.multilabel import data
from models.multilabel.training import LEARNING_RATE, TRAINING
from onnx_ops import InferenceSession, Trainer
from scripts.trainings import command, pictures
from scripts.trainings.command import Options, Result

NAME = "multilabel"
DESCRIPTION = """\
Train a multi-label classifier with rare classes: which of ten handwritten digits are in a picture?

The same network is trained twice with the op BinaryCrossEntropyWithLogits, from the same weights on the same pictures:
without pos_weight, and with a pos_weight that balances positives and negatives of each class. Both are evaluated on
pictures of held-out digits."""

EPOCHS, QUICK_EPOCHS = 25, 4
EXPECTED, QUICK_EXPECTED = (0.8, 0.1), (0.75, 0.25)
"""Lower bounds of the mean recall of rare digits with pos_weight, and of its difference to that without."""

PLAIN, WEIGHTED = "without pos_weight", "with pos_weight"
COLOURS = {PLAIN: pictures.BLUE, WEIGHTED: pictures.ORANGE}
MOVED = "without it, at the threshold 1 / (1 + pos_weight)"

CURVES_OF = 1, 5, 8
SHOWN = 5


class Network(NamedTuple):
    """A trained network: its logits (N, K) of the held-out pictures and its metrics."""

    logits: np.ndarray
    metrics: data.Metrics


def run(options: Options) -> Result:
    """Train with and without pos_weight, and compare the metrics."""
    samples, held_out = dict(TRAINING.samples(options.seed)), data.held_out_pictures(options.seed)
    pos_weight = samples["pos_weight"]
    networks = {
        PLAIN: trained(PLAIN, samples | {"pos_weight": np.ones_like(pos_weight)}, held_out, options),
        WEIGHTED: trained(WEIGHTED, samples, held_out, options),
    }
    moved = data.metrics(networks[PLAIN].logits, held_out.labels, 1 / (1 + pos_weight))
    plain, weighted = (
        data.Metrics(*(np.mean(metric[data.RARE]) for metric in network.metrics)) for network in networks.values()
    )
    print(
        "Rare digits, with and without pos_weight: "
        f"recall {weighted.recall:.0%} and {plain.recall:.0%}, "
        f"precision {weighted.precision:.0%} and {plain.precision:.0%}, "
        f"average precision {weighted.average_precision:.2f} and {plain.average_precision:.2f}"
    )
    least, more = QUICK_EXPECTED if options.quick else EXPECTED
    return Result(
        op="BinaryCrossEntropyWithLogits",
        task="multi-label classification with rare classes",
        figure=f"recall of rare digits {weighted.recall:.0%}, without pos_weight {plain.recall:.0%}",
        reached=bool(weighted.recall >= max(least, plain.recall + more)),
        difference=TRAINING.difference(),
        pictures=pictures_of(held_out, networks, moved, options.folder),
    )


def trained(name: str, samples: dict[str, np.ndarray], held_out: data.Pictures, options: Options) -> Network:
    """The network after a training with these samples."""
    trainer = Trainer(TRAINING.started(options.seed))
    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    run = TRAINING.run(trainer, samples, options.seed)
    command.train(run, epochs, name, options, rate=lambda done: LEARNING_RATE * (1 - done))
    model = options.folder / f"{name.replace(' ', '_')}.onnx"
    trainer.export(model)
    (logits,) = InferenceSession(model).run(None, {"images": held_out.images})
    return Network(logits, data.metrics(logits, held_out.labels))


def pictures_of(
    held_out: data.Pictures, networks: dict[str, Network], moved: data.Metrics, folder: Path
) -> dict[Path, str]:
    """Draw the figures; returns their captions by path."""
    return {
        labels_drawn(held_out, networks, moved, folder / "labels.png"): "Above: held-out pictures, their labels and "
        "the predictions of both networks; false positives are purple digits, false negatives purple dots. Below: "
        "recall and precision of each digit; the circles are the network without pos_weight at a lower threshold for "
        "each digit.",
        curves_drawn(held_out, networks, moved, folder / "curves.png"): "Precision-recall curves of a frequent digit "
        "and of two rare ones. At the threshold 0.5 (dots) pos_weight increases recall and decreases precision; a "
        "higher curve is a better classifier.",
    }


def labels_drawn(held_out: data.Pictures, networks: dict[str, Network], moved: data.Metrics, path: Path) -> Path:
    """Some pictures with labels and predictions, and the metrics of each digit."""
    with pictures.picture(path, 6.2) as figure:
        parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.25))
        above, below = parts
        interesting = (held_out.labels.sum(axis=1) >= 3) & (held_out.labels[:, data.RARE].sum(axis=1) >= 1)
        rows = above.subplots(2, SHOWN, height_ratios=(2.4, 1))
        for column, number in enumerate(np.flatnonzero(interesting)[:SHOWN]):
            pictures.show(rows[0, column], held_out.images[number], vmin=0, vmax=1)
            labels = {"labels": held_out.labels[number] > 0}
            labels |= {name: network.logits[number] > 0 for name, network in networks.items()}
            label_rows(rows[1, column], labels, titles=column == 0)
        for axes, metric in zip(below.subplots(1, 2, sharey=True), ("recall", "precision"), strict=True):
            bars(axes, {name: getattr(n.metrics, metric) for name, n in networks.items()}, getattr(moved, metric))
            axes.set_title(f"{metric.capitalize()} at the threshold 0.5")
        handles, names = below.axes[0].get_legend_handles_labels()
        below.legend(handles, names, loc="outside lower center", ncols=3)
    return path


def label_rows(axes: Axes, labels: dict[str, np.ndarray], titles: bool) -> None:
    """Rows of labels (K,): the true ones, which are the first, and the predicted ones."""
    axes.set(xlim=(-0.5, digits.DIGITS - 0.5), ylim=(len(labels) - 0.5, -0.5))
    axes.set_axis_off()
    truth = next(iter(labels.values()))
    for row, (name, predicted) in enumerate(labels.items()):
        if titles:
            axes.text(-1, row, name, ha="right", va="center", color=COLOURS.get(name, "black"))
        for digit in range(digits.DIGITS):
            wrong = predicted[digit] != truth[digit]
            axes.text(
                digit,
                row,
                str(digit) if predicted[digit] else "\N{BULLET}" if wrong else "\N{MIDDLE DOT}",
                ha="center",
                va="center",
                color=pictures.PURPLE if wrong else "black" if predicted[digit] else "#BBBBBB",
                weight="bold" if wrong else "normal",
            )


def bars(axes: Axes, metrics: dict[str, np.ndarray], moved: np.ndarray) -> None:
    """Bars of a metric (K,) of both networks, and circles of that at the lower threshold, `moved` (K,)."""
    places = np.arange(digits.DIGITS)
    for shift, (name, metric) in zip((-0.2, 0.2), metrics.items(), strict=True):
        axes.bar(places + shift, metric, 0.38, color=COLOURS[name], label=name)
    axes.plot(places - 0.2, moved, "o", color="black", markerfacecolor="white", markersize=5, label=MOVED)
    axes.set_xticks(places, [f"{digit}\n{share:.0%}" for digit, share in enumerate(data.SHARES)])
    axes.set_xlabel("digit, and its share of the pictures")
    axes.grid(visible=False, axis="x")
    pictures.in_percent(axes.yaxis)


def curves_drawn(held_out: data.Pictures, networks: dict[str, Network], moved: data.Metrics, path: Path) -> Path:
    """Precision-recall curves."""
    with pictures.picture(path, 3.6) as figure:
        for axes, digit in zip(figure.subplots(1, len(CURVES_OF), sharey=True), CURVES_OF, strict=True):
            for name, network in networks.items():
                precision, recall, _ = precision_recall_curve(held_out.labels[:, digit], network.logits[:, digit])
                shown = recall >= 0.01  # below, the precision of few pictures is noise
                axes.plot(recall[shown], precision[shown], color=COLOURS[name], label=name)
                point = network.metrics.recall[digit], network.metrics.precision[digit]
                axes.plot(*point, "o", color=COLOURS[name], markersize=9)
            axes.plot(
                moved.recall[digit],
                moved.precision[digit],
                "o",
                color=COLOURS[PLAIN],
                markerfacecolor="white",
                markersize=9,
                label=MOVED,
            )
            axes.set_title(f"The digit {digit}, in {data.SHARES[digit]:.0%} of the pictures")
            axes.set_xlabel("recall")
            for axis in (axes.xaxis, axes.yaxis):
                pictures.in_percent(axis)
        figure.axes[0].set_ylabel("precision")
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
    return path


if __name__ == "__main__":
    sys.exit(command.main(run, DESCRIPTION, NAME))
