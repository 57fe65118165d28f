"""Trainings shared by processes over MPI, and how they end when one of them does."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import steps
from backends import assert_close, kernel_options
from cases import names_with
from linear_oracle import Oracle

from models.perceptron import perceptron_step
from onnx_ops import Trainer

TESTS = Path(__file__).parents[1]
MPIEXEC = Path(sys.executable).with_name("mpiexec")
pytestmark = pytest.mark.skipif(
    not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None, reason="needs onnx-ops[mpi]"
)
STEPS = 20
GUIDE = TESTS.parent / "docs" / "data-parallel.md"


def launch(
    counts: list[int], folder: Path, *, runner: tuple[str, ...] = (), **told: Any
) -> subprocess.CompletedProcess[str]:
    configuration = {"first": 0, "last": STEPS, "counts": counts, "folder": str(folder)} | told
    program = [*runner, Path(__file__).with_name("mpi_training.py"), json.dumps(configuration)]
    command = [MPIEXEC, "-n", str(len(counts)), sys.executable, *program]
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def check_training(folder: Path, workers: int, first: int = 0, last: int = STEPS) -> None:
    """All workers have the state, and have reported the losses, of one with the whole batches."""
    oracle = Oracle.of(steps.start())
    expected = [float(oracle.step(**steps.batch(steps.SHARED, seed=number))["loss"]) for number in range(last)]
    files = [(folder / f"{rank}.safetensors").read_bytes() for rank in range(workers)]
    assert set(files) == {files[0]}, "the same bits on all workers"
    for rank in range(workers):
        # Sums of eight products, weighted, divided and rounded, for twenty steps.
        np.testing.assert_allclose(json.loads((folder / f"{rank}.json").read_text()), expected[first:], atol=4e-6)
    state, _ = steps.read_checkpoint(folder / "0.safetensors")
    for name, array in state.items():
        assert_close(array, oracle.state[name].astype(array.dtype), rtol=4e-6, atol=4e-6, what=name)


@pytest.mark.parametrize(
    "counts", names_with(full=[[8], [5, 3], [1, 2, 0, 5]], names=[[8], [5, 3], [3, 0, 5], [1, 2, 0, 5]]), ids=str
)
def test_processes_make_the_steps_of_the_whole_batch(counts: list[int], tmp_path: Path) -> None:
    done = launch(counts, tmp_path)
    assert done.returncode == 0, done.stderr
    check_training(tmp_path, len(counts))


@pytest.mark.parametrize("counts", [[5, 3], pytest.param([3, 1, 4], marks=pytest.mark.full)], ids=str)
def test_processes_accumulate_gradients(counts: list[int], tmp_path: Path) -> None:
    """Each another number of batches, some without samples; the reported losses are those of the last ones."""
    done = launch(counts, tmp_path, accumulated=True)
    assert done.returncode == 0, done.stderr
    oracle = Oracle.of(steps.start())
    for number in range(STEPS):
        oracle.step(**steps.batch(steps.SHARED, seed=number))
        oracle.state["mean"] = steps.start()["mean"]
    files = [(tmp_path / f"{rank}.safetensors").read_bytes() for rank in range(len(counts))]
    assert set(files) == {files[0]}, "the same bits on all workers"
    state, _ = steps.read_checkpoint(tmp_path / "0.safetensors")
    for name, array in state.items():
        assert_close(array, oracle.state[name].astype(array.dtype), rtol=4e-6, atol=4e-6, what=name)


@pytest.mark.full
def test_training_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("before", "after")]
    for folder in folders:
        folder.mkdir()
    checkpoint = str(folders[0] / "0.safetensors")
    for done in (
        launch([4, 4], folders[0], last=10),
        launch([2, 5, 1], folders[1], first=10, checkpoint=checkpoint),
    ):
        assert done.returncode == 0, done.stderr
    check_training(folders[0], 2, last=10)
    check_training(folders[1], 3, first=10)


@pytest.mark.parametrize(
    ("instead", "message"),
    [
        pytest.param("die", "signal 9", marks=pytest.mark.full),
        ("exit", "worker 2 has ended, while worker"),
        pytest.param("raise", "LookupError: no data", marks=pytest.mark.full),
        pytest.param("refused", "the batch lacks 'y'", marks=pytest.mark.full),
    ],
)
def test_a_worker_that_ends_ends_the_others(instead: str, message: str, tmp_path: Path) -> None:
    start = time.monotonic()
    done = launch([2, 3, 3], tmp_path, instead=instead)
    assert time.monotonic() - start < 30 + 30, "half a minute to start, half a minute to end"
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "no worker has come to the end"


RUNNER = ("-m", "onnx_ops.mpi")


@pytest.mark.parametrize(
    ("before", "runner", "message"),
    [
        pytest.param("raise", RUNNER, "onnx_ops: worker 1 has failed and ends all others", marks=pytest.mark.full),
        pytest.param("raise", (), "onnx_ops: worker 1 has failed and ends all others", marks=pytest.mark.full),
        ("die", RUNNER, "onnx_ops: worker 1 was killed by signal 9 (SIGKILL), which ends all"),
        pytest.param("exit", RUNNER, "onnx_ops: worker 1 has ended with exit status 7", marks=pytest.mark.full),
        pytest.param("leave", (), "worker 1 has ended, while worker 0 makes a trainer", marks=pytest.mark.full),
    ],
)
def test_a_worker_that_ends_before_it_has_a_trainer_ends_the_others(
    before: str, runner: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    """Run by onnx_ops.mpi, or importing it."""
    start = time.monotonic()
    done = launch([4, 4], tmp_path, runner=runner, before=before, protected=not runner)
    assert time.monotonic() - start < 30 + 30, "half a minute to start, half a minute to end"
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "no worker has come to the end"


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes there")
def test_a_launcher_that_is_killed_leaves_no_worker(tmp_path: Path) -> None:
    """Nor does a process that watches a worker."""
    program = "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(60)"
    command = [sys.executable, *RUNNER, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        worker, parent = map(int, watching.stdout.readline().split())
        assert parent == watching.pid
        watching.kill()
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists():
            return
        time.sleep(0.1)
    raise AssertionError("the worker is still there")


def check_norms(folder: Path, workers: int, first: int, last: int) -> None:
    """All workers have reported the losses that PyTorch has of the whole batches, and have the state of one worker."""
    from models.batch_norm_workers.training import TRAINING

    samples, trainer = TRAINING.in_batches(TRAINING.samples(0)), Trainer(TRAINING.started(0), kernel_options())
    alone = [float(trainer.step(**samples.batch(samples.order(0, 0), n))["loss"]) for n in range(last)]
    kept = json.loads(TRAINING.files.losses.read_text())
    for rank in range(workers):
        losses = json.loads((folder / f"{rank}.json").read_text())
        np.testing.assert_allclose(losses, alone[first:], rtol=1e-5)  # sums in another order
        np.testing.assert_allclose(losses, kept[first:last], rtol=1e-4)  # by other kernels
    assert len({(folder / f"{rank}.safetensors").read_bytes() for rank in range(workers)}) == 1
    state, _ = steps.read_checkpoint(folder / "0.safetensors")
    for name, array in trainer.state_dict().items():
        assert_close(state[name], array, rtol=1e-5, atol=1e-5, what=name)


@pytest.mark.full
def test_processes_synchronize_batch_norm(tmp_path: Path) -> None:
    """With unequal shares and one worker without a sample; other workers go on from the checkpoint."""
    pytest.importorskip("sklearn")
    folders = [tmp_path / name for name in ("before", "after")]
    for folder in folders:
        folder.mkdir()
    checkpoint = str(folders[0] / "0.safetensors")
    for done in (
        launch([5, 0, 3, 4], folders[0], last=10, norms=True),
        launch([4, 8], folders[1], first=10, checkpoint=checkpoint, norms=True),
    ):
        assert done.returncode == 0, done.stderr
    check_norms(folders[0], 4, 0, 10)
    check_norms(folders[1], 2, 10, STEPS)


@pytest.mark.full
@pytest.mark.parametrize(
    ("instead", "messages"),
    [
        ("die", ["signal 9"]),
        ("raise", ["LookupError: no data", "has failed and ends all others"]),
        ("exit", ["worker 2 has ended, while worker"]),
    ],
)
def test_a_worker_that_ends_amid_a_step_ends_the_others(instead: str, messages: list[str], tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    start = time.monotonic()
    done = launch([4, 4, 4], tmp_path, instead=instead, norms=True)
    assert time.monotonic() - start < 30 + 30, "half a minute to start, half a minute to end"
    assert done.returncode != 0
    assert all(message in done.stdout + done.stderr for message in messages)
    assert not list(tmp_path.iterdir()), "no worker has come to the end"


def test_the_guide_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(block)
    onnx.save(perceptron_step((8, 16, 3)), tmp_path / "step.onnx")
    losses = []
    for workers in ("1", "2"):
        command = [MPIEXEC, "-n", workers, sys.executable, *RUNNER, "train.py"]
        environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        losses.append(done.stdout)
    assert losses[0] == losses[1]
    assert float(losses[0].removeprefix("loss ")) < 0.2
    assert (tmp_path / "checkpoint.safetensors").exists()


@pytest.mark.full
def test_scaling_measures_all_numbers_of_workers() -> None:
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "scripts.scaling"]
    told = ["--networks", "64-64-10", "--samples", "4", "--rounds", "1", "--seconds", "0.01"]
    done = subprocess.run([*command, *told], cwd=TESTS.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    header, _, row = done.stdout.splitlines()
    assert "1 worker, ms" in header
    assert "efficiency of 2" in header
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # 64 * 64 + 64 + 64 * 10 + 10 parameters and the loss, in lines of 64 bytes, and one line of counts.
    assert cells[:3] == ["64-64-10", "4", f"{64 * (256 + 4 + 40 + 1 + 1 + 1) / 1e3:.1f}"]
    assert all(float(cell) > 0 for cell in cells[3:])
