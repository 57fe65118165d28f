"""Learns a dictionary of which a few atoms tell a patch of a photograph, with the layer `Hardshrink`.

Run it from the repository's root: `python -m scripts.trainings.sparse_coding`. It needs no PyTorch.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from models.sparse_coding import data
from models.sparse_coding.training import LEARNING_RATE, TRAINING
from onnx_ops import InferenceSession, Trainer
from scripts.trainings import command, pictures
from scripts.trainings.command import Options, Result

NAME = "sparse_coding"
DESCRIPTION = """\
Learn a dictionary of atoms, of which a few tell a patch of a photograph: sparse coding.

The atoms that are in a patch are found by steps down the gradient of the error, each followed by the op Hardshrink,
which makes all small numbers 0. The dictionary is learnt through all of these steps, with HardshrinkBackward. It is
tried on the parts of the photographs that it has not learnt from, beside principal components, told with as many
numbers for each patch."""

EPOCHS, QUICK_EPOCHS = 25, 3
# Decibels by which the dictionary that training starts from, and principal components, are to be exceeded.
OVER_START, OVER_FIRST, OVER_LARGEST = 1.5, 5.0, 0.2

SCALES = np.geomspace(0.5, 2, 11)  # the middle one is 1
REGION = slice(40, 208), slice(80, 336)  # of the first photograph, in multiples of data.SIDE
START, LEARNT, FIRST, LARGEST = "start", "learnt", "first components", "largest components"
COLOURS = {START: pictures.SKY, LEARNT: pictures.ORANGE, FIRST: pictures.GREY, LARGEST: pictures.BLUE}


@dataclass(frozen=True)
class Coder:
    """A network, by the path of its model, and its dictionary as tiles (K, SIDE, SIDE)."""

    model: Path
    dictionary: np.ndarray

    @classmethod
    def of(cls, trainer: Trainer, model: Path) -> Coder:
        """That of a trainer as it is now."""
        trainer.export(model)
        return cls(model, trainer.weights()["dictionary"].reshape(-1, data.SIDE, data.SIDE))

    @cached_property
    def session(self) -> InferenceSession:
        return InferenceSession(self.model)

    def __call__(self, patches: np.ndarray, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """The codes (N, K) of patches (N, P), and what they tell (N, P), with thresholds divided by the scale."""
        codes, told = self.session.run(None, {"patches": np.asarray(patches * scale, np.float32)})
        return codes / scale, told / scale


def numbers(codes: np.ndarray) -> float:
    """How many of a patch's code are not 0, on average."""
    return float(np.count_nonzero(codes) / len(codes))


def run(options: Options) -> Result:
    """Train, and compare what is learnt with principal components."""
    samples, held_out = TRAINING.samples(options.seed), data.held_out_patches()
    components = data.Components.of(samples["patches"])
    trainer = Trainer(TRAINING.started(options.seed))
    start = Coder.of(trainer, options.folder / "start.onnx")

    def after(trainer: Trainer) -> dict[str, str]:
        codes, told = Coder.of(trainer, options.folder / "learnt.onnx")(held_out)
        return {"held out": f"{data.psnr(held_out, told):.1f} dB", "numbers": f"{numbers(codes):.2f}"}

    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    training = TRAINING.run(trainer, samples, options.seed)
    command.train(training, epochs, "dictionary", options, rate=lambda done: LEARNING_RATE * (1 - done), after=after)
    learnt = Coder.of(trainer, options.folder / "learnt.onnx")

    codes, told = learnt(held_out)
    count = numbers(codes)
    curves = {START: curve(start, held_out), LEARNT: curve(learnt, held_out)}
    reached = {
        START: float(np.interp(count, *curves[START])),
        LEARNT: data.psnr(held_out, told),
        FIRST: data.psnr(held_out, components.first(held_out, math.ceil(count))),
        LARGEST: data.psnr(held_out, components.largest(held_out, count)),
    }
    counts = np.arange(1, 1 + math.ceil(curves[LEARNT][0].max()))
    for name, told_with in ((FIRST, components.first), (LARGEST, components.largest)):
        curves[name] = counts, np.array([data.psnr(held_out, told_with(held_out, n)) for n in counts])
    print(f"With {count:.2f} numbers for each patch: " + ", ".join(f"{n} {d:.1f} dB" for n, d in reached.items()))
    over = {name: reached[LEARNT] - other for name, other in reached.items()}
    return Result(
        op="Hardshrink",
        task="patches of photographs told with few atoms of a learnt dictionary",
        figure=f"{reached[LEARNT]:.1f} dB with {count:.1f} atoms for each patch, principal components "
        f"{reached[FIRST]:.1f} to {reached[LARGEST]:.1f} dB",
        reached=over[START] >= OVER_START and over[FIRST] >= OVER_FIRST and over[LARGEST] >= OVER_LARGEST,
        difference=TRAINING.difference(),
        pictures={
            dictionary_drawn(start, learnt, codes, options.folder / "dictionary.png"): "The dictionary at the start, "
            "and as it was learnt, the atoms that most patches use first.",
            sparsity_drawn(curves, codes, options.folder / "sparsity.png"): "Left: how exactly held-out patches are "
            "told with how many numbers; the dot is where it was trained, and with lower thresholds the largest "
            "components overtake it. The first principal components are the same for all patches; of the largest ones "
            "some patches have more than others, as of the atoms. Right: how many atoms patches need.",
            reconstruction_drawn(learnt, components, options.folder / "reconstruction.png"): "A held-out part of a "
            "photograph, told patch by patch: of each its mean, and those of its numbers that are not 0. Where there "
            "is more to see, more atoms are used.",
        },
    )


def curve(coder: Coder, patches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers for each patch, and decibels, at several thresholds."""
    points = []
    for scale in SCALES:
        codes, told = coder(patches, scale)
        points.append((numbers(codes), data.psnr(patches, told)))
    counts, decibels = np.array(points).T
    return counts, decibels


def dictionary_drawn(start: Coder, learnt: Coder, codes: np.ndarray, path: Path) -> Path:
    """The atoms, before and after."""
    order = np.argsort(-np.count_nonzero(codes, axis=0), kind="stable")
    with pictures.picture(path, 3.8) as figure:
        coders = ("The dictionary at the start", start), ("The learnt dictionary", learnt)
        for axes, (title, coder) in zip(figure.subplots(1, 2), coders, strict=True):
            pictures.show(axes, pictures.mosaic(coder.dictionary[order], 16), vmin=0, vmax=1)
            axes.set_title(f"{title}, {len(order)} atoms of {data.SIDE} x {data.SIDE} pixels")
    return path


def sparsity_drawn(curves: dict[str, tuple[np.ndarray, np.ndarray]], codes: np.ndarray, path: Path) -> Path:
    """Exactness over sparsity, and how that is spread over the patches."""
    labels = {
        START: "dictionary at the start",
        LEARNT: "learnt dictionary",
        FIRST: "first principal components",
        LARGEST: "largest principal components",
    }
    with pictures.picture(path, 3.8) as figure:
        left, right = figure.subplots(1, 2)
        for name, (counts, decibels) in curves.items():
            left.plot(counts, decibels, color=COLOURS[name], label=labels[name])
        trained = len(SCALES) // 2
        left.plot(*(axis[trained] for axis in curves[LEARNT]), "o", color=COLOURS[LEARNT], markersize=8)
        last = curves[LEARNT][0].max()
        left.set(xlim=(0, last), ylim=(17, max(decibels.max() for _, decibels in curves.values())))
        left.set(xlabel="numbers for each patch, on average", title="Peak signal-to-noise ratio (dB), held out")
        left.legend(loc="lower right")
        used = np.count_nonzero(codes, axis=1)
        some = used[used > 0]
        right.hist(some, np.arange(1, used.max() + 2) - 0.5, weights=np.full(len(some), 1 / len(used)), rwidth=0.9)
        right.set_xlabel(f"atoms used, of {codes.shape[1]}")
        right.set_title(f"Share of the held-out patches; {1 - len(some) / len(used):.0%} need none")
        pictures.in_percent(right.yaxis)
        right.grid(visible=False, axis="x")
    return path


def reconstruction_drawn(learnt: Coder, components: data.Components, path: Path) -> Path:
    """A part of a photograph, as it is and as it is told."""
    region = data.photographs()[0][REGION]
    columns = region.shape[1] // data.SIDE
    patches = data.to_patches(region)
    means = data.means(patches)
    codes, told = learnt(patches - means)
    count = numbers(codes)
    first = components.first(patches - means, math.ceil(count))
    with pictures.picture(path, 5.8) as figure:
        (above_left, above_right), (below_left, below_right) = figure.subplots(2, 2)
        shown = (
            (above_left, "The photograph", patches),
            (above_right, f"Atoms, {count:.1f} for each patch ({count / codes.shape[1]:.1%} of them)", told + means),
            (below_left, f"The first {math.ceil(count)} principal components", first + means),
        )
        for axes, title, some in shown:
            pictures.show(axes, data.from_patches(some, columns), vmin=0, vmax=1)
            axes.set_title(title if some is patches else f"{title}: {data.psnr(patches, some):.1f} dB")
        used = np.count_nonzero(codes, axis=1).reshape(-1, columns)
        drawn = below_right.imshow(used, cmap="viridis")
        below_right.set_axis_off()
        below_right.set_title("Atoms used for each patch")
        figure.colorbar(drawn, ax=below_right, shrink=0.8)
    return path


if __name__ == "__main__":
    sys.exit(command.main(run, DESCRIPTION, NAME))
