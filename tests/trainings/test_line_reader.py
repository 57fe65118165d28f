"""The reader of lines: what it is trained with, how it is judged, and the command."""

from __future__ import annotations

import difflib
import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from commands import check_pictures, run_quick
from sklearn.datasets import load_digits

from models.line_reader import data
from models.training import Training
from scripts.trainings import line_reader
from scripts.trainings.command import Options

# The digits


def test_forms_begin_where_the_labels_say() -> None:
    """All ask for the same digits in the same order, but for a few: they match best where they begin."""
    labels = load_digits().target.tolist()
    first = labels[:130]
    for start, end in itertools.pairwise((*data.FORMS, len(labels))):
        alike = {moved: matched(first, labels[max(0, start + moved) : end + moved]) for moved in (-10, 0, 10)}
        assert alike[0] == max(alike.values()) > 0.95


def matched(one: list[int], other: list[int]) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def test_held_out_digits_are_of_other_forms() -> None:
    images, labels = load_digits(return_X_y=True)
    learned, held_out = data.digits(held_out=False), data.digits(held_out=True)
    np.testing.assert_array_equal(held_out.images, (images[1415:] / 16).astype(np.float32))
    np.testing.assert_array_equal(held_out.labels, labels[1415:])
    before = np.r_[0:906, 1029:1415]
    np.testing.assert_array_equal(learned.images, (images[before] / 16).astype(np.float32))
    np.testing.assert_array_equal(learned.labels, labels[before])


# The lines


def test_lines_without_variation_are_digits_side_by_side() -> None:
    drawn, lengths = data.digits(held_out=True), np.array([1, 4, 7])
    lines = data.compose(drawn, lengths, np.random.default_rng(0), gaps=(0, 0), shift=0, faintest=1.0)
    assert lines.images.shape == (3, 8, 56)
    np.testing.assert_array_equal(lines.widths, 8 * lengths)
    np.testing.assert_array_equal(lines.lengths, lengths)
    known = {image.tobytes(): label for image, label in zip(drawn.images, drawn.labels, strict=True)}
    for image, length, written in zip(lines.images, lengths, data.written(lines), strict=True):
        pieces = [np.ascontiguousarray(image[:, x : x + 8]) for x in range(0, 8 * length, 8)]
        assert [known[piece.tobytes()] for piece in pieces] == written
        assert not image[:, 8 * length :].any()


def test_lines_vary() -> None:
    lines = data.lines(300, (3, 0), held_out=True)
    assert lines.images.shape == (300, data.HEIGHT, data.WIDTH)
    assert lines.images.dtype == np.float32
    assert lines.digits.shape == (300, 7)
    assert set(lines.lengths) == {3, 4, 5, 6, 7}
    assert 0 <= lines.images.min() < lines.images.max() <= 1
    brightest = lines.images.max(axis=(1, 2))
    assert brightest.min() < 0.6 < 0.9 < brightest.max()
    # Two digits that touch share a column; two that do not are up to 3 columns apart, as are the ends.
    assert np.all(lines.widths <= 8 * lines.lengths + 3 * (lines.lengths + 1))
    assert np.all(lines.widths >= 8 * lines.lengths - (lines.lengths - 1))
    assert len(set(lines.widths)) > 30
    outside = np.arange(data.WIDTH) >= lines.widths[:, np.newaxis]
    assert not lines.images.transpose(0, 2, 1)[outside].any()
    assert lines.images[:, 0].any()
    assert lines.images[:, -1].any()
    assert all((row[length:] == 0).all() for row, length in zip(lines.digits, lines.lengths, strict=True))


def test_lines_follow_from_the_seed() -> None:
    for one, again, other in zip(*(data.lines(5, seed, held_out=False) for seed in ((1,), (1,), (2,))), strict=True):
        assert one.tobytes() == again.tobytes() != other.tobytes()


def test_lines_to_learn_from_are_distorted() -> None:
    image = data.digits(held_out=False).images[0].reshape(8, 8)
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(data.distorted(image, 0.0, rng), image, atol=1e-6)  # of float32
    one, other = data.distorted(image, 0.3, rng), data.distorted(image, 0.3, rng)
    assert np.abs(one - image).max() > 0.05
    assert np.abs(one - other).max() > 0.05
    assert 0.5 < one.sum() / image.sum() < 2


# Reading and measuring


def test_read_against_words() -> None:
    """The class of each column as a letter: the same twice in a row is one, and blanks are taken out."""
    rng = np.random.default_rng(0)
    classes, widths = rng.choice([3, 3, 5, data.BLANK], size=(50, 12)), rng.integers(1, 13, size=50)
    log_probs = np.log(np.where(np.eye(data.CLASSES)[classes] > 0, 0.5, 0.05))
    expected = []
    for row, width in zip(classes, widths, strict=True):
        word = "".join("3" if label == 3 else "5" if label == 5 else "-" for label in row[:width])
        for letter in "35-":
            while 2 * letter in word:
                word = word.replace(2 * letter, letter)
        expected.append([int(letter) for letter in word.replace("-", "")])
    assert data.read(log_probs, widths) == expected


def test_edit_distance_against_its_definition() -> None:
    @functools.cache
    def distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
        if not one or not other:
            return len(one) + len(other)
        changed = distance(one[1:], other[1:]) + (one[0] != other[0])
        return min(changed, 1 + distance(one[1:], other), 1 + distance(one, other[1:]))

    rng = np.random.default_rng(0)
    for _ in range(200):
        one, other = (tuple(rng.integers(3, size=rng.integers(7)).tolist()) for _ in range(2))
        assert data.edit_distance(one, other) == distance(one, other)


def test_error_rate() -> None:
    assert data.error_rate([[1, 2], [], [7, 7]], [[1, 3], [4], [7, 7]]) == 2 / 5


# The command


@pytest.mark.full
def test_quick_form(tmp_path: Path) -> None:
    printed = run_quick("line_reader", tmp_path / "new")
    assert "% of digits read right" in printed
    assert "\r" not in printed
    check_pictures(tmp_path / "new", ("lines.png", "curves.png"), dark=(0.02, 0.9))


@pytest.mark.full
def test_resumed_training_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that is interrupted in its second epoch, and one that is not; and one that was over already."""
    monkeypatch.setattr(data, "LINES", 80)
    monkeypatch.setattr(line_reader, "EPOCHS", 3)
    monkeypatch.setattr(line_reader, "EARLY_STEPS", 2)
    monkeypatch.setattr(Training, "difference", lambda _: 0.0)  # tested with those of the other trainings
    folders = tmp_path / "whole", tmp_path / "resumed"
    for folder in folders:
        folder.mkdir()
    whole = line_reader.run(Options(quick=False, seed=5, folder=folders[0], resume=False))
    rate = line_reader.learning_rate

    def interrupted(done: float) -> float:
        if done > 0.5:
            raise KeyboardInterrupt
        return rate(done)

    monkeypatch.setattr(line_reader, "learning_rate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        line_reader.run(Options(quick=False, seed=5, folder=folders[1], resume=False))
    monkeypatch.setattr(line_reader, "learning_rate", rate)
    assert len(json.loads((folders[1] / "held_out.json").read_text())) == 1
    for _ in range(2):
        resumed = line_reader.run(Options(quick=False, seed=5, folder=folders[1], resume=True))
        assert resumed.figure == whole.figure
    names = sorted(path.name for path in folders[0].iterdir())
    assert sorted(path.name for path in folders[1].iterdir()) == names
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
