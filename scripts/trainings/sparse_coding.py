"""Sparse coding of patches of photographs with a learned dictionary, with the layer `Hardshrink`.

Run it from the root of the repository: `python -m scripts.trainings.sparse_coding`. It does not require PyTorch.
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
Learn a dictionary for sparse coding of patches of photographs.

The codes come from iterative hard thresholding: gradient steps on the squared error, each followed by the op
Hardshrink. The gradient with respect to the dictionary is backpropagated through all iterations, with
HardshrinkBackward. The reconstruction of held-out patches is compared with that from as many principal components."""

EPOCHS, QUICK_EPOCHS = 25, 3
OVER_START, OVER_FIRST, OVER_LARGEST = 1.5, 5.0, 0.2
"""Lower bounds of the gain in dB over the initial dictionary and over principal components."""

SCALES = np.geomspace(0.5, 2, 11)  # the middle one is 1
REGION = slice(40, 208), slice(80, 336)  # of the first photograph, in multiples of data.SIDE
START, LEARNED, FIRST, LARGEST = "initial", "learned", "first components", "largest components"
COLOURS = {START: pictures.SKY, LEARNED: pictures.ORANGE, FIRST: pictures.GREY, LARGEST: pictures.BLUE}


@dataclass(frozen=True)
class Coder:
    """An exported network.

    Attributes:
        model: path of the ONNX model.
        dictionary: (K, SIDE, SIDE).
    """

    model: Path
    dictionary: np.ndarray

    @classmethod
    def of(cls, trainer: Trainer, model: Path) -> Coder:
        """Export the current state of a trainer to `model`."""
        trainer.export(model)
        return cls(model, trainer.weights()["dictionary"].reshape(-1, data.SIDE, data.SIDE))

    @cached_property
    def session(self) -> InferenceSession:
        return InferenceSession(self.model)

    def __call__(self, patches: np.ndarray, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Codes (N, K) and reconstruction (N, P) of patches (N, P), with thresholds divided by `scale`."""
        codes, reconstruction = self.session.run(None, {"patches": np.asarray(patches * scale, np.float32)})
        return codes / scale, reconstruction / scale


def nonzeros(codes: np.ndarray) -> float:
    """Mean number of nonzero codes per patch, of codes (N, K)."""
    return float(np.count_nonzero(codes) / len(codes))


def run(options: Options) -> Result:
    """Train, and compare the reconstruction of held-out patches with that from principal components."""
    samples, held_out = TRAINING.samples(options.seed), data.held_out_patches()
    components = data.Components.of(samples["patches"])
    trainer = Trainer(TRAINING.started(options.seed))
    start = Coder.of(trainer, options.folder / "start.onnx")

    def after(trainer: Trainer) -> dict[str, str]:
        codes, reconstruction = Coder.of(trainer, options.folder / "learned.onnx")(held_out)
        return {"held out": f"{data.psnr(held_out, reconstruction):.1f} dB", "nonzeros": f"{nonzeros(codes):.2f}"}

    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    training = TRAINING.run(trainer, samples, options.seed)
    command.train(training, epochs, "dictionary", options, rate=lambda done: LEARNING_RATE * (1 - done), after=after)
    learned = Coder.of(trainer, options.folder / "learned.onnx")

    codes, reconstruction = learned(held_out)
    count = nonzeros(codes)
    curves = {START: curve(start, held_out), LEARNED: curve(learned, held_out)}
    psnr = {
        START: float(np.interp(count, *curves[START])),
        LEARNED: data.psnr(held_out, reconstruction),
        FIRST: data.psnr(held_out, components.first(held_out, math.ceil(count))),
        LARGEST: data.psnr(held_out, components.largest(held_out, count)),
    }
    counts = np.arange(1, 1 + math.ceil(curves[LEARNED][0].max()))
    for name, reconstruct in ((FIRST, components.first), (LARGEST, components.largest)):
        curves[name] = counts, np.array([data.psnr(held_out, reconstruct(held_out, n)) for n in counts])
    print(f"With {count:.2f} nonzeros per patch: " + ", ".join(f"{n} {d:.1f} dB" for n, d in psnr.items()))
    over = {name: psnr[LEARNED] - other for name, other in psnr.items()}
    return Result(
        op="Hardshrink",
        task="sparse coding of patches of photographs",
        figure=f"{psnr[LEARNED]:.1f} dB with {count:.1f} atoms per patch, principal components "
        f"{psnr[FIRST]:.1f} to {psnr[LARGEST]:.1f} dB",
        reached=over[START] >= OVER_START and over[FIRST] >= OVER_FIRST and over[LARGEST] >= OVER_LARGEST,
        difference=TRAINING.difference(),
        pictures={
            dictionary_drawn(start, learned, codes, options.folder / "dictionary.png"): "The initial and the learned "
            "dictionary; the atoms are in the order of the number of patches that use them.",
            sparsity_drawn(curves, codes, options.folder / "sparsity.png"): "Left: peak signal-to-noise ratio of "
            "held-out patches by the number of nonzero coefficients; the dot has the thresholds of the training. The "
            "first principal components are the same for all patches; the largest ones are chosen over all patches, as "
            "the atoms are. Right: distribution of the number of atoms per patch.",
            reconstruction_drawn(learned, components, options.folder / "reconstruction.png"): "A held-out part of a "
            "photograph, reconstructed patch by patch from mean and nonzero coefficients.",
        },
    )


def curve(coder: Coder, patches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nonzeros per patch and peak signal-to-noise ratio in dB, each (S,), with thresholds divided by SCALES."""
    points = []
    for scale in SCALES:
        codes, reconstruction = coder(patches, scale)
        points.append((nonzeros(codes), data.psnr(patches, reconstruction)))
    counts, decibels = np.array(points).T
    return counts, decibels


def dictionary_drawn(start: Coder, learned: Coder, codes: np.ndarray, path: Path) -> Path:
    """The initial and the learned atoms, the most frequent first."""
    order = np.argsort(-np.count_nonzero(codes, axis=0), kind="stable")
    with pictures.picture(path, 3.8) as figure:
        coders = ("Initial dictionary", start), ("Learned dictionary", learned)
        for axes, (title, coder) in zip(figure.subplots(1, 2), coders, strict=True):
            pictures.show(axes, pictures.mosaic(coder.dictionary[order], 16), vmin=0, vmax=1)
            axes.set_title(f"{title}, {len(order)} atoms of {data.SIDE} x {data.SIDE} pixels")
    return path


def sparsity_drawn(curves: dict[str, tuple[np.ndarray, np.ndarray]], codes: np.ndarray, path: Path) -> Path:
    """Peak signal-to-noise ratio by sparsity, and the distribution of the sparsity over the patches."""
    labels = {
        START: "initial dictionary",
        LEARNED: "learned dictionary",
        FIRST: "first principal components",
        LARGEST: "largest principal components",
    }
    with pictures.picture(path, 3.8) as figure:
        left, right = figure.subplots(1, 2)
        for name, (counts, decibels) in curves.items():
            left.plot(counts, decibels, color=COLOURS[name], label=labels[name])
        trained = len(SCALES) // 2
        left.plot(*(axis[trained] for axis in curves[LEARNED]), "o", color=COLOURS[LEARNED], markersize=8)
        last = curves[LEARNED][0].max()
        left.set(xlim=(0, last), ylim=(17, max(decibels.max() for _, decibels in curves.values())))
        left.set(xlabel="mean number of nonzeros per patch", title="Peak signal-to-noise ratio (dB), held out")
        left.legend(loc="lower right")
        used = np.count_nonzero(codes, axis=1)
        some = used[used > 0]
        right.hist(some, np.arange(1, used.max() + 2) - 0.5, weights=np.full(len(some), 1 / len(used)), rwidth=0.9)
        right.set_xlabel(f"atoms used, of {codes.shape[1]}")
        right.set_title(f"Share of the held-out patches; {1 - len(some) / len(used):.0%} use none")
        pictures.in_percent(right.yaxis)
        right.grid(visible=False, axis="x")
    return path


def reconstruction_drawn(learned: Coder, components: data.Components, path: Path) -> Path:
    """A part of a photograph and its reconstructions."""
    region = data.photographs()[0][REGION]
    columns = region.shape[1] // data.SIDE
    patches = data.to_patches(region)
    means = data.means(patches)
    codes, reconstruction = learned(patches - means)
    count = nonzeros(codes)
    first = components.first(patches - means, math.ceil(count))
    with pictures.picture(path, 5.8) as figure:
        (above_left, above_right), (below_left, below_right) = figure.subplots(2, 2)
        share = count / codes.shape[1]
        shown = (
            (above_left, "Photograph", patches),
            (above_right, f"{count:.1f} atoms per patch ({share:.1%} of all)", reconstruction + means),
            (below_left, f"First {math.ceil(count)} principal components", first + means),
        )
        for axes, title, image in shown:
            pictures.show(axes, data.from_patches(image, columns), vmin=0, vmax=1)
            axes.set_title(title if image is patches else f"{title}: {data.psnr(patches, image):.1f} dB")
        used = np.count_nonzero(codes, axis=1).reshape(-1, columns)
        drawn = below_right.imshow(used, cmap="viridis")
        below_right.set_axis_off()
        below_right.set_title("Atoms used per patch")
        figure.colorbar(drawn, ax=below_right, shrink=0.8)
    return path


if __name__ == "__main__":
    sys.exit(command.main(run, DESCRIPTION, NAME))
