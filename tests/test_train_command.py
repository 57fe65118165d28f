"""The command `train`: what it writes and prints, and that a training can be interrupted anywhere."""

from __future__ import annotations

import json
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
from backends import assert_close, assert_same_bits, kernel_options, options
from linear_oracle import Oracle
from test_cli import FAILED, answer, run

from onnx_ops import StepError, Trainer
from onnx_ops.core.step_format import RUN_METADATA
from onnx_ops.fitting.columns import Table
from onnx_ops.fitting.run import Checkpoint, Run
from onnx_ops.fitting.samples import Samples
from onnx_ops.training.checkpoints import write_checkpoint

SAMPLES = 20


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "step.onnx"
    path.write_bytes(steps.whole_step().SerializeToString())
    return path


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
    session = ort.InferenceSession(trained, options(), providers=["CPUExecutionProvider"])
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


def test_step_of_fixed_size(data: Path, tmp_path: Path) -> None:
    (tmp_path / "step.onnx").write_bytes(steps.whole_step(samples=8, inference=False).SerializeToString())
    text = run("train", tmp_path / "step.onnx", data, "--out", tmp_path / "out").stdout
    assert text.startswith("20 samples, 8 in a batch; 4 of each epoch are dropped, too few for a step\n")


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
def test_interrupted_training_goes_on_with_the_same_bits(step: Path, data: Path, tmp_path: Path) -> None:
    """In the middle of an epoch, by each of the signals."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = ("--epochs", "6", "--batch-size", "4")
    said = train(step, data, whole, *more)
    for number in (signal.SIGINT, signal.SIGTERM):
        command = [sys.executable, "-c", SLOW, "train", step, data, "--out", parts, *more, "--resume", "--json"]
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
    assert train(step, data, parts, *more, "--resume") == said | {"checkpoint": str(parts)}
    assert content(parts) == content(whole)


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
    train(step, data, out, "--resume")
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
    from test_trainer import gather_step

    model = gather_step()
    (tmp_path / "step.onnx").write_bytes(model.SerializeToString())
    np.savez(tmp_path / "data.npz", i=np.array([5, 6]))
    assert "out of data bounds" in refusal(tmp_path / "step.onnx", tmp_path / "data.npz", "--out", tmp_path / "out")


# --- the curve --------------------------------------------------------------------------------------------------------


def test_curve_of_the_losses(step: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curve = tmp_path / "losses.png"
    said = train(step, data, tmp_path / "out", "--epochs", "3", "--plot", curve)
    assert said["plot"] == str(curve)
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
    from test_cli import in_terminal

    shown = in_terminal(100, "train", step, data, "--out", tmp_path / "out", "--epochs", "2")
    assert "epoch 2 of 2: loss " in shown
    assert "2/2" in shown
    assert "Wrote " in shown
