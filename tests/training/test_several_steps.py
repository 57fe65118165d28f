"""Several steps that train one state, evaluation and prediction on the current state: against the formulas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import steps
from backends import assert_close, assert_same_bits, kernel_options
from linear_oracle import Oracle, State

from onnx_ops import StateLostError, StepError, Trainer, WorkerError
from scripts.trainings.threads import ThreadCommunicator, together

SHARED = ("linear.weight", "linear.bias", "mean")
OWN = ("optimizer.momentum.linear.weight", "seed", "learning_rate")
TOLERANCE = 2e-6
"""Twenty steps with sums of at most eight products each; weights and losses are of size 1."""
ORDER = ("moving", "fixed", "fixed", "moving", "fixed") * 4


def two_steps() -> dict[str, onnx.ModelProto]:
    """Two steps of one classifier, of which one updates the mean of the inputs; each has a momentum of its own."""
    found = {"moving": steps.whole_step(), "fixed": steps.whole_step(changes_mean=False)}
    for tensor in found["fixed"].graph.initializer:
        if tensor.name == "learning_rate":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(0.25, np.float32), tensor.name))
    return found


class Oracles:
    """Two runs of the formulas that share parameters and the mean."""

    def __init__(self) -> None:
        self.of = {name: Oracle.of(steps.start()) for name in ("moving", "fixed")}
        self.of["fixed"].state["learning_rate"] = np.array(0.25)

    def step(self, name: str, batch: State) -> dict[str, np.ndarray]:
        oracle = self.of[name]
        mean = oracle.state["mean"]
        reported = oracle.step(**batch)
        if name == "fixed":
            oracle.state["mean"] = mean
        for other in self.of.values():
            other.state |= {shared: oracle.state[shared] for shared in SHARED}
        return reported

    def state(self) -> State:
        found = {name: self.of["moving"].state[name] for name in SHARED}
        return found | {f"{name}.{own}": oracle.state[own] for name, oracle in self.of.items() for own in OWN}


def check_state(got: Mapping[str, np.ndarray], oracles: Oracles) -> None:
    expected = oracles.state()
    assert set(got) == set(expected)
    for name, array in got.items():
        assert_close(array, expected[name].astype(array.dtype), rtol=TOLERANCE, atol=TOLERANCE, what=name)


@pytest.mark.parametrize("keep_previous", [False, True])
def test_steps_in_turns_follow_the_formulas(keep_previous: bool) -> None:
    trainer, oracles = Trainer(two_steps(), kernel_options(), keep_previous=keep_previous), Oracles()
    assert trainer.steps == ("moving", "fixed")
    for number, name in enumerate(ORDER):
        batch = steps.batch(1 + number % 8, seed=number)
        got, expected = trainer[name].step(**batch), oracles.step(name, batch)
        assert_close(got["loss"], np.float32(expected["loss"]), rtol=TOLERANCE, atol=TOLERANCE)
    check_state(trainer.state_dict(), oracles)
    own = trainer["fixed"].state_dict()
    assert list(own) == list(steps.start())
    assert_same_bits(own["seed"], trainer.state_dict()["fixed.seed"])


def test_one_set_of_tensors() -> None:
    """Shared tensors are in memory once, and stay where they are."""
    trainer = Trainer(two_steps(), kernel_options())
    places = {name: tensor.array.ctypes.data for name, tensor in trainer._state.now.items()}
    for name in ORDER:
        trainer[name].step(**steps.batch(4))
    assert {name: tensor.array.ctypes.data for name, tensor in trainer._state.now.items()} == places
    for name in trainer.steps:
        assert all(trainer[name]._state.now[shared].array.ctypes.data == places[shared] for shared in SHARED)


def test_learning_rates_are_of_each_step() -> None:
    trainer, oracles = Trainer(two_steps(), kernel_options()), Oracles()
    assert (trainer["moving"].learning_rate, trainer["fixed"].learning_rate) == (0.5, 0.25)
    trainer["fixed"].learning_rate = 0.125
    oracles.of["fixed"].state["learning_rate"] = np.array(0.125)
    for number, name in enumerate(ORDER[:4]):
        trainer[name].step(**steps.batch(seed=number))
        oracles.step(name, steps.batch(seed=number))
    check_state(trainer.state_dict(), oracles)


def test_accumulated_gradients_are_of_one_step() -> None:
    """A step between two batches of another one's update; the loss is a mean over samples."""
    trainer, oracles = Trainer(two_steps(), kernel_options()), Oracles()
    whole = steps.batch(6, seed=1)
    trainer["fixed"].accumulate(**{name: array[:4] for name, array in whole.items()})
    trainer["fixed"].step(**{name: array[4:] for name, array in whole.items()})
    oracles.step("fixed", whole)
    check_state(trainer.state_dict(), oracles)
    trainer["fixed"].accumulate(**whole)
    trainer["moving"].step(**whole)
    oracles.step("moving", whole)
    check_state(trainer.state_dict(), oracles)
    before = trainer.state_dict()
    trainer.load_state_dict(before)
    trainer["fixed"].step(**whole)
    oracles.step("fixed", whole)
    check_state(trainer.state_dict(), oracles)


@pytest.mark.parametrize("keep_previous", [False, True])
def test_a_resumed_training_has_the_same_bits(tmp_path: Path, keep_previous: bool) -> None:
    """From step files and one checkpoint."""
    for name, model in two_steps().items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    files = {name: tmp_path / f"{name}.onnx" for name in ("moving", "fixed")}

    def trained(trainer: Trainer, first: int, last: int) -> Trainer:
        for number in range(first, last):
            trainer[ORDER[number]].step(**steps.batch(1 + number % 8, seed=number))
        return trainer

    one = trained(Trainer(files, kernel_options(), keep_previous=keep_previous), 0, 7)
    one["fixed"].learning_rate = 0.1
    one.save(tmp_path / "checkpoint.safetensors", {"epoch": "3"})
    trained(one, 7, 12)
    again = Trainer(files, kernel_options(), keep_previous=keep_previous)
    assert again.load(tmp_path / "checkpoint.safetensors") == {"epoch": "3"}
    trained(again, 7, 12)
    found = again.state_dict()
    for name, array in one.state_dict().items():
        assert_same_bits(array, found[name])
    assert set(one.weights()) == {*SHARED, "head.weight"}


def test_a_state_that_one_step_has_lost_is_lost_for_all() -> None:
    trainer = Trainer(two_steps(), kernel_options())
    trainer._state.lose("the state is lost")
    for name in trainer.steps:
        with pytest.raises(StateLostError, match="the state is lost"):
            trainer[name].step(**steps.batch())


def test_what_is_refused() -> None:
    batch = steps.batch()
    trainer = Trainer(two_steps(), kernel_options())
    for use in (lambda: trainer.step(**batch), lambda: trainer.learning_rate, lambda: trainer.predict(**batch)):
        with pytest.raises(StepError, match=r"has the steps 'moving', 'fixed', expected .* trainer\['moving'\].step"):
            use()
    with pytest.raises(StepError, match="no step 'other': the trainer has 'moving', 'fixed'"):
        trainer["other"]
    with pytest.raises(StepError, match="no step 'moving': the trainer has one step, which has no name"):
        Trainer(steps.whole_step(), kernel_options())["moving"]
    for given in ({}, {"": steps.whole_step()}):
        with pytest.raises(StepError, match="expected at least one, each with a name"):
            Trainer(given, kernel_options())


def test_steps_that_do_not_fit_one_state_are_refused() -> None:
    def refused(match: str, **changes: Any) -> None:
        model = steps.whole_step(**changes)
        with pytest.raises(StepError, match=match):
            Trainer({"one": steps.whole_step(), "other": model}, kernel_options())

    refused(
        "'linear.weight' is a parameter, float64 .* in the step 'other', and a parameter, float32", dtype=np.float64
    )
    other = steps.whole_step()
    other.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.ones(2, np.float32), "linear.bias"))
    with pytest.raises(StepError, match=r"'linear.bias', .* has other start values in the step 'other' than in 'one'"):
        Trainer({"one": steps.whole_step(), "other": other}, kernel_options())


# --- workers ----------------------------------------------------------------------------------------------------------


def shares(batch: State, communicator: ThreadCommunicator) -> State:
    return {name: np.array_split(array, communicator.size)[communicator.rank] for name, array in batch.items()}


def test_workers_make_the_steps_of_the_whole_batch() -> None:
    models = two_steps()

    def work(communicator: ThreadCommunicator) -> State:
        trainer = Trainer(models, kernel_options(), communicator=communicator)
        for number, name in enumerate(ORDER):
            trainer[name].step(**shares(steps.batch(8, seed=number), communicator))
        own = shares(steps.batch(8, seed=99), communicator)
        if communicator.rank:  # evaluation is of one worker alone
            trainer["fixed"].evaluate("train", **own)
        return trainer.state_dict()

    done, oracles = together(2, work), Oracles()
    for number, name in enumerate(ORDER):
        oracles.step(name, steps.batch(8, seed=number))
    for state in done:
        check_state(state, oracles)
        for name, array in state.items():
            assert_same_bits(array, done[0][name])


def test_workers_that_make_different_steps_fail() -> None:
    models = two_steps()

    def work(communicator: ThreadCommunicator) -> None:
        trainer = Trainer(models, kernel_options(), communicator=communicator)
        name = trainer.steps[communicator.rank]
        with pytest.raises(WorkerError, match="worker 1 differs from worker 0 in the step that it makes"):
            trainer[name].step(**shares(steps.batch(8), communicator))
        trainer["fixed"].step(**shares(steps.batch(8), communicator))

    together(2, work)


def test_workers_with_other_steps_fail() -> None:
    def work(communicator: ThreadCommunicator) -> None:
        models = two_steps()
        given = models if communicator.rank else dict(reversed(models.items()))
        with pytest.raises(WorkerError, match="differs from worker 0 in the names of its steps"):
            Trainer(given, kernel_options(), communicator=communicator)

    together(2, work)


# --- evaluation and prediction ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_previous", [False, True])
def test_evaluation_and_prediction_follow_the_formulas(keep_previous: bool) -> None:
    """With other numbers of samples than the steps, between steps, from the tensors of the state."""
    trainer = Trainer(steps.whole_step(), kernel_options(), keep_previous=keep_previous)
    oracle = Oracle.of(steps.start())
    for number in range(6):
        batch, held = steps.batch(4, seed=number), steps.batch(1 + 3 * number, seed=50 + number)
        got, predicted = trainer.evaluate("train", **held), trainer.predict(x=held["x"])
        expected = Oracle(oracle.state).step(**held)
        for name in ("loss", "logits"):
            wanted = np.asarray(expected[name], np.float32)
            assert_close(got[name], wanted, rtol=TOLERANCE, atol=TOLERANCE, what=name)
        assert list(got) == ["loss", "logits"]
        assert_close(predicted["probabilities"], oracle.predict(held["x"]).astype(np.float32), atol=TOLERANCE)
        trainer.step(**batch)
        oracle.step(**batch)
    got = trainer.state_dict()
    for name, array in got.items():
        assert_close(array, oracle.state[name].astype(array.dtype), rtol=TOLERANCE, atol=TOLERANCE, what=name)


def test_evaluation_that_is_refused() -> None:
    trainer = Trainer(steps.whole_step(inference=False), kernel_options())
    batch = steps.batch()
    assert not trainer.has_evaluation_graph
    with pytest.raises(StepError, match=r"no evaluation graph: .*; capture it with evaluation=True"):
        trainer.evaluate(**batch)
    with pytest.raises(StepError, match="no inference graph"):
        trainer.predict(x=batch["x"])
    with pytest.raises(StepError, match="the mode is 'test', expected 'eval' or 'train'"):
        trainer.evaluate("test", **batch)  # type: ignore[arg-type]
    with pytest.raises(StepError, match="'x' is float64"):
        trainer.evaluate("train", x=batch["x"].astype(np.float64), y=batch["y"])
