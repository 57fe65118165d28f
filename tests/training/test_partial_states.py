"""States that are loaded and saved in part, and the names of adapters in the files of peft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
import steps
from backends import assert_same_bits, kernel_options
from linear_oracle import State

from onnx_ops import ModelFileError, StepError, Trainer, WorkerError
from onnx_ops.core.step_format import NEXT
from onnx_ops.training.adapters import adapter_names, peft_name
from onnx_ops.training.checkpoints import open_checkpoint
from onnx_ops.training.step_files import save_step
from scripts.trainings.threads import ThreadCommunicator, together

WEIGHT, BIAS, MOMENTUM = "linear.weight", "linear.bias", "optimizer.momentum.linear.weight"


def frozen_step(*frozen: str) -> onnx.ModelProto:
    """The step of `steps` without next values for some of the state."""
    model = steps.whole_step()
    kept = [value for value in model.graph.output if value.name.removeprefix(NEXT) not in frozen]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return model


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(frozen_step(WEIGHT, MOMENTUM), kernel_options())


def check_state(trainer: Trainer, wanted: State) -> None:
    state = trainer.state_dict()
    assert list(state) == list(wanted)
    for name, array in wanted.items():
        assert_same_bits(state[name], array)


# --- loading ----------------------------------------------------------------------------------------------------------


def test_a_whole_state_has_no_incompatible_keys(trainer: Trainer) -> None:
    assert trainer.load_state_dict(trainer.state_dict()) == ([], [])


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_part_of_the_state(trainer: Trainer, turns: int) -> None:
    """Parameters that the step changes and others, under a tied name too."""
    for seed in range(turns):
        trainer.step(**steps.batch(seed=seed))
    before = trainer.state_dict()
    given = {"head.weight": before[WEIGHT] + 1, BIAS: before[BIAS] - 1, "other": np.zeros(2), "more": np.zeros(3)}
    keys = trainer.load_state_dict(given, strict=False)
    assert keys.missing_keys == ["mean", MOMENTUM, "seed", "learning_rate"]
    assert keys.unexpected_keys == ["other", "more"]
    expected = before | {WEIGHT: given["head.weight"], BIAS: given[BIAS]}
    check_state(trainer, expected)

    other = Trainer(frozen_step(WEIGHT, MOMENTUM), kernel_options())
    other.load_state_dict(expected)
    assert_same_bits(trainer.step(**steps.batch())["loss"], other.step(**steps.batch())["loss"])


def test_a_lost_state_is_replaced_by_a_whole_one(trainer: Trainer) -> None:
    state = trainer.state_dict()
    trainer._state.lose("the state is lost")
    with pytest.raises(StepError, match="the state is lost"):
        trainer.load_state_dict({BIAS: state[BIAS]}, strict=False)
    with pytest.raises(StepError, match="the state is lost"):
        trainer.step(**steps.batch())
    trainer.load_state_dict(state)
    check_state(trainer, state)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({BIAS: np.zeros(3, np.float32)}, r"'linear.bias' is float32 \(3,\), expected float32 \(2,\)"),
        ({BIAS: np.zeros(2)}, r"'linear.bias' is float64 \(2,\), expected float32 \(2,\)"),
        ({"learning_rate": np.array(np.nan, np.float32)}, "'learning_rate': a learning rate is nan"),
        ({WEIGHT: np.zeros((3, 2), np.float32), "head.weight": np.ones((3, 2), np.float32)}, "'head.weight' differs"),
    ],
)
def test_parts_that_do_not_fit_are_refused(trainer: Trainer, given: State, message: str) -> None:
    before = trainer.state_dict()
    good = {"mean": before["mean"] + 1}
    with pytest.raises(StepError, match=message):
        trainer.load_state_dict(good | given, strict=False)
    check_state(trainer, before)


def test_workers_load_the_same_part() -> None:
    model = steps.whole_step()

    def work(communicator: ThreadCommunicator, differs: bool) -> str:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        bias = np.full(2, communicator.rank if differs else 1, np.float32)
        trainer.load_state_dict({BIAS: bias}, strict=False)
        try:
            trainer.step(**steps.batch())
        except WorkerError as error:
            return str(error)
        return ""

    assert together(2, lambda communicator: work(communicator, False)) == ["", ""]
    for error in together(2, lambda communicator: work(communicator, True)):
        assert "worker 1 differs from worker 0 in the state that was loaded" in error


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_without_what_is_frozen(trainer: Trainer, tmp_path: Path) -> None:
    path = tmp_path / "trained.safetensors"
    trainer.step(**steps.batch())
    trainer.save(path, {"epoch": "3"}, frozen=False)
    state, _ = open_checkpoint(path)
    assert set(state) == {BIAS, "mean", MOMENTUM, "seed", "learning_rate"}

    other = Trainer(frozen_step(WEIGHT, MOMENTUM), kernel_options())
    with pytest.raises(StepError, match=r"the state lacks 'linear.weight' \(float32 \(3, 2\)\)$"):
        other.load(path)
    assert other.load(path, strict=False) == {"epoch": "3"}
    check_state(other, trainer.state_dict())


def test_a_file_of_other_names_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"model.linear.bias": np.zeros(2, np.float32)}, path)
    with pytest.raises(StepError, match=r"it has 'model.linear.bias' and 0 others, expected names such as 'lin"):
        trainer.load(path, strict=False)


# --- frozen weights in a file of their own ----------------------------------------------------------------------------


def save_with_base(path: Path, frozen: str = "base.safetensors", **changes: np.ndarray) -> None:
    """Save the step, whose weight is frozen, with other start values."""
    model = frozen_step(WEIGHT, MOMENTUM)
    save_step(model, steps.start() | changes, None, path, external=False, frozen=frozen)


def test_steps_share_what_is_frozen(tmp_path: Path) -> None:
    bias = np.array([1, 2], np.float32)
    save_with_base(tmp_path / "one.onnx")
    written = (tmp_path / "base.safetensors").stat().st_mtime_ns
    save_with_base(tmp_path / "two.onnx", **{BIAS: bias})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.safetensors", "one.onnx", "two.onnx"]
    assert (tmp_path / "base.safetensors").stat().st_mtime_ns == written
    arrays = safetensors.numpy.load_file(tmp_path / "base.safetensors")
    assert list(arrays) == [WEIGHT]
    assert_same_bits(arrays[WEIGHT], steps.start()[WEIGHT])

    for name, changes in (("one.onnx", {}), ("two.onnx", {BIAS: bias})):
        trainer = Trainer(tmp_path / name, kernel_options())
        check_state(trainer, steps.start() | changes)
        other = Trainer(frozen_step(WEIGHT, MOMENTUM), kernel_options())
        other.load_state_dict(steps.start() | changes)
        for one in (trainer, other):
            one.step(**steps.batch())
        check_state(trainer, other.state_dict())
        onnx.checker.check_model(tmp_path / name)


def test_a_file_of_another_program_can_be_shared(tmp_path: Path) -> None:
    arrays = {"more": np.zeros(3), WEIGHT: steps.start()[WEIGHT]}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    save_with_base(tmp_path / "one.onnx", "model.safetensors")
    check_state(Trainer(tmp_path / "one.onnx", kernel_options()), steps.start())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "base.safetensors lacks 'linear.weight', expected the weights of the step; name another file"),
        ({WEIGHT: np.zeros((3, 2), np.float32)}, "base.safetensors has another 'linear.weight', expected"),
        ({WEIGHT: np.zeros((2, 3), np.float32)}, "base.safetensors has another 'linear.weight', expected"),
    ],
)
def test_other_weights_are_not_shared(arrays: State, message: str, tmp_path: Path) -> None:
    safetensors.numpy.save_file(arrays, tmp_path / "base.safetensors")
    with pytest.raises(StepError, match=message):
        save_with_base(tmp_path / "one.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["base.safetensors"]


def test_a_step_refuses_a_base_that_was_replaced(tmp_path: Path) -> None:
    save_with_base(tmp_path / "one.onnx")
    (tmp_path / "base.safetensors").unlink()
    with pytest.raises((OSError, ModelFileError), match=r"base\.safetensors"):
        Trainer(tmp_path / "one.onnx", kernel_options())
    save_with_base(tmp_path / "two.onnx", **{WEIGHT: np.ones((3, 2), np.float32)})
    with pytest.raises(StepError, match=r"base.safetensors does not belong to .*one\.onnx"):
        Trainer(tmp_path / "one.onnx", kernel_options())


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("step.onnx", {"external": True}, "cannot both be in further files"),
        ("step.onnx", {"frozen": "folder/base.safetensors"}, "expected the name of a file in the folder of"),
        ("step.onnxtxt", {}, "a step in a text format has its state in one file"),
    ],
)
def test_bases_that_cannot_be_written(name: str, given: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = {"external": False, "frozen": "base.safetensors"} | given
    with pytest.raises(ModelFileError, match=message):
        save_step(frozen_step(WEIGHT, MOMENTUM), steps.start(), None, tmp_path / name, **given)
    with pytest.raises(ModelFileError, match="the step changes all of its parameters and buffers"):
        save_step(steps.bare_step(), steps.start(), None, tmp_path / "s.onnx", external=False, frozen="b.safetensors")
    assert not list(tmp_path.iterdir())


# --- adapters ---------------------------------------------------------------------------------------------------------

# What peft 0.21.2 writes for LoraConfig with several options.
NAMES = {
    "base_model.model.layers.0.q.lora_A.default.weight": "base_model.model.layers.0.q.lora_A.weight",
    "base_model.model.layers.0.q.lora_magnitude_vector.default.weight": (
        "base_model.model.layers.0.q.lora_magnitude_vector"
    ),
    "base_model.model.layers.0.q.base_layer.bias": "base_model.model.layers.0.q.base_layer.bias",
    "base_model.model.emb.lora_embedding_A.default": "base_model.model.emb.lora_embedding_A",
    "base_model.model.score.modules_to_save.default.weight": "base_model.model.score.weight",
    "base_model.model.default.q.lora_B.default.weight": "base_model.model.default.q.lora_B.weight",
}


def test_the_names_of_peft() -> None:
    assert {name: peft_name(name, "default") for name in NAMES} == NAMES
    assert peft_name("q.lora_A.other.weight", "default") == "q.lora_A.other.weight"
    assert peft_name("q.lora_A.other.weight", "other") == "q.lora_A.weight"
    trained = ["base_model.model.layers.0.q.base_layer.bias"]
    assert adapter_names([*NAMES, "base_model.model.score.original_module.weight"], trained, "default") == {
        filed: name for name, filed in NAMES.items()
    }


def test_names_that_files_cannot_distinguish_are_refused() -> None:
    names = ["q.lora_A.weight", "q.lora_A.default.weight"]
    with pytest.raises(StepError, match=r"'q.lora_A.weight' and 'q.lora_A.default.weight' are both 'q"):
        adapter_names(names, names, "default")


def test_trained_parameters_under_their_own_names(trainer: Trainer, tmp_path: Path) -> None:
    """A step without an adapter of peft."""
    path = tmp_path / "adapter.safetensors"
    trainer.step(**steps.batch())
    trainer.save_adapter(path)
    arrays = safetensors.numpy.load_file(path)
    assert list(arrays) == [BIAS]
    assert_same_bits(arrays[BIAS], trainer.state_dict()[BIAS])

    other = Trainer(frozen_step(WEIGHT, MOMENTUM), kernel_options())
    before = other.state_dict()
    other.load_adapter(path)
    check_state(other, before | arrays)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"lacks 'linear.bias' \(float32 \(2,\)\)$"),
        ({BIAS: np.zeros(2, np.float32), "x": np.zeros(2)}, r"has 'x', where the step wants 'linear.bias'$"),
        ({BIAS: np.zeros(3, np.float32)}, r"'linear.bias' is float32 \(3,\), expected float32 \(2,\)"),
    ],
)
def test_other_adapters_are_refused(trainer: Trainer, arrays: State, message: str, tmp_path: Path) -> None:
    before = trainer.state_dict()
    safetensors.numpy.save_file(arrays, tmp_path / "adapter.safetensors")
    with pytest.raises(StepError, match=message):
        trainer.load_adapter(tmp_path / "adapter.safetensors")
    check_state(trainer, before)
