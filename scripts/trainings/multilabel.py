"""Learns which digits are on a picture, rare ones among them, with the loss `BinaryCrossEntropyWithLogits`.

Run it from the repository's root: `python -m scripts.trainings.multilabel`. It needs no PyTorch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import precision_recall_curve

from models import digits
from models.multilabel import data
from models.multilabel.training import LEARNING_RATE, TRAINING
from onnx_ops import InferenceSession, Trainer
from scripts.trainings import command, pictures
from scripts.trainings.command import Options, Result

NAME = "multilabel"
DESCRIPTION = """\
Learn which handwritten digits are strewn on a picture: ten labels at once, of which some are rare.

The same network is trained twice with the op BinaryCrossEntropyWithLogits, from the same weights on the same pictures:
once with the plain loss, and once with its input pos_weight, which makes a digit that is there count for more the rarer
it is. Both are then asked for the digits of pictures that are made of other digits than those that they have learnt."""

EPOCHS, QUICK_EPOCHS = 25, 4
# What share of the rare digits is to be found with pos_weight, and by how much it is to exceed that without.
EXPECTED, QUICK_EXPECTED = (0.8, 0.1), (0.75, 0.25)

PLAIN, WEIGHTED = "without pos_weight", "with pos_weight"
COLOURS = {PLAIN: pictures.BLUE, WEIGHTED: pictures.ORANGE}
MOVED = "without it, at the threshold 1 / (1 + pos_weight)"

CURVES_OF = 1, 5, 8
SHOWN = 5


class Network(NamedTuple):
    """A trained network: its logits (N, K) for the held-out pictures, and how well it finds their digits."""

    logits: np.ndarray
    found: data.Metrics


def run(options: Options) -> Result:
    """Train with pos_weight and without, and compare the two."""
    samples, held_out = dict(TRAINING.samples(options.seed)), data.held_out_pictures(options.seed)
    pos_weight = samples["pos_weight"]
    networks = {
        PLAIN: trained(PLAIN, samples | {"pos_weight": np.ones_like(pos_weight)}, held_out, options),
        WEIGHTED: trained(WEIGHTED, samples, held_out, options),
    }
    moved = data.metrics(networks[PLAIN].logits, held_out.labels, 1 / (1 + pos_weight))
    plain, weighted = (
        data.Metrics(*(np.mean(measure[data.RARE]) for measure in network.found)) for network in networks.values()
    )
    print(
        "The rare digits, with pos_weight and without: "
        f"recall {weighted.recall:.0%} and {plain.recall:.0%}, "
        f"precision {weighted.precision:.0%} and {plain.precision:.0%}, "
        f"average precision {weighted.average_precision:.2f} and {plain.average_precision:.2f}"
    )
    least, more = QUICK_EXPECTED if options.quick else EXPECTED
    return Result(
        op="BinaryCrossEntropyWithLogits",
        task="several labels at once, some of them rare",
        figure=f"{weighted.recall:.0%} of the rare digits found, without pos_weight {plain.recall:.0%}",
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
    """Draw what came of it; returns the files with their captions."""
    return {
        labels_drawn(held_out, networks, moved, folder / "labels.png"): "Above: held-out pictures, the digits on them, "
        "and those that the two networks name; wrong ones are purple, missed ones purple dots. Below: how much of each "
        "digit is found, and how much of what is named is there; the circles are the network without pos_weight, with "
        "a lower threshold for each digit in its place.",
        curves_drawn(held_out, networks, moved, folder / "curves.png"): "Precision and recall at all thresholds, of a "
        "frequent digit and of two rare ones. pos_weight moves the threshold 0.5 (dots) to where more is found and "
        "less of it is right; where the rare digit is learnt better with it, the whole curve lies higher.",
    }


def labels_drawn(held_out: data.Pictures, networks: dict[str, Network], moved: data.Metrics, path: Path) -> Path:
    """Some pictures with the digits that are named, and how well each digit is found."""
    with pictures.picture(path, 6.2) as figure:
        parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.25))
        above, below = parts
        interesting = (held_out.labels.sum(axis=1) >= 3) & (held_out.labels[:, data.RARE].sum(axis=1) >= 1)
        rows = above.subplots(2, SHOWN, height_ratios=(2.4, 1))
        for column, number in enumerate(np.flatnonzero(interesting)[:SHOWN]):
            pictures.show(rows[0, column], held_out.images[number], vmin=0, vmax=1)
            said = {"there": held_out.labels[number] > 0}
            said |= {name: network.logits[number] > 0 for name, network in networks.items()}
            named(rows[1, column], said, titles=column == 0)
        for axes, measure in zip(below.subplots(1, 2, sharey=True), ("recall", "precision"), strict=True):
            bars(axes, {name: getattr(n.found, measure) for name, n in networks.items()}, getattr(moved, measure))
            axes.set_title(f"{measure.capitalize()} at the threshold 0.5")
        handles, names = below.axes[0].get_legend_handles_labels()
        below.legend(handles, names, loc="outside lower center", ncols=3)
    return path


def named(axes: Any, said: dict[str, np.ndarray], titles: bool) -> None:
    """Rows of digits that are there, or named."""
    axes.set(xlim=(-0.5, digits.DIGITS - 0.5), ylim=(len(said) - 0.5, -0.5))
    axes.set_axis_off()
    truth = next(iter(said.values()))
    for row, (name, there) in enumerate(said.items()):
        if titles:
            axes.text(-1, row, name, ha="right", va="center", color=COLOURS.get(name, "black"))
        for digit in range(digits.DIGITS):
            wrong = there[digit] != truth[digit]
            axes.text(
                digit,
                row,
                str(digit) if there[digit] else "\N{BULLET}" if wrong else "\N{MIDDLE DOT}",
                ha="center",
                va="center",
                color=pictures.PURPLE if wrong else "black" if there[digit] else "#BBBBBB",
                weight="bold" if wrong else "normal",
            )


def bars(axes: Any, measures: dict[str, np.ndarray], moved: np.ndarray) -> None:
    """Bars for each digit."""
    places = np.arange(digits.DIGITS)
    for shift, (name, measure) in zip((-0.2, 0.2), measures.items(), strict=True):
        axes.bar(places + shift, measure, 0.38, color=COLOURS[name], label=name)
    axes.plot(places - 0.2, moved, "o", color="black", markerfacecolor="white", markersize=5, label=MOVED)
    axes.set_xticks(places, [f"{digit}\n{share:.0%}" for digit, share in enumerate(data.SHARES)])
    axes.set_xlabel("digit, and the share of pictures that have it")
    axes.grid(visible=False, axis="x")
    pictures.in_percent(axes.yaxis)


def curves_drawn(held_out: data.Pictures, networks: dict[str, Network], moved: data.Metrics, path: Path) -> Path:
    """Precision over recall."""
    with pictures.picture(path, 3.6) as figure:
        for axes, digit in zip(figure.subplots(1, len(CURVES_OF), sharey=True), CURVES_OF, strict=True):
            for name, network in networks.items():
                precision, recall, _ = precision_recall_curve(held_out.labels[:, digit], network.logits[:, digit])
                counted = recall >= 0.01  # with fewer pictures the precision is but chance
                axes.plot(recall[counted], precision[counted], color=COLOURS[name], label=name)
                at = network.found.recall[digit], network.found.precision[digit]
                axes.plot(*at, "o", color=COLOURS[name], markersize=9)
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
