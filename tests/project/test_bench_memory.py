"""The memory benchmark: peaks of this process, comparisons of losses, and sides in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.memory.files import WARM_UP, Files
from scripts.memory.peaks import RESETS, Measurement

ROOT = Path(__file__).parents[2]
MEBIBYTE = 2**20
# What the interpreter itself may allocate and free meanwhile.
SLACK = 8 * MEBIBYTE

needs_peaks = pytest.mark.skipif(not RESETS.exists(), reason="peaks are read from Linux's /proc")


@pytest.fixture
def bench_memory() -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    return pytest.importorskip("scripts.bench_memory")


PROGRAM = """
import json
import numpy as np
from scripts.memory.peaks import measure

def load():
    np.ones(64 * 2**20, np.uint8)  # freed at once
    kept = np.ones(16 * 2**20, np.uint8)
    return lambda: float(np.ones(32 * 2**20, np.uint8)[0] + kept[0])

measured = measure(load, steps=3)
print(json.dumps([measured.loading, measured.steps, measured.losses]))
"""


@needs_peaks
def test_peaks_of_loading_and_of_steps_are_apart() -> None:
    """In a process of its own, where nothing else is allocated or freed."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    loading, in_steps, losses = json.loads(done.stdout)
    assert abs(loading - 64 * MEBIBYTE) < SLACK
    assert abs(in_steps - 48 * MEBIBYTE) < SLACK
    assert losses == [2.0] * 4


def test_medians_are_of_each_number(bench_memory: Any) -> None:
    numbers = [(1, 20, 300, 0.4), (2, 10, 100, 0.6), (3, 30, 200, 0.5)]
    median = bench_memory.median(Measurement(*each, losses=[1.0]) for each in numbers)
    assert median == Measurement(2, 20, 200, 0.5, [1.0])


def test_losses_of_an_overwritten_parameter_are_refused(bench_memory: Any) -> None:
    bench_memory.check_losses("MLP", [2.299, 1.626, 0.592], [2.299, 1.6262, 0.593])
    with pytest.raises(bench_memory.WrongLossError, match="MLP"):
        bench_memory.check_losses("MLP", [2.29, 1.71, 2.86], [2.29, 1.64, 0.62])
    with pytest.raises(bench_memory.WrongLossError):
        bench_memory.check_losses("MLP", [float("nan")], [2.29])


def test_the_table_has_sizes_in_units_of_the_parameters(bench_memory: Any) -> None:
    def row(side: str, steps: int) -> Any:
        measured = Measurement(200 * MEBIBYTE, 80 * MEBIBYTE, steps * MEBIBYTE, 0.0125, [1.0])
        return bench_memory.Row("MLP", side, 20 * MEBIBYTE, measured)

    *_, ours, theirs = bench_memory.table([row("Trainer", 70), row("PyTorch", 100)]).splitlines()
    cells = [cell.strip() for cell in ours.strip("| ").split("|")]
    assert cells[:6] == ["MLP", "20 MiB", "Trainer", "200 MiB", "80 MiB", "70 MiB"]
    assert cells[6:] == ["4.0 P", "3.5 P", "0.70", "12.5 ms"]
    assert "1.00" in theirs


@needs_peaks
@pytest.mark.full
def test_the_sides_make_the_same_steps_and_the_trainer_without_torch(bench_memory: Any, tmp_path: Path) -> None:
    parameters = bench_memory.capture(Files(tmp_path, WARM_UP))
    assert parameters == (4 * 4 + 4) * 4
    losses = []
    for side in bench_memory.SIDES:
        hidden = "import sys; sys.modules['torch'] = None\n" if side == "Trainer" else ""
        program = f"{hidden}from scripts.memory.sides import main; main()"
        command = [sys.executable, "-c", program, side, str(tmp_path), WARM_UP, "--steps", "2"]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        losses.append(Measurement(**json.loads(result.stdout)).losses)
    assert len(losses[0]) == 3
    for other in losses[1:]:
        bench_memory.check_losses(WARM_UP, losses[0], other)
