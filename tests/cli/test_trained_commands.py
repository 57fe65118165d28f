"""The commands `evaluate` and `export`: what they print and write, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import steps
from backends import assert_close, options
from command_line import USAGE, answer, error, run
from linear_oracle import Oracle

from onnx_ops import Trainer
from onnx_ops.core.step_format import average_name
from onnx_ops.training.step import Step
from onnx_ops.training.step_files import step_model

SAMPLES = 20


@pytest.fixture
def step(tmp_path: Path) -> Path:
    (tmp_path / "step.onnx").write_bytes(steps.step_with_evaluation().SerializeToString())
    return tmp_path / "step.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", **steps.batch(SAMPLES))
    return tmp_path / "data.npz"


@pytest.fixture
def checkpoint(step: Path, tmp_path: Path) -> Path:
    trainer = Trainer(step)
    trainer.step(**steps.batch())
    trainer.save(tmp_path / "checkpoint.safetensors")
    return tmp_path / "checkpoint.safetensors"


def loss(state: Any, samples: int = SAMPLES) -> float:
    return float(Oracle.of(state).step(**steps.batch(samples))["loss"])


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_evaluation(mode: str, step: Path, data: Path, checkpoint: Path, tmp_path: Path) -> None:
    """In batches of 8, 8 and 4; of several data, each by itself."""
    np.savez(tmp_path / "other.npz", **steps.batch(3))
    more = ("--batch-size", "8", "--mode", mode)
    said = answer("evaluate", step, data, tmp_path / "other.npz", "--checkpoint", checkpoint, *more)
    state, _ = steps.read_checkpoint(checkpoint)
    for result, samples in zip(said["results"], (SAMPLES, 3), strict=True):
        metrics = result.pop("metrics")
        assert list(metrics) == ["loss"]
        np.testing.assert_allclose(metrics["loss"], loss(state, samples), rtol=2e-6)  # float32, at most 60 terms
    assert said == {
        "checkpoint": str(checkpoint),
        "mode": mode,
        "results": [
            {"data": str(data), "samples": SAMPLES, "batch_size": 8, "left_out": 0},
            {"data": str(tmp_path / "other.npz"), "samples": 3, "batch_size": 8, "left_out": 0},
        ],
    }


def test_evaluation_as_text(step: Path, data: Path) -> None:
    """Without a checkpoint, of the start values."""
    first, line = run("evaluate", step, data).stdout.splitlines()
    assert first == f"Without --checkpoint the state is the start values of {step}."
    text, number = line.rsplit(" ", 1)
    assert text == f"{data}: 20 samples: loss"
    np.testing.assert_allclose(float(number), loss(steps.start()), rtol=1e-5)  # six digits


def test_evaluation_in_batches_of_a_fixed_size(data: Path, tmp_path: Path) -> None:
    (tmp_path / "fixed.onnx").write_bytes(steps.whole_step(samples=8).SerializeToString())
    _, text = run("evaluate", tmp_path / "fixed.onnx", data, "--mode", "train").stdout.splitlines()
    assert text.startswith(f"{data}: 16 samples (4 left out, too few for a batch): loss ")


def test_loss_that_is_no_number_is_told(step: Path, tmp_path: Path) -> None:
    arrays = steps.batch()
    arrays["x"][1] = np.nan
    np.savez(tmp_path / "data.npz", **arrays)
    assert answer("evaluate", step, tmp_path / "data.npz")["results"][0]["metrics"] == {"loss": "NaN"}


def test_what_is_not_evaluated(step: Path, data: Path, checkpoint: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz", **steps.batch(0))
    assert (
        error("evaluate", step, tmp_path / "empty.npz")
        == f"{tmp_path / 'empty.npz'} has 0 samples, expected at least 1"
    )
    np.savez(tmp_path / "wide.npz", **{name: array.astype(np.float64) for name, array in steps.batch().items()})
    problem = error("evaluate", step, tmp_path / "wide.npz")
    assert "'x' of" in problem
    assert "is float64 (4, 3), expected float32 (N, 3); " in problem
    run("evaluate", step, tmp_path / "wide.npz", "--cast")
    (tmp_path / "plain.onnx").write_bytes(steps.whole_step().SerializeToString())
    problem = error("evaluate", tmp_path / "plain.onnx", data)
    assert problem.startswith("the step has no evaluation graph: capture it with ")
    assert problem.endswith("or use mode='train' (--mode train) for the loss as the step computes it")
    assert error("evaluate", step, data, "--checkpoint", tmp_path / "none").endswith("none: No such file or directory")
    assert "is no safetensors file" in error("evaluate", step, data, "--checkpoint", step)
    assert error("evaluate", step, tmp_path / "none.npz").endswith("none.npz: No such file or directory")
    run("evaluate", step, code=USAGE)


def test_export(step: Path, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "trained.onnx"
    assert answer("export", step, checkpoint, out) == {
        "step": str(step),
        "checkpoint": str(checkpoint),
        "export": str(out),
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["N", 3]}],
        "outputs": [{"name": "probabilities", "dtype": "float32", "shape": ["N", 2]}],
    }
    whole, (state, _) = steps.batch(SAMPLES), steps.read_checkpoint(checkpoint)
    session = ort.InferenceSession(out, options(), providers=["CPUExecutionProvider"])
    (probabilities,) = session.run(None, {"x": whole["x"]})
    wanted = Oracle.of(state).predict(whole["x"]).astype(np.float32)
    assert_close(probabilities, wanted, rtol=4e-6, atol=4e-6)
    before = out.read_bytes()
    lines = run("export", step, checkpoint, out).stdout.splitlines()
    assert lines == [f"Wrote {out}.", "inputs", "  x  float32 (N, 3)", "outputs", "  probabilities  float32 (N, 2)"]
    assert out.read_bytes() == before


def test_export_of_averages(tmp_path: Path) -> None:
    """Of a step that has them; here they are buffers that it leaves as they are."""
    bare, start = steps.bare_step(), steps.start()
    record = Step.of(bare)
    for name in ("linear.weight", "linear.bias"):
        average = average_name(name)
        info = onnx.helper.make_tensor_value_info(average, onnx.TensorProto.FLOAT, start[name].shape)
        bare.graph.input.append(info)
        record = Step({**record.roles, average: record.roles["optimizer.momentum.linear.weight"]}, record.tied)
        start[average] = start[name] * 2
    record.write_into(bare)
    (tmp_path / "step.onnx").write_bytes(step_model(bare, start, steps.inference_graph()).SerializeToString())
    Trainer(tmp_path / "step.onnx").save(tmp_path / "checkpoint")
    run("export", tmp_path / "step.onnx", tmp_path / "checkpoint", tmp_path / "averaged.onnx", "--averaged")
    session = ort.InferenceSession(tmp_path / "averaged.onnx", options(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": steps.batch()["x"]})
    oracle = Oracle.of(steps.start())
    oracle.state["linear.weight"] = oracle.state["linear.weight"] * 2
    assert_close(found, oracle.predict(steps.batch()["x"]).astype(np.float32), rtol=4e-6, atol=4e-6)


def test_what_is_not_exported(step: Path, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "trained.onnx"
    for read in (step, checkpoint):
        before = read.read_bytes()
        assert (
            error("export", step, checkpoint, read)
            == f"{read} is to be written, but it is also read: name another file"
        )
        assert read.read_bytes() == before
    assert "the step has no averages of weights" in error("export", step, checkpoint, out, "--averaged")
    (tmp_path / "bare.onnx").write_bytes(steps.whole_step(inference=False).SerializeToString())
    assert error("export", tmp_path / "bare.onnx", checkpoint, out).startswith("the step has no inference graph: ")
    trainer = Trainer(step)
    trainer.save_weights(tmp_path / "model.safetensors")
    assert "a file of weights is loaded by load_weights" in error("export", step, tmp_path / "model.safetensors", out)
    assert not out.exists()
    assert error("export", step, checkpoint, tmp_path / "nowhere" / "trained.onnx").startswith("cannot write ")
