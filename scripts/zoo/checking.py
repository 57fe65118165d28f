"""What is checked of one model, in a process of its own: `python -m scripts.zoo.checking KEY RESULT.json`.

The results are written after each check, so that those before a crash or the time limit are kept.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

import onnx_ops
import onnx_ops.torch
from onnx_ops.core.step_format import NEXT, optimizer_name
from scripts import measuring
from scripts.zoo import torchvision_operators
from scripts.zoo.comparing import FLOOR, Arrays, allowed, error
from scripts.zoo.eager import BUFFER, Batch, Training, batch_of, cast, feeds, optimizer, references
from scripts.zoo.entries import SAMPLES, Entry
from scripts.zoo.models import ENTRIES
from scripts.zoo.results import CHECKS, EAGER, OK, OK_IN_FLOAT64, Result

STEPS = 10
IN_FLOAT64 = ("static", "second_state", "ten_steps", "portable")
"""Checks that are repeated in float64 where rounding makes too much of a difference."""
DISTURBANCE = 0.05
"""Relative change of the parameters of the second state."""
PORTABLE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("onnx_ops", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import numpy as np, onnxruntime as ort
step, batch, results = sys.argv[1:]
options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 3, 1
session = ort.InferenceSession(step, options)
names = [output.name for output in session.get_outputs()]
np.savez(results, **dict(zip(names, session.run(names, dict(np.load(batch))))))
"""


class WrongResultError(Exception):
    """A step whose results are not those of PyTorch."""


class Checks:
    """The checks of an entry.

    Args:
        entry: the model.
        result: is filled.
        folder: for files.
        write: is called after each check.
        dtype: of the model that is captured.
    """

    def __init__(
        self,
        entry: Entry,
        result: Result,
        folder: Path,
        write: Callable[[], None],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.entry, self.result, self._folder, self._write, self._dtype = entry, result, folder, write, dtype
        self.case = Training(entry, dtype).case
        self.example = self._batch(SAMPLES, seed=0)
        self._wide = torch.float64
        self.result.parameters = sum(parameter.numel() for parameter in self.case.model.parameters())

    def run(self) -> None:
        """Make all checks that those before them allow."""
        self._check(EAGER)
        if not self._passed(EAGER):
            return
        for check in CHECKS:
            if check in ("static", "dynamic") or self._passed("dynamic"):
                self._check(check)

    def eager(self) -> None:
        """PyTorch itself makes two steps with finite results, the same ones twice."""
        found = []
        for _ in range(2):
            training = Training(self.entry)
            found.append([training.step(self._batch(SAMPLES, seed)) for seed in range(2)])
        for one, other in zip(*found, strict=True):
            if not np.isfinite(one["loss"]):
                raise WrongResultError(f"the loss is {one['loss']}")
            self._compare(EAGER, one, other, FLOOR)
        try:
            Training(self.entry, torch.float64).step(self.example)
        except (RuntimeError, NotImplementedError):  # an operator, or the code of the model, requires float32
            self._wide = torch.float32

    def static(self) -> None:
        path = self._folder / "static.onnx"
        self._captured(inference=False).save(path)
        self._other_state("static", path, SAMPLES)

    def dynamic(self) -> None:
        start, processor = time.perf_counter(), time.process_time()
        captured = self._captured(dynamic_shapes=self.case.dynamic_shapes(), inference=self.case.inference)
        self.result.capture_seconds = time.perf_counter() - start, time.process_time() - processor
        self.result.nodes = len(captured.model.graph.node)
        captured.save(self._step)
        self.result.file_bytes = self._step.stat().st_size

    def _captured(self, **options: Any) -> onnx_ops.torch.Capture:
        """A capture; one that follows the example's branches if code branches on data."""
        case = self.case
        while True:
            try:
                return onnx_ops.torch.training_step(
                    case.model,
                    case.loss,
                    self.example,
                    optimizer(case),
                    specialize=self.result.specialized,
                    **options,
                )
            except onnx_ops.torch.CaptureError as refusal:
                if self.result.specialized or "specialize=True" not in str(refusal):
                    raise
                self.result.specialized = True

    def second_state(self) -> None:
        """A step from other parameters, on a batch of another size."""
        self._other_state("second_state", self._step, SAMPLES + 1)

    def ten_steps(self) -> None:
        """Steps on batches of changing sizes: the losses, and the state that they lead to."""
        trainer = _trainer(self._step)
        trainings = references(self.entry, self._wide)
        losses: dict[str, list[np.ndarray]] = {name: [] for name in ("step", *trainings)}
        ends = {}
        for step in range(STEPS):
            batch = self._batch(SAMPLES + step % 3 - 1, seed=step)
            losses["step"].append(trainer.step(**feeds(self.case, batch))["loss"])
            for name, training in trainings.items():
                results = training.step(batch)
                losses[name].append(results["loss"])
                ends[name] = results
        ends["step"] = _state(trainer)
        for name, found in losses.items():
            ends[name]["loss"] = np.stack(found)
        self._compare("ten_steps", ends.pop("step"), ends["exact"], self._allowed(**ends))

    def portable(self) -> None:
        """The first step in onnxruntime, in a process without onnx_ops: function bodies from the file."""
        batch, path = self._folder / "batch.npz", self._folder / "results.npz"
        np.savez(batch, allow_pickle=False, **feeds(self.case, self.example))
        command = [sys.executable, "-c", PORTABLE, str(self._step), str(batch), str(path)]
        run = subprocess.run(command, capture_output=True, text=True, cwd=self._folder)
        if run.returncode:
            raise WrongResultError(run.stderr.strip().splitlines()[-1] if run.stderr else f"status {run.returncode}")
        with np.load(path) as results:
            got = {name.removeprefix(NEXT): results[name] for name in results.files}
        found = {name: training.step(self.example) for name, training in references(self.entry, self._wide).items()}
        changed = {name: array for name, array in found["exact"].items() if name in got}
        self._compare("portable", got, changed, self._allowed(**found))

    def export(self) -> None:
        """The exported model, after a step, next to PyTorch's in evaluation mode."""
        trainer = _trainer(self._step)
        if not trainer.has_inference_graph:  # the loss calls other methods of the model than its forward
            return
        path = self._folder / "model.onnx"
        training, exact = Training(self.entry), Training(self.entry, self._wide)
        trainer.step(**feeds(self.case, self.example))
        trainer.export(path)
        state = trainer.state_dict()
        for each in (training, exact):
            onnx_ops.torch.load_into_torch(state, each.model)
        batch = self._batch(SAMPLES + 1, seed=3)
        arguments, wanted = training.inference(batch)
        _, precise = exact.inference(batch)
        session = ort.InferenceSession(path, measuring.quiet_options(1))
        got = session.run(None, {value.name: arguments[value.name] for value in session.get_inputs()})
        if len(got) < len(wanted):  # the graph has no losses that the model computes from labels
            wanted, precise = ([array for array in each if np.ndim(array)] for each in (wanted, precise))
        if len(got) != len(wanted):
            raise WrongResultError(f"{len(got)} outputs, expected {len(wanted)}")
        results = [{str(i): np.asarray(array) for i, array in enumerate(each)} for each in (got, wanted, precise)]
        self._compare("export", results[0], results[2], allowed(results[1], (), results[2]))

    # --- private ------------------------------------------------------------------------------------------------------

    @property
    def _step(self) -> Path:
        return self._folder / "step.onnx"

    def _passed(self, check: str) -> bool:
        return self.result.passed(check)

    def _batch(self, samples: int, seed: int) -> Batch:
        return cast(batch_of(self.case, samples, seed), self._dtype)

    def _check(self, name: str) -> None:
        try:
            getattr(self, name)()
            self.result.checks[name] = OK
        except WrongResultError as failure:
            self.result.checks[name] = described(failure)
            if name in IN_FLOAT64 and self._dtype != self._wide:
                self._check_in_float64(name)
        except Exception as failure:
            traceback.print_exc()
            self.result.checks[name] = described(failure)
        self._write()

    def _check_in_float64(self, name: str) -> None:
        """Repeat a check that rounding may have failed; with its own captures."""
        folder = self._folder / "float64"
        folder.mkdir(exist_ok=True)
        result = Result(self.entry.key, self.entry.package, self.entry.name, specialized=self.result.specialized)
        checks = Checks(self.entry, result, folder, self._write, self._wide)
        if name != "static" and not checks._step.exists():
            checks._check("dynamic")
        checks._check(name)
        if all(map(result.passed, result.checks)):
            self.result.checks[name] = OK_IN_FLOAT64

    def _other_state(self, check: str, path: Path, samples: int) -> None:
        """A step from other parameters on another batch: loss, gradients, and new parameters and buffers."""
        batch = self._batch(samples, seed=7)
        trainer, trainings = _trainer(path), references(self.entry, self._wide, DISTURBANCE)
        start = trainings["exact" if self._dtype == self._wide else "single"]
        trainer.load_state_dict(onnx_ops.torch.state_from_torch(trainer.state_dict(), start.model, start.optimizer))
        loss = trainer.step(**feeds(self.case, batch))["loss"]
        found = {name: training.step(batch) for name, training in trainings.items()}
        self._compare(check, _state(trainer) | {"loss": loss}, found["exact"], self._allowed(**found))

    def _allowed(self, single: Arrays, exact: Arrays, **near: Arrays) -> float:
        return FLOOR if self._dtype == torch.float64 else allowed(single, near.values(), exact)

    def _compare(self, check: str, got: Arrays, exact: Arrays, most: float) -> None:
        off, name = error(got, exact)
        self.result.errors[check] = off, most
        if not off <= most:
            raise WrongResultError(f"{name} is off by {off:.1e} of its largest entry, allowed is {most:.1e}")


def _trainer(path: Path) -> onnx_ops.Trainer:
    return onnx_ops.Trainer(path, measuring.quiet_options(1))


def _state(trainer: onnx_ops.Trainer) -> dict[str, np.ndarray]:
    """Parameters and buffers with PyTorch's names, and the momentum of the optimizer."""
    momentum = {name: array for name, array in trainer.state_dict().items() if name.startswith(optimizer_name(BUFFER))}
    return dict(trainer.weights()) | momentum


def described(failure: Exception) -> str:
    """The class and message of an error on one line, without the paths of this machine."""
    text = " ".join(str(failure).split())
    text = re.sub(r"(?:/[^\s:'\"]+)?/site-packages/", "", text)
    return f"{type(failure).__name__}: {text}"


def main() -> None:
    key, path = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")  # PyTorch and the packages warn of their own internals
    torch.set_num_threads(1)
    torchvision_operators.declare()
    entry = ENTRIES[key]
    result = Result(entry.key, entry.package, entry.name)
    start = time.perf_counter()

    def write() -> None:
        result.seconds = time.perf_counter() - start
        result.write(path)

    try:
        result.version = version(entry.package)
        with tempfile.TemporaryDirectory() as folder:
            Checks(entry, result, Path(folder), write).run()
    except Exception as failure:  # the package is not installed, or refuses the configuration
        traceback.print_exc()
        result.checks[EAGER] = described(failure)
        write()


if __name__ == "__main__":
    main()
