"""Trains the networks of `networks.py` by each side, and writes README.md's table and docs/comparison.json:

    python -m scripts.comparison [--only SIDE ...]

Run it in an environment with onnx_ops[torch]. The sides that need other packages get environments of their own in
build/comparison, with the versions below, and PyTorch from the one that runs this. A side trains a network if the
losses of five steps of SGD are PyTorch's, up to a relative error of 1e-4. Every cell is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import site
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.comparison.networks import NETWORKS
from scripts.markdown import table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "comparison"
RESULTS = ROOT / "docs" / "comparison.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- comparison: python -m scripts.comparison -->", "<!-- end of comparison -->"
TOLERANCE = 1e-4
REFERENCE = "pytorch"

Cell = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """What is compared: its title in the table, and what its environment has; none is that of this program."""

    title: str
    packages: tuple[str, ...] = ()


SIDES = {
    "own": Side("onnx_ops"),
    REFERENCE: Side("PyTorch"),
    "onnxruntime_training": Side(
        "onnxruntime-training, its last version", ("onnxruntime-training==1.19.2", "cerberus", "flatbuffers", "h5py")
    ),
    "simplifier": Side("onnxsim, training loop", ("onnxsim==0.8.1", "onnxruntime==1.32.0")),
    "automatic_differentiation": Side("onnx-ad", ("onnx-ad==0.3.0", "onnxruntime==1.32.0")),
}
"""By the module of this folder that is its program."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=list(SIDES), default=list(SIDES), metavar="SIDE", help="after a run of all"
    )
    options = parser.parse_args()

    results: dict[str, dict[str, Cell]] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    for name in sorted(options.only, key=lambda name: name != REFERENCE):
        python = environment(name)
        cells = {network: trained(name, python, network) for network in NETWORKS}
        cells[WITHOUT_TORCH] = run(name, python, WITHOUT_TORCH, "perceptron")
        expected = cells if name == REFERENCE else results[REFERENCE]
        cells = {
            row: verdict(cell, expected["perceptron" if row == WITHOUT_TORCH else row]) for row, cell in cells.items()
        }
        cells["onnxruntime"] = loaded(FOLDER / name / "perceptron")
        cells["optimizers"] = run(name, python, "optimizers", "perceptron")
        results[name] = cells
        print(name, {row: text(row, cell) for row, cell in cells.items()}, flush=True)
        ordered = {name: results[name] for name in SIDES if name in results}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")
    readme = README.read_text("utf-8")
    before, after = readme.partition(BEGIN)[0], readme.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n\n{markdown(results)}\n\n{END}{after}", "utf-8")


def environment(name: str) -> Path:
    """The Python of a side."""
    if not SIDES[name].packages:
        return Path(sys.executable)
    folder = FOLDER / "environments" / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *SIDES[name].packages], check=True)
        (packages,) = folder.glob("lib/python3.*/site-packages")
        (packages / "packages_with_torch.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
        (folder / "ready").touch()
    return python


def trained(name: str, python: Path, network: str) -> Cell:
    """The losses of a network by a side, or its error."""
    folder = FOLDER / name / network
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if name != REFERENCE:
        shutil.copy(FOLDER / REFERENCE / network / "batches.npz", folder)
    prepared = run(name, python, "prepare", network)
    return prepared if "error" in prepared else run(name, python, "train", network)


def run(name: str, python: Path, action: str, network: str) -> Cell:
    """What the program of a side prints."""
    arguments = [f"scripts.comparison.{name}", "train" if action == WITHOUT_TORCH else action]
    arguments += [str(FOLDER / name / network), network]
    command = [str(python), *(["-c", BLOCKED] if action == WITHOUT_TORCH else ["-m"]), *arguments]
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | paths, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout.splitlines()[-1].replace(f"{ROOT}/", ""))
    except (IndexError, json.JSONDecodeError):
        message = done.stderr.strip().splitlines()[-1:]
        return {"error": " ".join([f"the process ended with status {done.returncode}", *message])}


WITHOUT_TORCH = "without_torch"
"""The action `train`, and its row, where PyTorch cannot be imported."""
BLOCKED = """
import runpy, sys
sys.modules["torch"] = None
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


def verdict(cell: Cell, expected: Cell) -> Cell:
    """The cell, with whether its losses are the expected ones."""
    losses, others = cell.get("losses"), expected["losses"]
    right = losses is not None and all(
        math.isclose(one, other, rel_tol=TOLERANCE) for one, other in zip(losses, others, strict=True)
    )
    return cell | {"works": right}


PLAIN = """
import sys
sys.modules.update(dict.fromkeys(["onnx_ops", "onnxsim", "onnx_ad", "torch"]))
import json, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
result = {"version": onnxruntime.__version__}
try:
    onnxruntime.InferenceSession(sys.argv[1], options)
except Exception as error:
    result["error"] = " ".join(str(error).split())[:300]
print(json.dumps(result))
"""


def loaded(folder: Path) -> Cell:
    """Whether onnxruntime alone, of the environment of this program, takes the graph with the gradients."""
    found = [path for path in (folder / "step.onnx", folder / "training_model.onnx") if path.exists()]
    if not found:
        return {"error": "there is no ONNX graph with gradients", "works": False}
    done = subprocess.run([sys.executable, "-c", PLAIN, found[0]], capture_output=True, text=True, check=True)
    cell = json.loads(done.stdout.replace(f"{ROOT}/", ""))
    return cell | {"works": "error" not in cell}


def text(feature: str, cell: Cell) -> str:
    """A cell of the table."""
    if feature == "optimizers":
        names = cell.get("optimizers", [])
        return ", ".join(names) if len(names) < 4 else str(len(names))
    return "yes" if cell["works"] else "wrong losses" if "losses" in cell else "no"


def markdown(results: dict[str, dict[str, Cell]]) -> str:
    """The table in Markdown."""
    names = [name for name in SIDES if name in results]
    titles = [f"{SIDES[name].title} {results[name]['perceptron']['version'].split('+')[0]}" for name in names]
    onnxruntime = results["own"]["onnxruntime"]["version"]
    rows = {feature: f"trains {network.title}" for feature, network in NETWORKS.items()}
    rows[WITHOUT_TORCH] = "trains where PyTorch is not installed"
    rows["onnxruntime"] = f"its graph runs in onnxruntime {onnxruntime} alone"
    rows["optimizers"] = "optimizers, by name or number"
    cells = [[title, *(text(row, results[name][row]) or "none" for name in names)] for row, title in rows.items()]
    return table(["", *titles], cells)


if __name__ == "__main__":
    main()
