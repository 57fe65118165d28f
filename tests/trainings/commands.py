"""Trainings as users have them: the command in a process of its own, its pictures, an interruption and what follows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from onnx_ops.fitting.run import Run
from scripts.trainings.command import Options

ROOT = Path(__file__).parents[2]


def module(name: str) -> list[object]:
    """The command of a training, as far as the options that all tests give it."""
    return [sys.executable, "-m", f"scripts.trainings.{name}", "--quick"]


def run(*command: object, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What becomes of a command, which has to succeed."""
    made = [str(part) for part in command]
    done = subprocess.run(made, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_quick(name: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """What the quick form of a training prints; it reaches its figure, and warns of nothing."""
    done = run(*module(name), "--out", folder, environment=environment)
    assert done.stderr == ""
    return done.stdout


def check_pictures(folder: Path, names: Iterable[str], dark: tuple[float, float]) -> None:
    """These are the pictures in a folder, and something can be seen on them.

    Args:
        folder: where they are.
        names: of all of them.
        dark: more than what share of a picture's pixels is not white, and less than what share.
    """
    assert {path.name for path in folder.glob("*.png")} == set(names)
    least, most = dark
    for name in names:
        picture = imread(folder / name)[..., :3]
        height, width, _ = picture.shape
        assert width == 1440, name
        assert 400 < height <= 2000, name
        assert least < np.mean(picture.min(axis=2) < 0.9) < most, name
        assert picture.std() > 0.1, name


@contextmanager
def interrupted(saves: int, *, amid_the_next: bool = False) -> Iterator[None]:
    """A training within is interrupted once so many checkpoints are written, or when one more is about to be."""
    save, saved = Run.save, []

    def save_and_end(self: Run, path: Path) -> None:
        if len(saved) == saves:
            raise KeyboardInterrupt
        save(self, path)
        saved.append(path)
        if len(saved) == saves and not amid_the_next:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "save", save_and_end)
        with pytest.raises(KeyboardInterrupt):
            yield
    assert len(saved) == saves


def check_resumed(
    folder: Path, train: Callable[[Options], object], interruption: AbstractContextManager[None]
) -> list[str]:
    """A training that was interrupted and resumed ends with the same bits as one that was not.

    Args:
        folder: an empty one.
        train: the training.
        interruption: interrupts it.

    Returns:
        The names of the files that the training writes.
    """
    whole, parts = (
        Options(quick=True, seed=2, folder=folder / name, resume=False) for name in ("whole", "interrupted")
    )
    for options in (whole, parts):
        options.folder.mkdir()
    train(whole)
    with interruption:
        train(parts)
    train(replace(parts, resume=True))
    names = sorted(path.name for path in whole.folder.iterdir())
    assert sorted(path.name for path in parts.folder.iterdir()) == names
    for name in names:
        assert (whole.folder / name).read_bytes() == (parts.folder / name).read_bytes(), name
    return names
