"""The training of teacher, student and twin: its images, its measures, its command."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from commands import check_pictures, check_resumed, interrupted, run_quick
from sklearn.datasets import load_digits

from models.distillation import data
from models.distillation.data import Digits, Split
from models.distillation.training import ALPHA, COPIES, STUDENT, TEACHER, TEMPERATURE, softened
from scripts.trainings import distillation
from scripts.trainings.distillation import Mean


def bilinear(image: np.ndarray, row: float, column: float) -> float:
    """The brightness at a place between pixels; outside of the image it is black."""
    total = 0.0
    for i in range(image.shape[0]):
        for j in range(image.shape[1]):
            total += image[i, j] * max(0.0, 1 - abs(row - i)) * max(0.0, 1 - abs(column - j))
    return total


def test_warped_pixel_by_pixel() -> None:
    """Each pixel of the result against the place in the image that turning, scaling and shifting take there."""
    rng = np.random.default_rng(0)
    image = np.zeros((8, 8))
    image[1:7, 1:7] = rng.random((6, 6))  # with a black edge, so that it does not matter how an edge is continued
    turn, scale, shift = 0.15, 1.07, np.array([0.4, -0.3])
    found = data.warped(image, turn, scale, shift)
    for row in range(8):
        for column in range(8):
            down, right = (np.array([row, column]) - shift - 3.5) / scale
            place = (
                np.cos(turn) * down - np.sin(turn) * right + 3.5,
                np.sin(turn) * down + np.cos(turn) * right + 3.5,
            )
            # The interpolation's weights are sums of a few float64 numbers below 10.
            assert found[row, column] == pytest.approx(bilinear(image, *place), abs=1e-12)


def test_shift_by_a_pixel() -> None:
    """Down and to the right; black comes in."""
    image = np.random.default_rng(1).random((8, 8))
    expected = np.zeros((8, 8))
    expected[1:, 1:] = image[:-1, :-1]
    assert data.warped(image, 0.0, 1.0, np.ones(2)) == pytest.approx(expected, abs=1e-12)


def test_moved_copies_keep_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TURN", "SHIFT", "SCALE", "NOISE"):
        monkeypatch.setattr(data, name, 0.0)
    digits = Digits(np.random.default_rng(2).random((5, 8, 8)).astype(np.float32), np.arange(5))
    copies = data.moved(digits, 3, np.random.default_rng(0))
    assert copies.images.dtype == np.float32
    assert copies.labels.tolist() == [0, 1, 2, 3, 4] * 3
    assert copies.images == pytest.approx(np.concatenate([digits.images] * 3), abs=1e-6)  # of float32


def test_split_holds_digits_out() -> None:
    """All digits there are, each on one side; each class has its share of those held out."""
    learned, held_out = data.split(4)
    images, labels = load_digits(return_X_y=True)
    assert len(learned.labels) + len(held_out.labels) == len(labels)
    together = np.concatenate([learned.images, held_out.images]).reshape(len(labels), -1) * 16
    assert sorted(map(tuple, together)) == sorted(map(tuple, images))
    shares = np.bincount(held_out.labels) / np.bincount(labels)
    assert np.all(np.abs(shares - data.HELD_OUT / len(labels)) < 0.01)
    assert not np.array_equal(data.split(5).held_out.labels, held_out.labels)


def test_student_sees_what_the_teacher_sees_but_no_copy() -> None:
    teachers, students = TEACHER.samples(3), STUDENT.samples(3)
    count = len(students["labels"])
    assert len(teachers["labels"]) == (1 + COPIES) * count
    assert np.array_equal(teachers["images"][:count], students["images"])
    assert np.array_equal(teachers["labels"][:count], students["labels"])
    assert students["alpha"] == np.float32(ALPHA)
    assert all(np.array_equal(students[name], STUDENT.samples(3)[name]) for name in students)


def test_probabilities() -> None:
    logits = np.array([[0.0, TEMPERATURE * np.log(3), -4000.0]], np.float32)
    assert softened(logits) == pytest.approx(np.array([[0.25, 0.75, 0.0]]), abs=1e-6)
    learned = data.split(0).learned
    made = data.by_class_means(learned)
    assert made.dtype == np.float32
    number = 17
    distances = [
        sum(((learned.images[number] - learned.images[learned.labels == k].mean(axis=0, dtype=float)) ** 2).ravel())
        for k in range(10)
    ]
    expected = np.exp(-np.array(distances)) / sum(np.exp(-np.array(distances)))
    assert made[number] == pytest.approx(expected, rel=1e-5)


def test_interval() -> None:
    """By the table of Student's t: 2.776 for 95 % and 4 degrees of freedom."""
    found = distillation.mean(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert found.value == 3
    assert found.half == pytest.approx(2.776 * np.sqrt(2.5 / 5), rel=1e-3)


CLEAR, NONE, WORSE = Mean(15.0, 4.5), Mean(-0.5, 1.5), Mean(-6.5, 1.0)


@pytest.mark.parametrize(
    ("held_out", "moved", "quick", "full"),
    [
        (Mean(1.5, 1.1), CLEAR, True, True),
        (NONE, CLEAR, True, False),
        (WORSE, CLEAR, True, False),
        (Mean(1.5, 1.1), Mean(9.1, 11.9), False, False),
        (Mean(1.5, 1.1), Mean(3.0, 1.0), False, False),
        (Mean(1.5, 1.1), WORSE, False, False),
    ],
)
def test_what_is_expected(held_out: Mean, moved: Mean, quick: bool, full: bool) -> None:
    """No gain whose interval reaches 0 is taken for one; the quick form is to show that on moved digits alone."""
    assert distillation.is_reached(held_out, moved, quick=True) == quick
    assert distillation.is_reached(held_out, moved, quick=False) == full


def test_what_is_not_shown_is_said() -> None:
    assert distillation.gain_text(Mean(1.5, 1.1), CLEAR) == (
        "student: +15.0 ± 4.5 points over its twin on moved held-out digits; "
        "+1.5 ± 1.1 points over its twin on held-out digits as they are"
    )
    assert distillation.gain_text(NONE, CLEAR) == (
        "student: +15.0 ± 4.5 points over its twin on moved held-out digits; "
        "no significant difference from its twin on held-out digits as they are (-0.5 ± 1.5 points)"
    )


@pytest.mark.full
def test_quick_command(tmp_path: Path) -> None:
    """From a fresh folder: the figure is reached, and the pictures can be looked at."""
    printed = run_quick("distillation", tmp_path)
    assert re.search(
        r"^student: \+[\d.]+ ± [\d.]+ points over its twin on moved held-out digits", printed, re.MULTILINE
    )
    check_pictures(tmp_path, ("answers.png", "accuracy.png", "epochs.png"), dark=(0.02, 0.9))


@pytest.mark.full
def test_resumed_training_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted amid the last of its three networks, a training ends with the same bits."""
    split = data.split

    def few(seed: int) -> Split:
        learned, held_out = split(seed)
        return Split(Digits(learned.images[:150], learned.labels[:150]), held_out)

    monkeypatch.setattr(data, "split", few)
    monkeypatch.setattr(distillation, "QUICK_TEACHERS_EPOCHS", 3)
    monkeypatch.setattr(distillation, "QUICK_STUDENTS_EPOCHS", 3)

    # The record of the epoch is written then, its checkpoint is not.
    interruption = interrupted(7, amid_the_next=True)
    files = check_resumed(tmp_path, lambda options: distillation.run_trial(6, options), interruption)
    assert len(files) == 3 * 3
