"""Accumulated gradients: against the formulas, what is refused, seeds, loading, memory, and workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import steps
from backends import assert_close, assert_same_bits, kernel_options
from linear_oracle import Oracle, State
from onnx import parser
from test_workers import scaled_step, share, with_dots

from onnx_ops import StepError, Trainer
from onnx_ops.core.step_format import InputRole
from onnx_ops.training.step import Step
from onnx_ops.training.step_files import step_model
from scripts.trainings.threads import ThreadCommunicator, together

# Ten updates from sums of eight products each; weights are of size 1.
TOLERANCES = {np.float32: 4e-6, np.float64: 2e-14}
SHARES = [(8,), (5, 3), (1, 6, 1), (2, 2, 2, 2)]


def parts(batch: State, counts: Sequence[int]) -> list[State]:
    return [share(batch, counts, number) for number in range(len(counts))]


def accumulated(trainer: Trainer, batches: Sequence[State]) -> State:
    """Make one step of several batches."""
    for batch in batches[:-1]:
        trainer.accumulate(**batch)
    return trainer.step(**batches[-1])


@pytest.mark.parametrize("keep_previous", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_several_batches_are_one(dtype: type, keep_previous: bool) -> None:
    """Where nothing but the gradients depends on the batch."""
    trainer = Trainer(steps.whole_step(dtype, changes_mean=False), kernel_options(), keep_previous=keep_previous)
    oracle = Oracle.of(steps.start(dtype))
    for number in range(10):
        batch = steps.batch(8, dtype, seed=number)
        got = accumulated(trainer, parts(batch, SHARES[number % len(SHARES)]))
        expected = oracle.step(**batch)
        oracle.state["mean"] = steps.start()["mean"]
        count = SHARES[number % len(SHARES)][-1]
        assert_close(got["logits"], expected["logits"][-count:].astype(dtype), atol=TOLERANCES[dtype])
    for name, array in trainer.state_dict().items():
        wanted = oracle.state[name].astype(array.dtype)
        assert_close(array, wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype], what=name)


def test_buffers_change_with_each_batch() -> None:
    trainer, oracle = Trainer(steps.whole_step(), kernel_options()), Oracle.of(steps.start())
    for seed in range(3):
        batch = steps.batch(seed + 1, seed=seed)
        trainer.accumulate(**batch)
        oracle.step(**batch)
        state = trainer.state_dict()
        assert_close(state["mean"], oracle.state["mean"].astype(np.float32), rtol=1e-6)
        for name, array in steps.start().items():
            if name != "mean":
                assert_same_bits(state[name], array)


def test_a_step_without_a_batch_applies_what_was_accumulated() -> None:
    batch = steps.batch()
    trainer, other = (Trainer(steps.whole_step(changes_mean=False), kernel_options()) for _ in range(2))
    trainer.accumulate(**batch)
    assert trainer.step() == {}
    other.step(**batch)
    for name, array in trainer.state_dict().items():
        assert_same_bits(array, other.state_dict()[name])
    with pytest.raises(StepError, match="the batch lacks"):
        trainer.step()


def test_16_bits() -> None:
    """Means are taken in float32, and rounded once: of gradients that 16 bits hold exactly, exact."""
    trainer = Trainer(scaled_step("float16"), kernel_options())
    for row in ([1.0, 2.0], [3.0, -4.0]):
        trainer.accumulate(x=np.array([row], np.float16))
    trainer.step(x=np.array([[2.0, 8.0]], np.float16))
    assert_same_bits(trainer.state_dict()["w"], np.array([1 - 2 * 0.5, 2 - 2 * 0.5], np.float16))


def test_what_is_done_with_gradients_is_done_with_their_mean() -> None:
    body = """
        norm = ReduceL2 <keepdims = 0> (grad__w)
        gradient = Div (grad__w, norm)
    """
    trainer = Trainer(scaled_step(body=body, norm="float", grad__w="float[2]"), kernel_options())
    rows = np.array([[6, 0], [0, 8], [3, 4]], np.float32)  # their mean is (3, 4)
    assert list(trainer.accumulate(x=rows[:1])) == ["loss"]
    reported = trainer.step(x=rows[1:])
    assert list(reported) == ["loss", "norm", "grad.w"]
    assert_close(reported["norm"], np.array(5, np.float32), rtol=1e-6)
    assert_close(reported["grad.w"], np.array([3, 4], np.float32), rtol=1e-6)
    assert_close(trainer.state_dict()["w"], np.array([1 - 0.5 * 0.6, 2 - 0.5 * 0.8], np.float32), rtol=1e-6)


def test_each_batch_draws_random_numbers_of_its_own() -> None:
    """A resumed training draws those of the step again; a step of one batch has its own seed."""
    body = """
        size = Size (x)
        nought = Sub (size, size)
        drawn = Add (seed, nought)
    """
    model = scaled_step(body=body, drawn="int64")
    batch = {"x": np.ones((1, 2), np.float32)}
    draws = []
    for _ in range(2):
        trainer = Trainer(model, kernel_options())
        drawn = [int(call(**batch)["drawn"]) for call in 2 * [trainer.accumulate, trainer.accumulate, trainer.step]]
        assert len(set(drawn)) == 6
        assert [drawn[0], drawn[3]] == [3, 4]
        assert int(trainer.step(**batch)["drawn"]) == 5
        draws.append(drawn)
    assert draws[0] == draws[1]


def test_counters_of_batches_and_of_steps() -> None:
    """A buffer that depends on no gradient counts batches, unless the update reads the value that it had before."""
    counted = Trainer(scaled_step(), kernel_options())
    body = """
        calls_float = Cast <to = 1> (calls)
        gradient = Div (grad__w, calls_float)
    """
    read = Trainer(scaled_step(body=body), kernel_options())
    read.load_state_dict({"calls": np.array(1)}, strict=False)
    for trainer, after in ((counted, 3), (read, 2)):
        accumulated(trainer, [{"x": np.ones((1, 2), np.float32)}] * 3)
        assert trainer.state_dict()["calls"] == after
        assert trainer.state_dict()["seed"] == 4


COUNTING = """
    next__calls = Add (calls, one)
    calls_float = Cast <to = 1> (next__calls)
    gradient = Div (grad__w, calls_float)
"""
"""The update divides by the number of batches."""


@pytest.mark.parametrize("keep_previous", [False, True])
def test_updates_read_what_the_last_batch_writes(keep_previous: bool) -> None:
    trainer = Trainer(scaled_step(body=COUNTING), kernel_options(), keep_previous=keep_previous)
    batch = {"x": np.ones((1, 2), np.float32)}
    accumulated(trainer, [batch] * 2)
    accumulated(trainer, [batch] * 3)
    trainer.accumulate(**batch)
    trainer.step()
    assert trainer.state_dict()["calls"] == 6
    change = 0.5 / 2 + 0.5 / 5 + 0.5 / 6
    assert_close(trainer.state_dict()["w"], np.array([1 - change, 2 - change], np.float32), rtol=1e-6)


def test_a_step_of_an_input_named_like_an_argument() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        step (float[2] w, float[N, 2] self, float[N] batch, float[N] version) => (float loss, float[2] next__w) {
            axes = Constant <value_ints = [0]> ()
            grad__w = ReduceMean <keepdims = 0> (self, axes)
            sum = Add (batch, version)
            loss = ReduceMean <keepdims = 0> (sum)
            next__w = Sub (w, grad__w)
        }"""
    model = with_dots(parser.parse_model(text))
    Step({"w": InputRole.PARAMETER}).write_into(model)
    trainer = Trainer(step_model(model, {"w": np.zeros(2, np.float32)}), kernel_options())
    numbers = np.ones(2, np.float32)
    accumulated(
        trainer, [{"self": np.full((2, 2), n, np.float32), "batch": numbers, "version": numbers} for n in (1, 3)]
    )
    assert_same_bits(trainer.state_dict()["w"], np.full(2, -2, np.float32))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_previous", [False, True])
@pytest.mark.parametrize("call", [Trainer.accumulate, Trainer.step])
def test_a_refused_batch_leaves_the_gradients_as_they_were(call: Callable[..., State], keep_previous: bool) -> None:
    trainer, other = (Trainer(steps.whole_step(), kernel_options(), keep_previous=keep_previous) for _ in range(2))
    batches = [steps.batch(seed=seed) for seed in range(3)]
    nan = {"x": np.full((1, 3), np.nan, np.float32), "y": np.zeros((1, 2), np.float32)}
    for batch in batches[:2]:
        for one in (trainer, other):
            one.accumulate(**batch)
        before = trainer.state_dict()
        for refused, message in ((nan, "'loss' is nan, and the state is as before"), ({"x": batch["x"]}, "lacks 'y'")):
            with pytest.raises(StepError, match=message):
                call(trainer, **refused)
        for name, array in trainer.state_dict().items():
            assert_same_bits(array, before[name])
    for one in (trainer, other):
        one.step(**batches[2])
    for name, array in trainer.state_dict().items():
        assert_same_bits(array, other.state_dict()[name])


def test_gradients_that_are_not_finite_end_with_their_step() -> None:
    trainer = Trainer(scaled_step(), kernel_options(), check_finite=False)
    accumulated(trainer, [{"x": np.full((1, 2), x, np.float32)} for x in (np.inf, 1)])
    assert not np.isfinite(trainer.state_dict()["w"]).any()
    trainer.load_state_dict({"w": np.zeros(2, np.float32)}, strict=False)
    accumulated(trainer, [{"x": np.full((1, 2), x, np.float32)} for x in (2, 4)])
    assert_same_bits(trainer.state_dict()["w"], np.full(2, -1.5, np.float32))


def test_loading_a_state_discards_gradients() -> None:
    trainer, other = (Trainer(steps.whole_step(), kernel_options()) for _ in range(2))
    trainer.accumulate(**steps.batch(seed=1))
    trainer.load_state_dict(other.state_dict())
    for one in (trainer, other):
        one.step(**steps.batch(seed=2))
    for name, array in trainer.state_dict().items():
        assert_same_bits(array, other.state_dict()[name])


def test_steps_that_cannot_be_cut_are_refused() -> None:
    model = scaled_step()
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["gradient" if name == "grad.w" else name for name in names]
    trainer = Trainer(model, kernel_options())
    with pytest.raises(StepError, match=r"no value in its graph is named 'grad.<parameter>'"):
        trainer.accumulate(x=np.ones((1, 2), np.float32))
    trainer.step(x=np.ones((1, 2), np.float32))


# --- workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_workers_accumulate(dtype: type) -> None:
    """Each another number of batches, without messages but one a step."""
    model = steps.whole_step(dtype, changes_mean=False)
    shares = [((2, 1), (5,)), ((0,), (3, 3, 2)), ((1, 1, 1, 1), (2, 2))]

    def work(communicator: ThreadCommunicator) -> tuple[State, int]:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        before = communicator.messages
        for number in range(10):
            own = shares[number % len(shares)]
            batch = steps.batch(8, dtype, seed=number)
            batch = share(batch, [sum(counts) for counts in own], communicator.rank)
            batches = parts(batch, own[communicator.rank])
            if number == 5:  # all was accumulated; the step has no batch
                for part in batches:
                    trainer.accumulate(**part)
                reported = trainer.step()
            else:
                reported = accumulated(trainer, batches)
            assert "loss" in reported
        return trainer.state_dict(), communicator.messages - before

    done = together(2, work)
    oracle = Oracle.of(steps.start(dtype))
    for number in range(10):
        oracle.step(**steps.batch(8, dtype, seed=number))
        oracle.state["mean"] = steps.start()["mean"]
    for state, messages in done:
        assert messages == 10
        for name, array in state.items():
            assert_same_bits(array, done[0][0][name])
            tolerance = TOLERANCES[dtype]
            assert_close(array, oracle.state[name].astype(array.dtype), rtol=tolerance, atol=tolerance, what=name)


def test_buffers_of_workers_are_averaged_by_the_step() -> None:
    """Each worker's follow its own batches; weights are the numbers of samples since the last step."""

    def work(communicator: ThreadCommunicator) -> tuple[list[np.ndarray], State]:
        trainer = Trainer(steps.whole_step(), kernel_options(), communicator=communicator)
        batches = [steps.batch(samples, seed=samples) for samples in ((1, 2), (5,))[communicator.rank]]
        own = []
        for batch in batches:
            trainer.accumulate(**batch)
            own.append(trainer.state_dict()["mean"])
        trainer.step()
        return own, trainer.state_dict()

    done = together(2, work)
    oracles = [Oracle.of(steps.start()) for _ in done]
    for (own, _), oracle, sizes in zip(done, oracles, ((1, 2), (5,)), strict=True):
        for mean, samples in zip(own, sizes, strict=True):
            oracle.step(**steps.batch(samples, seed=samples))
            assert_close(mean, oracle.state["mean"].astype(np.float32), rtol=1e-6, atol=1e-7)
    expected = (3 * oracles[0].state["mean"] + 5 * oracles[1].state["mean"]) / 8
    for _, state in done:
        assert_close(state["mean"], expected.astype(np.float32), rtol=1e-6, atol=1e-7)


def test_a_batch_that_is_refused_on_one_worker_is_not_counted() -> None:
    model = steps.whole_step(changes_mean=False)

    def work(communicator: ThreadCommunicator) -> State:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        batch = steps.batch(4, seed=communicator.rank)
        trainer.accumulate(**batch)
        if communicator.rank:
            with pytest.raises(StepError, match="'loss' is nan"):
                trainer.accumulate(x=np.full((4, 3), np.nan, np.float32), y=batch["y"])
            with pytest.raises(StepError, match="the batch lacks"):
                trainer.accumulate(x=batch["x"])
        trainer.step()
        return trainer.state_dict()

    oracle = Oracle.of(steps.start())
    batches = [steps.batch(4, seed=rank) for rank in range(2)]
    oracle.step(**{name: np.concatenate([batch[name] for batch in batches]) for name in ("x", "y")})
    oracle.state["mean"] = steps.start()["mean"]
    for state in together(2, work):
        for name, array in state.items():
            assert_close(array, oracle.state[name].astype(array.dtype), rtol=4e-6, atol=4e-6, what=name)
