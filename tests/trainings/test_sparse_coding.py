"""The training of a dictionary: its patches, its measures, its command."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("PIL")  # scikit-learn reads its photographs with it

from commands import check_pictures, check_resumed, interrupted, run_quick
from matplotlib.figure import Figure

from models.sparse_coding import data
from models.sparse_coding.training import TRAINING
from onnx_ops import InferenceSession, Trainer
from scripts.trainings import pictures, sparse_coding


def test_from_patches_is_the_inverse_of_to_patches() -> None:
    image = np.arange(24 * 40, dtype=np.float32).reshape(24, 40)
    patches = data.to_patches(image)
    assert patches.shape == (15, 64)
    assert np.array_equal(patches[7], image[8:16, 16:24].ravel())
    assert np.array_equal(data.from_patches(patches, 5), image)


def test_patches_are_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of the photographs is in patches of both kinds."""
    rows = np.repeat(np.arange(427.0)[:, None], 640, axis=1).astype(np.float32)
    monkeypatch.setattr(data, "photographs", lambda: [rows, rows])
    monkeypatch.setattr(data, "means", lambda patches: np.float32(0))
    held_out, learnt = data.held_out_patches(), data.training_patches(0)
    assert held_out.shape == (2 * 26 * 80, 64)
    assert learnt.shape == (data.PATCHES, 64)
    assert set(np.unique(held_out)) == set(range(208))
    assert set(np.unique(learnt)) == set(range(208, 427))


def test_patches_have_no_means() -> None:
    for patches in (data.training_patches(1), data.held_out_patches()):
        assert patches.dtype == np.float32
        assert np.abs(patches.mean(axis=1)).max() < 1e-6  # of brightness up to 1 in float32
    assert data.training_patches(1).tobytes() != data.training_patches(2).tobytes()


def test_psnr() -> None:
    """An error of 0.1 in all pixels is 20 dB below the peak, 1."""
    patches = np.zeros((3, 64), np.float32)
    assert data.psnr(patches, patches + 0.1) == pytest.approx(20, abs=1e-5)


def test_components() -> None:
    """Against scikit-learn's, and a search for the coefficients to keep."""
    from sklearn.decomposition import PCA

    patches = data.training_patches(0)[:50]
    patches = patches - patches.mean(axis=0)  # scikit-learn removes this one
    components = data.Components.of(patches)
    # 49 of the components have a variance: as many as there are patches, but for the mean.
    expected = PCA(49, svd_solver="full").fit(patches.astype(np.float64)).components_
    assert np.abs(np.abs(np.sum(components.patches[:49] * expected, axis=1)) - 1).max() < 1e-6
    assert np.allclose(components.first(patches, 3), patches @ expected[:3].T @ expected[:3], atol=1e-6)
    # With orthogonal components the error is the sum of the squares that are left out.
    squares = np.sort((patches @ expected.T).ravel() ** 2)[::-1]
    error = np.sum((patches - components.largest(patches, 2.5)) ** 2)
    assert error == pytest.approx(squares[125:].sum(), rel=1e-5)


def test_codes_are_those_of_iterative_hard_thresholding(tmp_path: Path) -> None:
    """The network beside the iteration written out in float64, for a patch after the other."""
    rng = np.random.default_rng(4)
    state = dict(TRAINING.started(0).state)
    dictionary, steps = rng.normal(size=(192, 64)), np.linspace(0.2, 0.6, 8)
    state |= {"dictionary": dictionary.astype(np.float32), "steps": steps.astype(np.float32)}
    trainer = Trainer(TRAINING.started(0))
    trainer.load_state_dict(state)
    trainer.export(tmp_path / "coder.onnx")
    patches = data.held_out_patches()[1000:1020]
    codes, reconstruction = InferenceSession(tmp_path / "coder.onnx").run(None, {"patches": patches})
    atoms = dictionary / np.linalg.norm(dictionary, axis=1, keepdims=True)
    for patch, code, result in zip(patches.astype(np.float64), codes, reconstruction, strict=True):
        expected = np.zeros(192)
        for step, threshold in zip(steps, np.geomspace(0.6, 0.1, 8), strict=True):
            moved = expected + step * (atoms @ (patch - expected @ atoms))
            expected = np.where(np.abs(moved) > threshold, moved, 0)
        assert np.allclose(code, expected, atol=1e-5)
        assert np.allclose(result, expected @ atoms, atol=1e-5)


def test_mosaic() -> None:
    """Each tile in its place, in shades of its own, with white around it."""
    tiles = np.arange(6 * 4.0).reshape(6, 2, 2)
    shown = pictures.mosaic(tiles, 3)
    assert shown.shape == (8, 12)
    assert np.allclose(shown[5:7, 9:11], [[0, 1 / 3], [2 / 3, 1]])
    assert np.all(shown[[0, 3, 4, 7]] == 1)


@pytest.mark.parametrize("most", [0.0022, 0.009, 0.0207, 0.3, 0.9])
def test_ticks_are_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: float) -> None:
    """However small a share the highest bar is, and so however fine the ticks beside it."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: drawn.append(self))
    codes = np.zeros((10_000, 9))
    codes[: round(most * len(codes)), :2] = 1
    curve = np.arange(1.0, 1 + len(sparse_coding.SCALES)), np.linspace(25, 40, len(sparse_coding.SCALES))
    sparse_coding.sparsity_drawn(dict.fromkeys(sparse_coding.COLOURS, curve), codes, tmp_path / "sparsity.png")
    (figure,) = drawn
    figure.draw_without_rendering()
    axis = figure.axes[1].yaxis
    labels = [label.get_text() for label in axis.get_ticklabels()]
    assert len(labels) > 3
    assert [float(label.removesuffix("%")) for label in labels] == pytest.approx(100 * axis.get_ticklocs(), abs=1e-9)


@pytest.mark.full
def test_quick_command(tmp_path: Path) -> None:
    """From a fresh folder: the figure is reached, and the pictures can be looked at."""
    printed = run_quick("sparse_coding", tmp_path)
    assert re.search(r"^[\d.]+ dB with [\d.]+ atoms per patch", printed, re.MULTILINE)
    check_pictures(tmp_path, ("dictionary.png", "sparsity.png", "reconstruction.png"), dark=(0.05, 0.95))


@pytest.mark.full
def test_resumed_training_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after an epoch, a training ends with the same bits."""
    monkeypatch.setattr(data, "PATCHES", 1000)
    monkeypatch.setattr(sparse_coding, "QUICK_EPOCHS", 3)

    files = check_resumed(tmp_path, sparse_coding.run, interrupted(1))
    assert {"dictionary.safetensors", "learned.onnx"} <= set(files)
