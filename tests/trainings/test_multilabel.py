"""The training of rare labels: its pictures, its measures, its command."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from commands import check_pictures, check_resumed, interrupted, run_quick

from models.multilabel import data
from models.multilabel.training import TRAINING
from scripts.trainings import multilabel


def marked_digits() -> tuple[np.ndarray, np.ndarray]:
    """An image of each digit k, whose pixels are all (k + 1) / 10."""
    labels = np.arange(10)
    return np.repeat((labels[:, None] + 1) / 10, 64, axis=1).astype(np.float32), labels


def test_pictures_show_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those digits are labelled whose brightness is there; none covers another, from which it is 4 pixels away."""
    monkeypatch.setattr(data, "NOISE", 0.0)
    pictures = data.compose(*marked_digits(), 300, np.random.default_rng(0))
    assert pictures.images.dtype == pictures.labels.dtype == np.float32
    assert pictures.images.shape == (300, 24, 24)
    for image, label in zip(pictures.images, pictures.labels, strict=True):
        seen = {round(10 * value) - 1 for value in np.unique(image[image > 0])}
        assert seen == set(np.flatnonzero(label))
        assert np.count_nonzero(image) <= 64 * len(seen)


def test_digits_are_as_rare_as_is_said() -> None:
    pictures = data.compose(*marked_digits(), 20000, np.random.default_rng(1))
    deviation = np.sqrt(data.SHARES * (1 - data.SHARES) / 20000)
    assert np.all(np.abs(pictures.labels.mean(axis=0) - data.SHARES) < 4 * deviation)


def test_pictures_are_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No digit of those to learn from is on a held-out picture."""
    used: list[set[bytes]] = []

    def compose(images: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator) -> None:
        used.append({image.tobytes() for image in images})

    monkeypatch.setattr(data, "compose", compose)
    data.training_pictures(0)
    data.held_out_pictures(0)
    assert all(used)
    assert not used[0] & used[1]


def test_seed_fixes_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PICTURES", 200)
    first, again, other = (TRAINING.samples(seed) for seed in (3, 3, 4))
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    assert first["images"].tobytes() != other["images"].tobytes()


def test_balancing() -> None:
    """The weight of all pictures with a digit is that of all without it."""
    labels = np.zeros((12, 3), np.float32)
    labels[:6, 0] = labels[:3, 1] = labels[:1, 2] = 1
    assert data.balancing(labels).tolist() == [1, 3, 11]


def test_measures() -> None:
    """Against a count of every pair, and the definition of the average precision."""
    rng = np.random.default_rng(5)
    labels = (rng.random((40, 10)) < 0.3).astype(np.float32)
    logits = (2 * labels + rng.normal(size=labels.shape) - 1).astype(np.float32)
    threshold = rng.uniform(0.2, 0.8, 10)
    found = data.metrics(logits, labels, threshold)
    for k in range(10):
        said = [1 / (1 + np.exp(-float(logit))) > threshold[k] for logit in logits[:, k]]
        right = sum(1 for n in range(40) if said[n] and labels[n, k])
        assert found.recall[k] == pytest.approx(right / sum(labels[:, k]))
        assert found.precision[k] == pytest.approx(right / max(sum(said), 1))
        # Of each picture with the digit, the share of such pictures among those that are rated no lower.
        rated = [logits[:, k] >= logits[n, k] for n in range(40) if labels[n, k]]
        expected = np.mean([labels[higher, k].mean() for higher in rated])
        assert found.average_precision[k] == pytest.approx(expected)


def test_nothing_is_found_of_what_is_never_named() -> None:
    found = data.metrics(np.full((4, 1), -9.0), np.array([[1], [0], [0], [0]]))
    assert (found.recall[0], found.precision[0], found.average_precision[0]) == (0, 0, 0.25)


@pytest.mark.full
def test_quick_command(tmp_path: Path) -> None:
    """From a fresh folder: the figure is reached, and the pictures can be looked at."""
    printed = run_quick("multilabel", tmp_path)
    assert re.search(r"^recall of rare digits \d+%, without pos_weight \d+%", printed, re.MULTILINE)
    check_pictures(tmp_path, ("labels.png", "curves.png"), dark=(0.05, 0.9))


@pytest.mark.full
def test_resumed_training_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted amid the second of its networks, a training ends with the same bits."""
    monkeypatch.setattr(data, "PICTURES", 300)
    monkeypatch.setattr(data, "HELD_OUT_PICTURES", 300)
    monkeypatch.setattr(multilabel, "QUICK_EPOCHS", 3)

    files = check_resumed(tmp_path, multilabel.run, interrupted(5))
    assert {f"{name}.safetensors" for name in ("without_pos_weight", "with_pos_weight")} <= set(files)
