"""Lines of handwritten digits, composed of scikit-learn's images of single digits; decoding and error rate.

Shapes: M digit images of P = 64 pixels, N lines, H rows, W columns, S digits of the longest line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits

SIDE = 8
CLASSES = 11
BLANK = 10
"""The blank of CTC; the classes below it are the digits."""

LENGTHS = 3, 7
"""Range of the number of digits of a line."""
GAPS = -1, 3
"""Range of the number of columns between two digits; -1: they overlap by one column."""
SHIFT = 1
"""Maximal vertical offset of a digit, in rows."""
FAINTEST = 0.5
"""Lower bound of the brightness of a line; the upper bound is 1."""
DISTORTION = 0.3
"""Augmentation of the training set, as for `distorted`: there are few writers."""
HEIGHT = SIDE + 2 * SHIFT
WIDTH = LENGTHS[1] * (SIDE + GAPS[1]) + GAPS[1]
"""Maximal width of a line."""

LINES = 5000
HELD_OUT_LINES = 400

FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
"""Index of the first image of each form that writers filled in.

The images are in the order of the forms, which the labels show: each form has the same 130 digits in the same order, of
which some are missing, beginning with three times 0 to 9.
"""
HELD_OUT_FORMS = 11, 12, 13
LEFT_OUT_FORM = 7
"""Probably by the writer of form 11: 13 people filled in the 14 forms, and a third of the digits of form 7 have their
nearest neighbour in form 11, far more than for any other pair of forms."""


class Digits(NamedTuple):
    """Images (M, P) of single digits, float32 in [0, 1], and labels (M,)."""

    images: np.ndarray
    labels: np.ndarray


class DigitLines(NamedTuple):
    """A batch of lines; `images` and `digits` are padded with zeros.

    Attributes:
        images: (N, H, W), in [0, 1].
        widths: (N,), int64, number of columns of each line.
        digits: (N, S), int64, the labels.
        lengths: (N,), int64, number of digits of each line.
    """

    images: np.ndarray
    widths: np.ndarray
    digits: np.ndarray
    lengths: np.ndarray


def digits(*, held_out: bool) -> Digits:
    """The training set, or the held-out set, which is by other writers."""
    images, labels = load_digits(return_X_y=True)
    form = np.searchsorted(FORMS, np.arange(len(labels)), side="right") - 1
    is_held_out = np.isin(form, HELD_OUT_FORMS)
    chosen = is_held_out if held_out else ~is_held_out & (form != LEFT_OUT_FORM)
    return Digits((images[chosen] / 16).astype(np.float32), labels[chosen])


def lines(count: int, seed: Sequence[int], *, held_out: bool) -> DigitLines:
    """`count` random lines of LENGTHS digits, padded to WIDTH columns and LENGTHS[1] digits."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(LENGTHS[0], LENGTHS[1] + 1, size=count)
    return compose(digits(held_out=held_out), lengths, rng, distortion=0.0 if held_out else DISTORTION)


def training_lines(seed: int) -> dict[str, np.ndarray]:
    """The training set, by name of the step's inputs."""
    return lines(LINES, (seed, 0), held_out=False)._asdict()


def held_out_lines(seed: int, count: int = HELD_OUT_LINES) -> DigitLines:
    """The test set."""
    return lines(count, (seed, 1), held_out=True)


def compose(
    source: Digits,
    lengths: np.ndarray,
    rng: np.random.Generator,
    *,
    gaps: tuple[int, int] = GAPS,
    shift: int = SHIFT,
    faintest: float = FAINTEST,
    distortion: float = 0.0,
) -> DigitLines:
    """Compose lines of digits drawn at random.

    Args:
        source: the digits to draw from.
        lengths: (N,), number of digits of each line.
        rng: draws digits, gaps, offsets, brightness and distortion.
        gaps: range of the number of columns between two digits; before the first digit and after the last one at
            least 0.
        shift: maximal vertical offset of a digit, in rows.
        faintest: lower bound of the brightness of a line.
        distortion: the amount for `distorted`.

    Returns:
        N lines of H = 8 + 2 * shift rows, padded to the maximal width of the longest.
    """
    longest = int(max(lengths))
    images = np.zeros((len(lengths), SIDE + 2 * shift, longest * (SIDE + gaps[1]) + gaps[1]), source.images.dtype)
    written, widths = np.zeros((len(lengths), longest), np.int64), np.zeros(len(lengths), np.int64)
    for n, length in enumerate(lengths):
        chosen = rng.integers(len(source.labels), size=length)
        before = rng.integers(gaps[0], gaps[1] + 1, size=length + 1)
        before[[0, -1]] = np.maximum(before[[0, -1]], 0)
        right = before[:-1].cumsum() + SIDE * np.arange(length)
        down = rng.integers(2 * shift + 1, size=length)
        brightness = rng.uniform(faintest, 1.0)
        for index, x, y in zip(chosen, right, down, strict=True):
            place = images[n, y : y + SIDE, x : x + SIDE]
            image = source.images[index].reshape(SIDE, SIDE)
            if distortion:
                image = distorted(image, distortion, rng)
            np.maximum(place, brightness * image, out=place, casting="same_kind")
        written[n, :length] = source.labels[chosen]
        widths[n] = right[-1] + SIDE + before[-1]
    return DigitLines(images, widths, written, np.asarray(lengths, np.int64))


def distorted(image: np.ndarray, amount: float, rng: np.random.Generator) -> np.ndarray:
    """A random linear map of an image (8, 8) about its centre, the identity plus entries in [-amount, amount]."""
    matrix = np.eye(2) + rng.uniform(-amount, amount, size=(2, 2))
    middle = np.full(2, (SIDE - 1) / 2)
    return ndimage.affine_transform(image, matrix, middle - matrix @ middle, order=1)


def written(lines: DigitLines) -> Iterator[list[int]]:
    """The digits of each line."""
    for row, length in zip(lines.digits, lines.lengths, strict=True):
        yield row[:length].tolist()


def read(log_probs: np.ndarray, widths: np.ndarray) -> list[list[int]]:
    """Greedy (best path) decoding: the most probable class of each column, without repetitions and blanks.

    Args:
        log_probs: (N, W, 11), log-probabilities or logits of the classes.
        widths: (N,), number of columns of each line.

    Returns:
        The digits of each line.
    """
    best = log_probs.argmax(axis=-1)
    return [
        [int(label) for label, _ in groupby(row[:width]) if label != BLANK]
        for row, width in zip(best, widths, strict=True)
    ]


def edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """The Levenshtein distance: insertions, deletions and substitutions that turn one sequence into the other."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            diagonal, row[j] = row[j], min(diagonal + (a != b), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def error_rate(readings: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]) -> float:
    """The character error rate: the sum of the edit distances divided by the number of digits in `truth`."""
    distances = sum(edit_distance(reading, expected) for reading, expected in zip(readings, truth, strict=True))
    return distances / sum(map(len, truth))
