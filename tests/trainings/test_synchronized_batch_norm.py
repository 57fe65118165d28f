"""The training by workers that share small batches: its data, their shares, its command."""

from __future__ import annotations

import importlib.util
import os
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from commands import check_pictures, module, run, run_quick

from models.batch_norm_workers.data import TRAINED, digits, jittered
from models.batch_norm_workers.training import TRAINING
from onnx_ops.fitting.run import Checkpoint
from onnx_ops.graph.stored import same_bits
from scripts.trainings import synchronized_batch_norm as training
from scripts.trainings.command import Options
from scripts.trainings.threads import together

NAME = "synchronized_batch_norm"
MPIEXEC = Path(sys.executable).with_name("mpiexec")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def test_light_is_a_brightness_and_a_contrast() -> None:
    """Of pictures that are black in one half and white in the other the halves tell both."""
    pictures = np.zeros((2000, 2, 4))
    pictures[:, :, 2:] = 1
    made = jittered(pictures, np.random.default_rng(0))
    dark, bright = made[:, 0, 0], made[:, 0, 3]
    np.testing.assert_array_equal(made, np.where(pictures, bright[:, None, None], dark[:, None, None]))
    assert -2 <= dark.min() < -1.9 < 1.9 < dark.max() <= 2
    contrast = bright - dark
    assert 0.25 <= contrast.min() < 0.26 < 3.9 < contrast.max() <= 4
    # As many are fainter than 1 as are stronger: 1000 of 2000, give or take six deviations of 22.
    assert abs(np.sum(contrast < 1) - 1000) < 134


def test_digits_are_trained_on_or_held_out() -> None:
    trained, held_out = digits(0)
    assert len(trained["labels"]) == TRAINED
    assert len(held_out["labels"]) == 1797 - TRAINED
    for part in (trained, held_out):
        assert part["images"].shape == (len(part["labels"]), 1, 8, 8)
        assert part["images"].dtype == np.float32
        assert set(part["labels"]) == set(range(10))
    other, _ = digits(1)
    np.testing.assert_array_equal(other["labels"], trained["labels"])
    assert not np.array_equal(other["images"], trained["images"])


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_shares_of_workers_are_the_batch(workers: int, uneven: bool) -> None:
    if workers == 1 and uneven:
        return
    samples = TRAINING.in_batches(TRAINING.samples(0))
    order = samples.order(0, 3)
    for number in (0, samples.steps - 1):  # the last one is smaller
        whole = samples.batch(order, number)
        parts = [
            training.Share.of_worker(samples, rank, workers, uneven).batch(order, number) for rank in range(workers)
        ]
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)
        sizes = [len(part["labels"]) for part in parts]
        if uneven:
            assert sizes[-1] == 0
            assert all(later <= before + 1 for before, later in pairwise(sizes)), "fewer, but for rounding"
        else:
            assert max(sizes) - min(sizes) <= 1


def test_trainings_that_are_compared() -> None:
    assert [(c.workers, c.synchronized, c.uneven) for c in training.courses(4)] == [
        ((1,), True, False),
        ((2,), True, False),
        ((4,), True, False),
        ((4,), True, True),
        ((4, 2, 1), True, False),
        ((2,), False, False),
        ((4,), False, False),
    ]
    assert [c.workers for c in training.courses(3)] == [(1,), (2,), (2,), (2, 1), (2,)]
    assert [c.workers for c in training.courses(1)] == [(1,)]
    titles = [course.title for course in training.courses(8)]
    assert len(set(titles)) == len(titles), "each has a checkpoint of its own"


@pytest.mark.full
def test_resumed_training_is_the_same(tmp_path: Path) -> None:
    """Bit for bit, though it is interrupted after one epoch of two."""
    course = training.courses(2)[1]
    states, losses = [], []
    for name, ends in (("whole", [2]), ("interrupted", [1, 2])):
        (folder := tmp_path / name).mkdir()
        for end in ends:
            options = Options(quick=True, seed=3, folder=folder, resume=end != ends[0])
            curve = together(2, lambda own, end=end, to=options: training.train_worker(course, own, end, 2, to))[0]
        losses.append(curve.losses.tolist())
        states.append(Checkpoint.read(folder / "2_workers.safetensors").state)
    assert losses[0] == losses[1]
    for name, array in states[0].items():
        assert same_bits(array, states[1][name]), name


@pytest.mark.full
def test_the_quick_form_reaches_its_figure(tmp_path: Path) -> None:
    assert "losses of one worker within" in run_quick(NAME, tmp_path, ENVIRONMENT)
    check_pictures(tmp_path, ("curves.png", "batch.png"), dark=(0.02, 0.9))


@pytest.mark.skipif(not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None, reason="needs onnx-ops[mpi]")
@pytest.mark.full
def test_processes_make_the_trainings_of_threads(tmp_path: Path) -> None:
    command = [*module(NAME), "--epochs", "1", "--out"]
    run(*command, tmp_path / "threads", "--workers", "2", environment=ENVIRONMENT)
    done = run(MPIEXEC, "-n", "2", *command, tmp_path / "processes", environment=ENVIRONMENT)
    assert done.stdout.count("2 workers uneven shares, epoch   1 of 1") == 1, done.stdout + done.stderr
    files = [path.relative_to(tmp_path / "threads") for path in (tmp_path / "threads").iterdir()]
    assert "curves.png" in map(str, files)
    for file in files:
        other = tmp_path / "processes" / file
        assert other.exists()
        if file.suffix == ".safetensors" and "plain" not in file.name:
            losses = [Checkpoint.read(tmp_path / kind / file).record.losses for kind in ("threads", "processes")]
            np.testing.assert_allclose(*losses, rtol=1e-5)  # sums in another order
