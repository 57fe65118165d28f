"""Lines of handwritten digits, composed of scikit-learn's images of single ones; and what a reader made of them.

Letters: M digit images of P = 64 pixels, N lines, H rows, W columns, S digits of the longest line.
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
"""The class of a column in which no digit is told; those before it are the digits."""

LENGTHS = 3, 7
GAPS = -1, 3
"""Columns between two digits. Where there is less than none, a digit begins in the last column of the one before."""
SHIFT = 1
"""By so many rows a digit stands higher or lower than the middle of its line, at most."""
FAINTEST = 0.5
"""The least brightness of a line, of which the brightest has 1."""
DISTORTION = 0.3
"""How much the digits to learn from are stretched and slanted: those few writers have not shown all that there is."""
HEIGHT = SIDE + 2 * SHIFT
WIDTH = LENGTHS[1] * (SIDE + GAPS[1]) + GAPS[1]
"""Of the widest line that there can be."""

LINES = 5000
HELD_OUT_LINES = 400

# The images stand in the order in which forms were read in. That shows in the labels: each form asks for the same 130
# digits in the same order, of which some are missing, and begins with three times 0 to 9. So a form begins at each of
# these, and what comes after the last of the borders is of other writers than what stands before it.
FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
HELD_OUT_FORMS = 11, 12, 13
# 13 people have filled in these 14 forms, so one of them two. It is not known who. Of the digits of form 7 a third have
# their nearest neighbour of all other forms in form 11, far more than between any others: one hand, perhaps.
LEFT_OUT_FORM = 7


class Digits(NamedTuple):
    """Images (M, P) of single digits, brightness from 0 to 1 in float32, and their labels (M,)."""

    images: np.ndarray
    labels: np.ndarray


class DigitLines(NamedTuple):
    """Lines; `images` and `digits` are padded with zeros.

    Attributes:
        images: brightness from 0 to 1, (N, H, W).
        widths: the number of columns of each line, int64 (N,).
        digits: what is written, int64 (N, S).
        lengths: how many digits that are, int64 (N,).
    """

    images: np.ndarray
    widths: np.ndarray
    digits: np.ndarray
    lengths: np.ndarray


def digits(*, held_out: bool) -> Digits:
    """Those to learn from, or those of other writers, which are held out."""
    images, labels = load_digits(return_X_y=True)
    form = np.searchsorted(FORMS, np.arange(len(labels)), side="right") - 1
    is_held_out = np.isin(form, HELD_OUT_FORMS)
    chosen = is_held_out if held_out else ~is_held_out & (form != LEFT_OUT_FORM)
    return Digits((images[chosen] / 16).astype(np.float32), labels[chosen])


def lines(count: int, seed: Sequence[int], *, held_out: bool) -> DigitLines:
    """So many lines of LENGTHS digits, drawn at random, padded to WIDTH columns and the most digits there can be."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(LENGTHS[0], LENGTHS[1] + 1, size=count)
    return compose(digits(held_out=held_out), lengths, rng, distortion=0.0 if held_out else DISTORTION)


def training_lines(seed: int) -> dict[str, np.ndarray]:
    """Those to learn from, by the names of the step's inputs."""
    return lines(LINES, (seed, 0), held_out=False)._asdict()


def held_out_lines(seed: int, count: int = HELD_OUT_LINES) -> DigitLines:
    """Those to try the reader on."""
    return lines(count, (seed, 1), held_out=True)


def compose(
    drawn: Digits,
    lengths: np.ndarray,
    rng: np.random.Generator,
    *,
    gaps: tuple[int, int] = GAPS,
    shift: int = SHIFT,
    faintest: float = FAINTEST,
    distortion: float = 0.0,
) -> DigitLines:
    """Compose lines of digits that are drawn at random.

    Args:
        drawn: the digits to draw from.
        lengths: how many digits each line has.
        rng: draws the digits and all that varies.
        gaps: the least and the largest number of columns between two digits; before the first of a line and after its
            last there are 0 columns at least.
        shift: by so many rows a digit stands higher or lower, at most.
        faintest: the least brightness of a line.
        distortion: how much digits are stretched and slanted, as for `distorted`.

    Returns:
        Lines of 8 + 2 * shift rows, and as many columns as the longest of them can have.
    """
    longest = int(max(lengths))
    images = np.zeros((len(lengths), SIDE + 2 * shift, longest * (SIDE + gaps[1]) + gaps[1]), drawn.images.dtype)
    written, widths = np.zeros((len(lengths), longest), np.int64), np.zeros(len(lengths), np.int64)
    for n, length in enumerate(lengths):
        chosen = rng.integers(len(drawn.labels), size=length)
        before = rng.integers(gaps[0], gaps[1] + 1, size=length + 1)
        before[[0, -1]] = np.maximum(before[[0, -1]], 0)
        right = before[:-1].cumsum() + SIDE * np.arange(length)
        down = rng.integers(2 * shift + 1, size=length)
        brightness = rng.uniform(faintest, 1.0)
        for index, x, y in zip(chosen, right, down, strict=True):
            place = images[n, y : y + SIDE, x : x + SIDE]
            image = drawn.images[index].reshape(SIDE, SIDE)
            if distortion:
                image = distorted(image, distortion, rng)
            np.maximum(place, brightness * image, out=place, casting="same_kind")
        written[n, :length] = drawn.labels[chosen]
        widths[n] = right[-1] + SIDE + before[-1]
    return DigitLines(images, widths, written, np.asarray(lengths, np.int64))


def distorted(image: np.ndarray, amount: float, rng: np.random.Generator) -> np.ndarray:
    """An image (8, 8) stretched and slanted about its middle, at random.

    Each entry of the matrix of that map differs from that of the identity by up to the amount.
    """
    matrix = np.eye(2) + rng.uniform(-amount, amount, size=(2, 2))
    middle = np.full(2, (SIDE - 1) / 2)
    return ndimage.affine_transform(image, matrix, middle - matrix @ middle, order=1)


def written(lines: DigitLines) -> Iterator[list[int]]:
    """The digits of each line."""
    for row, length in zip(lines.digits, lines.lengths, strict=True):
        yield row[:length].tolist()


def read(log_probs: np.ndarray, widths: np.ndarray) -> list[list[int]]:
    """The digits that are told: of each column the most probable class, of equal ones in a row one, and no blanks.

    Args:
        log_probs: of the classes, (N, W, 11), or of what grows with them.
        widths: the number of columns of each line, (N,).
    """
    best = log_probs.argmax(axis=-1)
    return [
        [int(label) for label, _ in groupby(row[:width]) if label != BLANK]
        for row, width in zip(best, widths, strict=True)
    ]


def edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """How many entries have to be put in, taken out or replaced to make one sequence of the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, mine in enumerate(one, start=1):
        diagonal, row[0] = row[0], i
        for j, its in enumerate(other, start=1):
            diagonal, row[j] = row[j], min(diagonal + (mine != its), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def error_rate(readings: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]) -> float:
    """The edit distances of all lines, as a share of the number of digits that are written."""
    distances = sum(edit_distance(reading, right) for reading, right in zip(readings, truth, strict=True))
    return distances / sum(map(len, truth))
