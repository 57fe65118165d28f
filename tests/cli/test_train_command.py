"""The command `train`: what it writes and prints, and that a training can be interrupted anywhere."""

from __future__ import annotations

import csv
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import steps
from backends import assert_close, assert_same_bits, kernel_options
from backends import options as session_options
from command_line import FAILED, USAGE, answer, in_terminal, run
from linear_oracle import Oracle

from onnx_ops import CosineAnnealingLR, StepError, Trainer, fit
from onnx_ops.core.step_format import RUN_METADATA
from onnx_ops.fitting.columns import Table
from onnx_ops.fitting.fit import Files, Options, complete, prepared
from onnx_ops.fitting.monitoring import Ending
from onnx_ops.fitting.run import Checkpoint, Run
from onnx_ops.fitting.samples import Samples
from onnx_ops.training.checkpoints import write_checkpoint
from onnx_ops.training.safetensors_format import write_safetensors
from onnx_ops.training.step_files import step_model

SAMPLES = 20


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "step.onnx"
    path.write_bytes(steps.whole_step().SerializeToString())
    return path


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """A step with an evaluation graph."""
    path = tmp_path / "evaluated.onnx"
    path.write_bytes(steps.step_with_evaluation().SerializeToString())
    return path


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    """Validation data of which some labels are wrong, so that the loss rises once more than that is learnt."""
    arrays = steps.batch(7, seed=9)
    arrays["y"][:3] = 1 - arrays["y"][:3]
    np.savez(tmp_path / "held_out.npz", **arrays)
    return tmp_path / "held_out.npz"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, **steps.batch(SAMPLES))
    return path


def train(step: Path, data: Path, out: Path, *more: str | Path, code: int = 0) -> dict[str, Any]:
    return answer("train", step, data, "--out", out, *more, code=code)


def content(path: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    arrays, metadata = steps.read_checkpoint(path)
    return {name: array.tobytes() for name, array in arrays.items()}, metadata


def test_training_follows_the_formulas(step: Path, data: Path, tmp_path: Path) -> None:
    out, trained = tmp_path / "out.safetensors", tmp_path / "trained.onnx"
    said = train(step, data, out, "--epochs", "3", "--batch-size", "8", "--seed", "4", "--export", trained)
    oracle, whole, losses = Oracle.of(steps.start()), steps.batch(SAMPLES), []
    for epoch in range(3):
        order, total = np.random.default_rng([4, epoch]).permutation(SAMPLES), 0.0
        for chosen in (order[:8], order[8:16], order[16:]):
            total += float(oracle.step(whole["x"][chosen], whole["y"][chosen])["loss"]) * len(chosen)
        losses.append(total / SAMPLES)
    # Nine steps in float32, sums of at most eight numbers of size 1.
    printed = said.pop("losses")
    np.testing.assert_allclose(printed, losses, rtol=2e-6)
    assert losses[2] < losses[0]
    assert [row.pop("loss") for row in said["history"]] == printed
    expected_rows = [{"epoch": epoch, "steps": 3 * epoch, "learning_rate": 0.5} for epoch in (1, 2, 3)]
    assert said.pop("history") == expected_rows
    assert said == {
        "checkpoint": str(out),
        "samples": SAMPLES,
        "batch_size": 8,
        "left_out": 0,
        "best_epoch": 3,
        "interrupted": False,
        "stopped": False,
        "best": None,
        "plot": None,
        "export": str(trained),
    }
    state, metadata = steps.read_checkpoint(out)
    for name, array in state.items():
        assert_close(array, oracle.state[name].astype(array.dtype), rtol=2e-6, atol=2e-6)
    assert list(metadata) == [RUN_METADATA]
    session = ort.InferenceSession(trained, session_options(), providers=["CPUExecutionProvider"])
    (probabilities,) = session.run(None, {"x": whole["x"]})
    assert_close(probabilities, oracle.predict(whole["x"]).astype(np.float32), rtol=4e-6, atol=4e-6)


def test_training_is_told(step: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    first = run("train", step, data, "--out", out, "--epochs", "2", "--batch-size", "8").stdout.splitlines()
    assert first[0] == "20 samples, 8 in a batch"
    assert [line.rsplit(" ", 1)[0] for line in first[1:3]] == ["epoch 1 of 2: loss", "epoch 2 of 2: loss"]
    assert first[3:] == [f"Wrote {out}."]
    second = run("train", step, data, "--out", out, "--epochs", "3", "--resume").stdout.splitlines()
    assert second[0] == "20 samples, 8 in a batch; 2 epochs and 0 steps are done"
    assert [line.rsplit(" ", 1)[0] for line in second[1:-1]] == ["epoch 3 of 3: loss"]


def test_batches_larger_than_the_data_and_the_best_epoch(step: Path, data: Path, tmp_path: Path) -> None:
    out, best = tmp_path / "out.safetensors", tmp_path / "best.safetensors"
    more = ("--batch-size", "500", "--lr", "0.001", "--epochs", "2")
    said = run("train", step, data, "--out", out, "--best", best, *more).stdout.splitlines()
    assert said[0] == "20 samples, all in a batch"
    loss = said[2].removeprefix("epoch 2 of 2: loss ")
    assert said[3:] == [f"Epoch 2 has the lowest loss, {loss}.", f"Wrote {out}, {best}."]


def test_step_of_fixed_size(data: Path, tmp_path: Path) -> None:
    (tmp_path / "step.onnx").write_bytes(steps.whole_step(samples=8, inference=False).SerializeToString())
    text = run("train", tmp_path / "step.onnx", data, "--out", tmp_path / "out").stdout
    assert text.startswith("20 samples, 8 in a batch; 4 of each epoch are dropped, too few for a step\n")
    np.savez(tmp_path / "held_out.npz", **steps.batch(17))
    more = ("--validation", tmp_path / "held_out.npz", "--validation-mode", "train")
    text = run("train", tmp_path / "step.onnx", data, "--out", tmp_path / "other", *more).stdout
    assert text.splitlines()[0].endswith(", too few for a step; 1 of the validation data are left out")


def test_learning_rate(step: Path, data: Path, tmp_path: Path) -> None:
    """Of 0: nothing is learnt. A resumed training has the same."""
    out = tmp_path / "out"
    train(step, data, out, "--learning-rate", "0")
    train(step, data, out, "--epochs", "2", "--resume")
    state, _ = steps.read_checkpoint(out)
    assert_same_bits(state["linear.weight"], steps.start()["linear.weight"])
    train(step, data, out, "--epochs", "3", "--resume", "--learning-rate", "0.25")
    state, _ = steps.read_checkpoint(out)
    assert state["learning_rate"] == 0.25
    assert (state["linear.weight"] != steps.start()["linear.weight"]).any()


# --- going on ---------------------------------------------------------------------------------------------------------


def test_going_on_gives_the_same_bits(step: Path, data: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = ("--batch-size", "8", "--seed", "3")
    said = train(step, data, whole, "--epochs", "5", *more)
    train(step, data, parts, "--epochs", "2", *more)
    train(step, data, parts, "--epochs", "4", "--resume")
    assert train(step, data, parts, "--epochs", "5", "--resume")["losses"] == said["losses"]
    assert content(parts) == content(whole)
    assert train(step, data, parts, "--epochs", "5", "--resume")["losses"] == said["losses"]  # nothing is left to do
    assert content(parts) == content(whole)


def test_going_on_with_the_settings_of_the_checkpoint(step: Path, data: Path, tmp_path: Path) -> None:
    """A training of which 1 epoch of 4 is done, resumed without an option."""
    whole, parts, schedule = tmp_path / "whole", tmp_path / "parts", CosineAnnealingLR()
    history = fit(
        Trainer(step), data, checkpoint=whole, epochs=4, batch_size=8, schedule=schedule, patience=3, progress=False
    )
    first = prepared(Trainer(step), data, None, Options(4, 8, schedule=schedule, patience=3))
    complete(first, Files(parts), interrupted=lambda: first.epoch == 1)
    assert run("train", step, data, "--out", parts, "--resume").stdout.count(" of 4: ") == 3
    assert content(parts) == content(whole)
    record = Checkpoint.read(parts).record
    assert record.epochs == history
    assert record.ending == Ending(4, 3, 0.0)


def test_going_on_with_a_checkpoint_that_does_not_say_when_to_end(step: Path, data: Path, tmp_path: Path) -> None:
    """One of version 0.2."""
    write_checkpoint(tmp_path / "out", steps.start(), {RUN_METADATA: record()})
    text = run("train", step, data, "--out", tmp_path / "out", "--batch-size", "8", "--resume").stdout
    assert "\nepoch 1 of 1: " in text


@pytest.mark.parametrize("stop", range(10))
def test_going_on_from_any_step_gives_the_same_bits(stop: int, tmp_path: Path) -> None:
    model, arrays = steps.whole_step(), steps.batch(SAMPLES)

    def start() -> Run:
        trainer = Trainer(model, kernel_options())
        return Run(trainer, Samples.of(Table("the data", arrays), trainer.batch_inputs, 8), seed=1)

    whole, first, second = start(), start(), start()
    for _ in range(stop):
        first.advance()
    first.save(tmp_path / "checkpoint")
    second.resume(Checkpoint.read(tmp_path / "checkpoint"))
    for _ in range(9):
        whole.advance()
    for _ in range(9 - stop):
        second.advance()
    assert second.losses == whole.losses
    assert (second.epoch, second.step) == (3, 0)
    for run_ in (whole, second):
        run_.save(tmp_path / "checkpoint")
        assert content(tmp_path / "checkpoint") == content(tmp_path / "checkpoint")
    states = [run_.trainer.state_dict() for run_ in (whole, second)]
    for name in states[0]:
        assert_same_bits(states[0][name], states[1][name])


def steps_done(checkpoint: Checkpoint) -> int:
    """Of epochs of five steps."""
    return 5 * len(checkpoint.record.losses) + checkpoint.record.step


SLOW = """
import sys, time
from onnx_ops.training.trainer_step import TrainerStep
step = TrainerStep.step
def slow(self, **batch):
    print("step", file=sys.stderr, flush=True)
    time.sleep(0.02)
    return step(self, **batch)
TrainerStep.step = slow
from onnx_ops.cli.app import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_interrupted_training_goes_on_with_the_same_bits(
    evaluated: Path, data: Path, held_out: Path, tmp_path: Path
) -> None:
    """In the middle of an epoch, by each of the signals; with validation, a schedule and logs.

    Options that are left out are those of the beginning.
    """
    settings = ["--batch-size", "4", "--schedule", "cosine", "--warm-up", "8", "--learning-rate", "0.7"]

    def options(folder: Path) -> list[str | Path]:
        folder.mkdir()
        files = ["--best", folder / "best", "--log", folder / "log.csv", "--log", folder / "log.jsonl"]
        return [*files, "--epochs", "6", "--validation", held_out]

    whole, parts = tmp_path / "whole" / "last", tmp_path / "parts" / "last"
    said = train(evaluated, data, whole, *options(whole.parent), *settings)
    resumed = [*options(parts.parent), "--resume"]
    for number, more in ((signal.SIGINT, settings), (signal.SIGTERM, [])):
        command = [sys.executable, "-c", SLOW, "train", evaluated, data, "--out", parts, *resumed, *more, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for _ in range(7):
                process.stderr.readline()
            process.send_signal(number)
            interrupted, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert json.loads(interrupted)["interrupted"]
    seen = steps_done(Checkpoint.read(parts))
    assert 14 <= seen < 30
    again = train(evaluated, data, parts, *resumed)
    assert again == said | {"checkpoint": str(parts), "best": str(parts.parent / "best")}
    for name in ("last", "best", "log.csv", "log.jsonl"):
        assert (parts.parent / name).read_bytes() == (whole.parent / name).read_bytes(), name


def test_a_killed_training_goes_on_from_the_last_epoch(step: Path, data: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = ("--epochs", "4", "--batch-size", "4")
    train(step, data, whole, *more)
    command = [sys.executable, "-c", SLOW, "train", step, data, "--out", parts, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):  # the heading and two epochs
            process.stdout.readline()
        process.kill()
    assert process.returncode
    train(step, data, parts, *more, "--resume")
    assert content(parts) == content(whole)


def test_resuming_without_a_checkpoint_starts_anew(step: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = run("train", step, data, "--out", out, "--resume").stdout.splitlines()
    assert said[0] == f"There is no {out} to resume from; a new training starts."


# --- options ----------------------------------------------------------------------------------------------------------


def cosine(fraction: float) -> float:
    """From 1 to 0."""
    return (1 + math.cos(math.pi * fraction)) / 2


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ("constant", [0.5, 0.5]),
        ("linear", [0.5 * 4 / 6, 0.5 / 6]),
        ("linear --factor 0.1", [0.5 * (1 - 0.9 * 2 / 6), 0.5 * (1 - 0.9 * 5 / 6)]),
        ("cosine", [0.5 * cosine(2 / 6), 0.5 * cosine(5 / 6)]),
        ("cosine --warm-up 2", [0.5, 0.5 * cosine(3 / 4)]),
        ("constant --warm-up 4", [0.5 * (1 + 2) / 5, 0.5]),
        ("one-cycle --learning-rate 0.5", [0.5 * (cosine(1.2 / 4.2) + 4e-6 * (1 - cosine(1.2 / 4.2))), 2e-6]),
        ("plateau --learning-rate 1e-6 --factor 0.5 --schedule-patience 0", [1e-6, 1e-6, 5e-7, 2.5e-7]),
    ],
    ids=str,
)
def test_schedules(options: str, rates: list[float], step: Path, data: Path, tmp_path: Path) -> None:
    """The learning rates of the last step of each epoch, of three steps, by torch's formulas."""
    step.write_bytes(steps.whole_step(changes_mean=False).SerializeToString())  # whose loss changes with the rate alone
    more = ("--epochs", str(len(rates)), "--batch-size", "8", "--schedule", *options.split())
    said = train(step, data, tmp_path / "out", *more)
    # The rates are float32 in the step.
    np.testing.assert_allclose([epoch["learning_rate"] for epoch in said["history"]], rates, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--factor 0.5", "--factor is that of the schedules linear and plateau"),
        ("--schedule cosine --factor 0.5", "--factor is that of the schedules linear and plateau"),
        ("--schedule linear --schedule-patience 3", "--schedule-patience is that of the schedule plateau"),
        ("--schedule plateau --warm-up 3", "--warm-up is not possible with the schedule plateau"),
        ("--schedule one-cycle", "the schedule one-cycle needs --learning-rate, its highest one"),
        ("--monitor right", "there is no metric 'right' to monitor, expected one of 'loss'"),
        ("--log log.txt", "the log is log.txt, expected a file .csv or .jsonl"),
        ("--log data.npz.csv --out data.npz.csv", "data.npz.csv is to be written, but it is also written with"),
    ],
)
def test_options_that_do_not_fit(
    options: str, problem: str, step: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(step, data, "--out", tmp_path / "out", *options.split()).startswith(problem)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "step.onnx"]


def test_best_epoch_early_stopping_and_logs(evaluated: Path, data: Path, held_out: Path, tmp_path: Path) -> None:
    best, last, trained = tmp_path / "best", tmp_path / "last", tmp_path / "trained.onnx"
    logs = tmp_path / "log.csv", tmp_path / "log.jsonl"
    options = ("--epochs", "50", "--patience", "3", "--validation", held_out, "--best", best, "--export", trained)
    said = train(evaluated, data, last, *options, "--log", logs[0], "--log", logs[1])
    losses = [epoch["validation.loss"] for epoch in said["history"]]
    lowest = int(np.argmin(losses))
    assert lowest > 0
    assert len(losses) == lowest + 4 < 50
    assert (said["best_epoch"], said["stopped"], said["interrupted"]) == (lowest + 1, True, False)
    assert [json.loads(line) for line in logs[1].read_text().splitlines()] == said["history"]
    with logs[0].open(newline="") as file:
        assert [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)] == said["history"]
    for checkpoint, loss in ((best, losses[lowest]), (last, losses[-1])):
        (found,) = answer("evaluate", evaluated, held_out, "--checkpoint", checkpoint)["results"]
        assert found["metrics"] == {"loss": loss}
    x = steps.batch(SAMPLES)["x"]
    session = ort.InferenceSession(trained, session_options(), providers=["CPUExecutionProvider"])
    state, _ = steps.read_checkpoint(best)
    wanted = Oracle.of(state).predict(x).astype(np.float32)
    assert_close(session.run(None, {"x": x})[0], wanted, rtol=4e-6, atol=4e-6)
    text = run("train", evaluated, data, "--out", last, *options, "--resume").stdout.splitlines()
    assert text[1:] == [
        "Stopped after 3 epochs without a better validation.loss.",
        f"Epoch {lowest + 1} has the lowest validation.loss, {losses[lowest]:.6g}.",
        f"Wrote {last}, {best}, {trained}.",
    ]
    # The worst epoch is the best one for the other end of the metric; an improvement by too little is none.
    other = train(evaluated, data, tmp_path / "other", *options[:4], "--mode", "max", "--validation", held_out)
    assert other["best_epoch"] == 1 + int(np.argmax([epoch["validation.loss"] for epoch in other["history"]]))
    other = train(evaluated, data, tmp_path / "another", *options[:4], "--min-delta", "10", "--monitor", "loss")
    assert len(other["history"]) == 4


def test_order_of_the_samples_and_several_batches_in_a_step(step: Path, data: Path, tmp_path: Path) -> None:
    oracle, whole = Oracle.of(steps.start()), steps.batch(SAMPLES)
    losses = [
        oracle.step(whole["x"][part], whole["y"][part])["loss"] for part in (slice(8), slice(8, 16), slice(16, 20))
    ]
    said = train(step, data, tmp_path / "one", "--batch-size", "8", "--no-shuffle")
    np.testing.assert_allclose(said["losses"], [np.average(losses, weights=[8, 8, 4])], rtol=2e-6)
    (tmp_path / "step.onnx").write_bytes(steps.whole_step(changes_mean=False).SerializeToString())
    said = train(step, data, tmp_path / "two", "--batch-size", "8")
    more = train(step, data, tmp_path / "three", "--batch-size", "4", "--accumulate", "2")
    np.testing.assert_allclose(more["losses"], said["losses"], rtol=2e-6)
    assert [epoch["steps"] for epoch in more["history"]] == [3]


def as_folder(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


def as_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    write_safetensors(path.with_suffix(".safetensors"), arrays, {})
    return path.with_suffix(".safetensors")


def as_parquet(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {name: list(array) for name, array in arrays.items()}
    parquet.write_table(pytest.importorskip("pyarrow").table(table), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


@pytest.mark.parametrize("form", [as_folder, as_safetensors, as_parquet])
def test_data_in_each_format(form: Callable[..., Path], step: Path, data: Path, tmp_path: Path) -> None:
    """Give the same; of float64, once they are converted."""
    arrays = steps.batch(SAMPLES)
    losses = train(step, data, tmp_path / "one")["losses"]
    assert train(step, form(tmp_path / "same", arrays), tmp_path / "two")["losses"] == losses
    wide = form(tmp_path / "wide", {name: array.astype(np.float64) for name, array in arrays.items()})
    problem = refusal(step, wide, "--out", tmp_path / "three")
    assert "is float64 (20, 3), expected float32 (N, 3); " in problem
    assert problem.endswith("or pass cast=True (--cast)")
    assert train(step, wide, tmp_path / "three", "--cast")["losses"] == losses


def test_data_without_samples(evaluated: Path, data: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.npz"
    np.savez(empty, **steps.batch(0))
    for arguments in ((empty,), (data, "--validation", empty)):
        problem = refusal(evaluated, *arguments, "--out", tmp_path / "out")
        assert problem == f"{empty} has 0 samples, expected at least 1"


def test_batch_size_above_the_number_of_samples(step: Path, data: Path, tmp_path: Path) -> None:
    """Makes one batch of them all."""
    said = train(step, data, tmp_path / "out", "--batch-size", "64")
    whole = steps.batch(SAMPLES)
    np.testing.assert_allclose(
        said["losses"], [Oracle.of(steps.start()).step(whole["x"], whole["y"])["loss"]], rtol=2e-6
    )
    (tmp_path / "fixed.onnx").write_bytes(steps.whole_step(samples=64).SerializeToString())
    problem = refusal(tmp_path / "fixed.onnx", data, "--out", tmp_path / "other")
    assert problem == f"{data} has 20 samples, expected at least 64"


# --- dry run ----------------------------------------------------------------------------------------------------------


def test_dry_run(evaluated: Path, data: Path, held_out: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    options = ("--validation", held_out, "--batch-size", "8", "--epochs", "4", "--dry-run")
    said = train(evaluated, data, tmp_path / "out", *options)
    assert said.pop("memory_bytes", None) or sys.platform != "linux"
    inputs = [
        {"name": "x", "dtype": "float32", "shape": ["N", 3]},
        {"name": "y", "dtype": "float32", "shape": ["N", 2]},
    ]
    has = [{"name": name, "dtype": "float32", "batch_axis": 0} for name in ("x", "y")]

    def described(samples: int) -> dict[str, Any]:
        arrays = [entry | {"shape": [samples, width]} for entry, width in zip(has, (3, 2), strict=True)]
        return {"samples": samples, "batch_size": 8, "left_out": 0, "arrays": arrays}

    assert said == {
        "step": str(evaluated),
        "parameters": 8,
        "trained_parameters": 8,
        "state_bytes": 4 * (6 + 2 + 3 + 6 + 1) + 8,  # weights, biases, mean, momentum and learning rate; seed
        "inputs": inputs,
        "data": described(SAMPLES),
        "validation": described(7),
        "steps": 3,
    }
    text = run("train", evaluated, data, "--out", tmp_path / "out", *options).stdout
    *lines, needed, last = text.splitlines()
    assert lines == [
        f"{evaluated} has",
        "  parameters  8",
        "  state       80 bytes, with that of the optimizer",
        "It expects of the data",
        "  x  float32 (N, 3)",
        "  y  float32 (N, 2)",
        "The data have",
        "  x        float32 (20, 3)",
        "  y        float32 (20, 2)",
        "  samples  20",
        "The validation data have",
        "  x        float32 (7, 3)",
        "  y        float32 (7, 2)",
        "  samples  7",
        "The training needs",
        "  steps   3 in an epoch, with batches of 8; 12 in all",
    ]
    assert re.fullmatch(r"  memory  (\S+ [MG]B, measured: the most .*|not known on this platform)", needed)
    assert last == "It was a dry run: nothing is kept of it."
    assert sorted(tmp_path.iterdir()) == before


def test_dry_run_without_data(evaluated: Path) -> None:
    said = answer("train", evaluated, "--dry-run")
    assert (said["parameters"], said["data"], said["steps"], said["memory_bytes"]) == (8, None, None, None)
    assert run("train", evaluated, "--dry-run").stdout.splitlines()[-1] == "  y  float32 (N, 2)"
    for arguments in ((), ("--out", "out")):
        assert "Missing argument 'DATA'" in run("train", evaluated, *arguments, code=USAGE).stderr
    assert "Missing option '--out'" in run("train", evaluated, "data.npz", code=USAGE).stderr


def test_dry_run_of_a_part_of_the_parameters(data: Path, tmp_path: Path) -> None:
    bare = steps.bare_step()
    kept = [value for value in bare.graph.output if value.name != "next.linear.bias"]
    del bare.graph.output[:]
    bare.graph.output.extend(kept)
    (tmp_path / "step.onnx").write_bytes(step_model(bare, steps.start()).SerializeToString())
    assert answer("train", tmp_path / "step.onnx", "--dry-run")["trained_parameters"] == 6
    assert "8, of which 6 are trained" in run("train", tmp_path / "step.onnx", "--dry-run").stdout


@pytest.mark.parametrize(
    "change", ["names", "dtype", "samples", "empty", "not a number", "checkpoint", "settings", "file"]
)
def test_dry_run_fails_as_the_training_would(change: str, step: Path, data: Path, tmp_path: Path) -> None:
    arrays, more = steps.batch(SAMPLES), ["--out", tmp_path / "out"]
    match change:
        case "names":
            arrays["z"] = arrays.pop("y")
        case "dtype":
            arrays["x"] = arrays["x"].astype(np.float64)
        case "samples":
            arrays["x"] = arrays["x"][1:]
        case "empty":
            arrays = steps.batch(0)
        case "not a number":
            arrays["x"][:] = np.nan
        case "checkpoint":
            (tmp_path / "out").touch()
        case "settings":
            train(step, data, tmp_path / "out")
            more += ["--resume", "--seed", "3"]
        case "file":
            more += ["--export", tmp_path / "nowhere" / "model.onnx"]
    np.savez(data, **arrays)
    assert refusal(step, data, *more, "--dry-run") == refusal(step, data, *more)


# --- refusals ---------------------------------------------------------------------------------------------------------


def refusal(*arguments: str | Path) -> str:
    return str(answer("train", *arguments, code=FAILED)["error"])


def test_checkpoint_that_is_there_is_not_lost(step: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(step, data, out)
    before = out.read_bytes()
    expected = f"{out} exists already: use resume=True (--resume) to continue, or another file to start a new training"
    assert refusal(step, data, "--out", out) == expected
    assert out.read_bytes() == before
    result = run("train", step, data, "--out", out, code=FAILED)
    assert (result.stdout, result.stderr) == ("", f"onnx-ops: {expected}\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks of folders")
def test_two_trainings_do_not_write_one_checkpoint(step: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", SLOW, "train", step, data, "--out", out, "--epochs", "100000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        for more in ((), ("--resume",)):
            assert refusal(step, data, "--out", out, *more) == f"{out}: another process is writing this file"
        train(step, data, tmp_path / "other")
        process.kill()
    train(step, data, out, "--resume", "--epochs", "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "other", "out", "step.onnx"]


def test_data_in_another_format(step: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2\n")
    problem = refusal(step, tmp_path / "x.csv", "--out", tmp_path / "out")
    assert problem.startswith(f"{tmp_path / 'x.csv'} is no .npz file, or not all of one; expected a file .npz, ")
    assert problem.endswith(" such as numpy.savez(path, x=..., y=...) writes")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--seed", "1"), "the seed is 1, expected 0, as in the training that is resumed"),
        (("--batch-size", "5"), "the batch size is 5, expected 20, as in the training that is resumed"),
    ],
)
def test_training_of_another_order_is_not_gone_on_with(
    more: tuple[str, str], problem: str, step: Path, data: Path, tmp_path: Path
) -> None:
    train(step, data, tmp_path / "out")
    assert refusal(step, data, "--out", tmp_path / "out", "--resume", *more) == problem


def test_training_with_other_samples_is_not_gone_on_with(step: Path, data: Path, tmp_path: Path) -> None:
    train(step, data, tmp_path / "out")
    np.savez(data, **steps.batch(SAMPLES + 1))
    problem = refusal(step, data, "--out", tmp_path / "out", "--resume")
    assert problem == "the number of samples is 21, expected 20, as in the training that is resumed"


def record(**changes: Any) -> str:
    """How far a training has come, that has not begun."""
    settings = {"step": "", "seed": 0, "shuffle": True, "samples": SAMPLES, "batch_size": 8, "accumulate": 1}
    settings |= {"schedule": None, "schedule_steps": None, "monitor": "loss", "mode": "min"}
    begun = {"settings": settings, "rates": [], "history": [], "step": 0, "totals": {}, "samples": 0}
    return json.dumps(begun | changes)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({}, "is no checkpoint of a training in epochs: its metadata have no 'onnx_ops.training'"),
        ({RUN_METADATA: "{"}, "does not say how far its training has come: "),
        ({RUN_METADATA: '{"seed": 0}'}, "does not say how far its training has come: "),
        ({RUN_METADATA: '{"step": 0, "samples": 0}'}, "does not say how far its training has come: KeyError"),
        ({RUN_METADATA: record(step="one")}, "does not say how far its training has come: ValueError"),
        ({RUN_METADATA: record(history=1)}, "does not say how far its training has come: TypeError"),
    ],
)
def test_checkpoint_of_no_training(metadata: dict[str, str], problem: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "out", steps.start(), metadata)
    with pytest.raises(StepError, match=problem):
        Checkpoint.read(tmp_path / "out")


def test_checkpoint_of_more_steps_than_an_epoch_has(step: Path, data: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "out", steps.start(), {RUN_METADATA: record(step=3)})
    problem = refusal(step, data, "--out", tmp_path / "out", "--resume")
    assert problem == "3 steps of an epoch are done, which has 3"


def test_loss_that_is_no_number_ends_the_training(step: Path, data: Path, tmp_path: Path) -> None:
    """The checkpoint is that of the epoch before."""
    out = tmp_path / "out"
    train(step, data, out)
    before = out.read_bytes()
    arrays = steps.batch(SAMPLES)
    arrays["x"][11] = np.nan
    np.savez(data, **arrays)
    problem = refusal(step, data, "--out", out, "--resume", "--epochs", "2")
    assert problem.startswith("step 1 of epoch 2: 'loss' is nan, and the state is as before the step")
    assert out.read_bytes() == before


def no_step(path: Path) -> None:
    path.write_bytes(steps.inference_graph().SerializeToString())


def no_loss(path: Path) -> None:
    model = steps.whole_step()
    outputs = list(model.graph.output)
    del model.graph.output[:]
    model.graph.output.extend([outputs[1], outputs[0], *outputs[2:]])
    path.write_bytes(model.SerializeToString())


def nothing_reported(path: Path) -> None:
    model = steps.whole_step()
    del model.graph.output[:2]
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (nothing_reported, "the step reports nothing, expected the loss"),
        (Path.unlink, "No such file or directory"),
        (no_step, "the model is no training step"),
        (no_loss, "the step reports 'logits' of shape (20, 2) first, expected the loss, one number"),
    ],
)
def test_what_is_no_step_is_refused(change: Callable[[Path], None], problem: str, step: Path, data: Path) -> None:
    change(step)
    assert problem in refusal(step, data, "--out", step.parent / "out")
    assert not (step.parent / "out").exists()


@pytest.mark.parametrize("option", ["--out", "--plot", "--export"])
def test_folder_that_is_not_there_is_noticed_before_the_training(option: str, step: Path, data: Path) -> None:
    out = step.parent / "out"
    more = () if option == "--out" else ("--out", out)
    problem = refusal(step, data, *more, option, step.parent / "nowhere" / "file")
    assert problem == f"there is no folder {step.parent / 'nowhere'}"
    assert not out.exists()


def test_step_without_inference_graph_is_not_trained_for_export(data: Path, tmp_path: Path) -> None:
    (tmp_path / "step.onnx").write_bytes(steps.whole_step(inference=False).SerializeToString())
    more = ("--out", tmp_path / "out", "--export", tmp_path / "trained.onnx")
    problem = refusal(tmp_path / "step.onnx", data, *more)
    assert problem == f"--export needs an inference graph, and there is none in {tmp_path / 'step.onnx'}"
    assert not (tmp_path / "out").exists()


def test_refusal_of_onnxruntime_is_told(tmp_path: Path) -> None:
    """Of an index that is out of range, which shows when a step is made."""
    model = steps.gather_step()
    (tmp_path / "step.onnx").write_bytes(model.SerializeToString())
    np.savez(tmp_path / "data.npz", i=np.array([5, 6]))
    assert "out of data bounds" in refusal(tmp_path / "step.onnx", tmp_path / "data.npz", "--out", tmp_path / "out")


# --- the curve --------------------------------------------------------------------------------------------------------


def test_curve_of_the_losses(
    evaluated: Path, data: Path, held_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one epoch, then of 40 more."""
    figures, curve, epochs = [], tmp_path / "losses.png", (1, 41)
    figure = pytest.importorskip("matplotlib.figure").Figure
    save = figure.savefig
    monkeypatch.setattr(figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    for count in epochs:
        more = ("--validation", held_out, "--epochs", str(count), "--plot", curve, "--resume")
        said = train(evaluated, data, tmp_path / "out", *more)
        assert said["plot"] == str(curve)
    for count, drawn in zip(epochs, figures, strict=True):
        (axes,) = drawn.axes
        texts = axes.get_title(), axes.get_xlabel(), axes.get_ylabel()
        assert texts == ("Training of evaluated.onnx", "epoch", "loss (mean over the samples)")
        losses, validations, best = axes.lines
        history = said["history"][:count]
        assert list(losses.get_xdata()) == list(range(1, count + 1))
        assert list(losses.get_ydata()) == [epoch["loss"] for epoch in history]
        assert list(validations.get_ydata()) == [epoch["validation.loss"] for epoch in history]
        lowest = 1 + int(np.argmin([epoch["validation.loss"] for epoch in history]))
        assert list(best.get_xdata()) == [lowest, lowest]
        shown = [text.get_text() for text in axes.get_legend().get_texts()]
        assert shown == ["training", "validation", f"best validation.loss: epoch {lowest}"]
        ticks = [tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
        assert ticks
        assert all(tick == int(tick) and 1 <= tick <= count for tick in ticks)
    header = curve.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(header[16:20], "big") == 960


def test_curve_without_matplotlib(step: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_ops.cli.training.can_plot", lambda: False)
    problem = refusal(step, data, "--out", tmp_path / "out", "--plot", tmp_path / "losses.png")
    assert problem == "--plot needs matplotlib, which is not installed: pip install 'onnx-ops[plot]'"
    assert not (tmp_path / "out").exists()


# --- in a terminal ----------------------------------------------------------------------------------------------------


def test_bar_with_the_loss(step: Path, data: Path, tmp_path: Path) -> None:
    shown = in_terminal(100, "train", step, data, "--out", tmp_path / "out", "--epochs", "2")
    assert "epoch 2 of 2: loss " in shown
    assert "2/2" in shown
    assert "Wrote " in shown
