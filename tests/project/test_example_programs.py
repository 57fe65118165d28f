"""The programs in scripts/examples run, and reach what they set out to."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cpp_trainer
import numpy as np
import pytest

import onnx_ops
from scripts.compiling import MissingError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "scripts" / "examples"
MPIEXEC = Path(sys.executable).with_name("mpiexec")

WITHOUT_TORCH = {
    "op_on_arrays": lambda names: abs(names["loss"] - names["golden"]) < 1e-7 and names["gradient"].shape == (4, 3),
    "op_in_a_graph": lambda names: names["with_kernel"].tolist() == names["without"].tolist() == [[1, 0, 0, 4]],
    "step_by_hand": lambda names: names["losses"][-1] < 0.6 * names["losses"][0],
}
WITH_TORCH = {
    "fine_tune": lambda names: names["losses"][-1] < 0.3 and names["accuracy"] > 0.95,
    "gan": lambda names: np.abs(names["trainer"].weights()["generator.bias"] - [3, -1]).max() < 0.3,
    "custom_optimizer": lambda names: names["losses"][-1] < 0.5 * names["losses"][0],
}
WITH_A_STEP = {
    "train": lambda names: (
        names["found"]["accuracy"] > 0.9 and np.abs(names["logits"] - names["predicted"]).max() < 1e-5
    ),
    "epochs": lambda names: names["epochs"][-1].validation["accuracy"] > 0.85,
    "plain_onnxruntime": lambda names: names["losses"][-1] < 0.2,
    "accumulate": lambda names: names["difference"] < 1e-5,
    "checkpoint": lambda names: names["resumed"].state_dict().keys() == names["tuned"].state_dict().keys(),
}

SUFFIXES = {"cpp": "cpp", "c": "c", "rust": "rs"}
"""Of files in the languages of docs/cpp.md."""

needs_torch = [
    pytest.mark.skipif(not all(map(importlib.util.find_spec, ("torch", "onnxscript"))), reason="captures from PyTorch"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # of torch.onnx, about itself
]


def run(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def marked(names: Iterable[str], *marks: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(name, marks=marks) for name in names]


@pytest.mark.parametrize("name", [*WITHOUT_TORCH, *marked(WITH_TORCH, pytest.mark.full, *needs_torch)])
def test_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (WITHOUT_TORCH | WITH_TORCH)[name](run(name))
    assert capsys.readouterr().out


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The step that the example `capture` writes."""
    folder = tmp_path_factory.mktemp("captured")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("capture")
    return folder / "step.onnx"


@pytest.mark.parametrize("name", marked(WITH_A_STEP, *needs_torch))
def test_example_trains_with_the_captured_step(
    name: str, captured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(captured, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert WITH_A_STEP[name](run(name))
    printed, logged = capfd.readouterr()
    assert printed
    assert "False" not in printed
    assert "[W:onnxruntime" not in logged


@pytest.mark.parametrize("language", marked(SUFFIXES, pytest.mark.full, *needs_torch))
def test_code_of_the_page_on_cpp(language: str, captured: Path, tmp_path: Path) -> None:
    """In C and Rust it is linked with the C functions in a shared library."""
    (code,) = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / "cpp.md").read_text(encoding="utf-8"), re.DOTALL)
    source, program = tmp_path / f"train.{SUFFIXES[language]}", tmp_path / "train"
    source.write_text(code)
    headers = f"-I{onnx_ops.include_directory()}"
    commands = {
        "c": ["cc", "-std=c99", "-Wall", "-Werror", headers, str(source), "-L.", "-ltrainer"],
        "rust": ["rustc", "--edition", "2021", str(source), "-L", ".", "-l", "dylib=trainer"],
    }
    try:
        if language == "cpp":
            program = cpp_trainer.program(source)
        else:
            (tmp_path / "libtrainer.so").symlink_to(cpp_trainer.library()._name)
    except MissingError as missing:
        pytest.skip(str(missing))
    if command := commands.get(language):
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        subprocess.run([*command, "-o", str(program)], cwd=tmp_path, check=True)
    shutil.copy(captured, tmp_path)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    losses = [float(loss) for loss in re.findall(r"loss (.*)", done.stdout)]
    assert len(losses) >= 5, done.stderr
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.full
@pytest.mark.skipif(not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None, reason="needs onnx-ops[mpi]")
@pytest.mark.parametrize("name", marked({"workers": None}, *needs_torch))
def test_example_trains_in_processes(name: str, captured: Path, tmp_path: Path) -> None:
    shutil.copy(captured, tmp_path)
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "onnx_ops.mpi", EXAMPLES / f"{name}.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    found = re.fullmatch(r"loss (.+) with 2 processes\n", done.stdout)
    assert found, done.stderr
    assert float(found[1]) < 0.3


def test_every_example_is_run() -> None:
    tested = WITHOUT_TORCH.keys() | WITH_TORCH.keys() | WITH_A_STEP.keys() | {"capture", "workers"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__"} == tested
    listed = (EXAMPLES / "__init__.py").read_text()
    assert not {name for name in tested if not re.search(rf"\b{name}\b", listed)}
