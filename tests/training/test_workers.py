"""Trainings shared by workers, which are threads here: they equal the training of one worker with the whole batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import steps
from backends import assert_close, assert_same_bits, kernel_options, options
from cases import names_with
from linear_oracle import Oracle, State
from onnx import parser

from onnx_ops import StepError, Trainer, WorkerError
from onnx_ops.core.step_format import InputRole
from onnx_ops.training.step import Step
from onnx_ops.training.step_files import step_model
from scripts.trainings.threads import ThreadCommunicator, together

SHARES = [[(8,)], [(4, 4)], [(5, 3), (1, 7), (0, 8)], [(3, 0, 5), (2, 4, 2), (0, 0, 8)], [(1, 0, 6, 1), (2, 2, 2, 2)]]
"""How many samples of a step's batch each worker has; steps take turns."""
# Twenty steps; sums of eight products, weighted and divided again, each of which rounds; weights are of size 1.
TOLERANCES = {np.float32: 4e-6, np.float64: 2e-14}


def share(batch: State, counts: Sequence[int], rank: int) -> State:
    ends = np.cumsum([0, *counts])
    return {name: array[ends[rank] : ends[rank + 1]] for name, array in batch.items()}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shares", names_with(full=[SHARES[1], SHARES[3]], names=SHARES), ids=str)
def test_workers_make_the_steps_of_the_whole_batch(shares: list[tuple[int, ...]], dtype: type) -> None:
    """The mean of the inputs is a buffer, and averages with weights are linear in it."""
    workers, tolerance = len(shares[0]), TOLERANCES[dtype]
    model = steps.whole_step(dtype)

    def work(communicator: ThreadCommunicator) -> tuple[list[State], State, int]:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        before, reported = communicator.messages, []
        for number in range(20):
            counts = shares[number % len(shares)]
            batch = share(steps.batch(8, dtype, seed=number), counts, communicator.rank)
            nothing = not counts[communicator.rank] and number % 2
            reported.append(trainer.step(**({} if nothing else batch)))
        return reported, trainer.state_dict(), communicator.messages - before

    done = together(workers, work)
    oracle = Oracle.of(steps.start(dtype))
    for number in range(20):
        expected = oracle.step(**steps.batch(8, dtype, seed=number))
        counts = shares[number % len(shares)]
        for rank, (reported, _, _) in enumerate(done):
            assert list(reported[number]) == (["loss", "logits"] if counts[rank] else ["loss"])
            assert_close(reported[number]["loss"], np.asarray(expected["loss"], dtype), atol=tolerance)
            if counts[rank]:
                logits = share({"logits": expected["logits"]}, counts, rank)["logits"].astype(dtype)
                assert_close(reported[number]["logits"], logits, atol=tolerance)
    for _, state, messages in done:
        assert messages == 20, "one message a step"
        for name, array in state.items():
            assert_same_bits(array, done[0][1][name])
            assert_close(array, oracle.state[name].astype(array.dtype), rtol=tolerance, atol=tolerance, what=name)


def test_16_bits() -> None:
    """Averages are taken in float32, and rounded once: of gradients that 16 bits hold exactly, exact."""
    model = scaled_step("float16")

    def work(communicator: ThreadCommunicator) -> tuple[State, State]:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        x = np.array([[1.0, 2.0], [3.0, -4.0], [2.0, 8.0]][communicator.rank :: 2], np.float16)
        return trainer.step(x=x), trainer.state_dict()

    (reported, state), (other, _) = together(2, work)
    # mean of x over the samples is (2, 2); loss is the sum of w * mean = 1 * 2 + 2 * 2
    assert reported["loss"] == other["loss"] == np.float16(6.0)
    np.testing.assert_array_equal(state["w"], np.array([1 - 2 * 0.5, 2 - 2 * 0.5], np.float16))


def scaled_step(dtype: str = "float", samples: str = "N", body: str = "", **outputs: str) -> onnx.ModelProto:
    """A step for loss = mean over n of (w . x[n]), whose gradient by w is the mean of x.

    `body` adds nodes, the first names in it being those of `outputs`, with their types. ONNX's text syntax has no dots
    in names: they are written as two underscores.
    """
    text = f"""
        <ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
        step ({dtype}[2] w, int64 calls, int64 seed, float learning_rate, {dtype}[{samples}, 2] x)
            => ({dtype} loss, {dtype}[2] next__w, int64 next__calls, int64 next__seed
                {"".join(f", {kind} {name}" for name, kind in outputs.items())}) {{
            axes = Constant <value_ints = [0]> ()
            one = Constant <value = int64 {{1}}> ()
            grad__w = ReduceMean <keepdims = 0> (x, axes)
            products = Mul (w, x)
            sums = ReduceMean <keepdims = 0> (products, axes)
            loss = ReduceSum <keepdims = 0> (sums)
            {body}
            rate = CastLike (learning_rate, w)
            change = Mul (rate, {"gradient" if "gradient =" in body else "grad__w"})
            next__w = Sub (w, change)
            {"" if "next__calls =" in body else "next__calls = Add (calls, one)"}
            next__seed = Add (seed, one)
        }}"""
    model = with_dots(parser.parse_model(text))
    roles = {"w": InputRole.PARAMETER, "calls": InputRole.BUFFER, "seed": InputRole.SEED}
    Step(roles | {"learning_rate": InputRole.SETTING}).write_into(model)
    numbers = np.float16 if dtype == "float16" else np.float32
    start = {"w": np.array([1, 2], numbers), "calls": np.array(0), "seed": np.array(3)}
    return step_model(model, start | {"learning_rate": np.array(0.5, np.float32)})


def with_dots(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("__", ".") for name in names]
    for value in model.graph.output:
        value.name = value.name.replace("__", ".")
    return model


def test_what_is_done_with_gradients_is_done_with_their_average() -> None:
    """Such as clipping them to a norm, or reporting it: the norm of the mean is not the mean of the norms."""
    body = """
        norm = ReduceL2 <keepdims = 0> (grad__w)
        gradient = Div (grad__w, norm)
    """
    model = scaled_step(body=body, norm="float")
    rows = np.array([[6, 0], [0, 8], [3, 4]], np.float32)  # their mean is (3, 4)

    def work(communicator: ThreadCommunicator) -> tuple[State, State]:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        return trainer.step(x=rows[communicator.rank :: 2]), trainer.state_dict()

    for reported, state in together(2, work):
        assert reported["norm"] == 5
        np.testing.assert_allclose(state["w"], [1 - 0.5 * 0.6, 2 - 0.5 * 0.8], rtol=1e-7)  # some roundings
        assert state["calls"] == 1


def test_gradients_can_be_reported() -> None:
    body = "twice = Add (grad__w, grad__w)"
    model = scaled_step(body=body, grad__w="float[2]", twice="float[2]")
    rows = np.array([[6, 0], [0, 8], [3, 4]], np.float32)

    def work(communicator: ThreadCommunicator) -> State:
        return Trainer(model, kernel_options(), communicator=communicator).step(x=rows[communicator.rank :: 2])

    for reported in together(2, work):
        assert list(reported) == ["loss", "grad.w", "twice"]
        np.testing.assert_array_equal(reported["grad.w"], [3, 4])
        np.testing.assert_array_equal(reported["twice"], [6, 8])


def test_each_worker_draws_random_numbers_of_its_own() -> None:
    body = """
        size = Size (x)
        nought = Sub (size, size)
        drawn = Add (seed, nought)
    """
    model = scaled_step(body=body, drawn="int64")

    def work(communicator: ThreadCommunicator) -> tuple[list[int], int]:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        drawn = [int(trainer.step(x=np.ones((1, 2), np.float32))["drawn"]) for _ in range(4)]
        return drawn, int(trainer.state_dict()["seed"])

    done = together(3, work)
    assert done[0][0] == [3, 4, 5, 6], "the first worker's are those of a single one"
    assert len({seed for drawn, _ in done for seed in drawn}) == 12
    assert {seed for _, seed in done} == {7}


def test_steps_of_a_fixed_number_of_samples() -> None:
    model = scaled_step(samples="2")

    def work(communicator: ThreadCommunicator) -> float:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        x = np.full((2, 2), communicator.rank, np.float32)
        return float(trainer.step(**({} if communicator.rank == 0 else {"x": x}))["loss"])

    assert together(3, work) == [4.5] * 3  # w . (1, 1) = 3 and w . (2, 2) = 6


def test_the_dimension_that_counts_samples_can_be_named() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        step (float w, float[T, N] x, float[N] y) => (float loss, float next__w) {
            axes = Constant <value_ints = [0]> ()
            sums = ReduceSum <keepdims = 0> (x, axes)
            products = Mul (sums, y)
            grad__w = ReduceMean <keepdims = 0> (products)
            loss = Mul (w, grad__w)
            next__w = Sub (w, grad__w)
        }"""
    model = with_dots(parser.parse_model(text))
    Step({"w": InputRole.PARAMETER}).write_into(model)
    model = step_model(model, {"w": np.array(1, np.float32)})
    x, y = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([1, 10, 100], np.float32)
    cuts = [slice(0, 1), slice(1, 3)]

    def work(communicator: ThreadCommunicator, dimension: str | None) -> float:
        trainer = Trainer(model, kernel_options(), communicator=communicator, batch_dimension=dimension)
        own = cuts[communicator.rank]
        return float(trainer.step(x=x[:, own], y=y[own])["loss"])

    mean = (5 * 1 + 7 * 10 + 9 * 100) / 3
    assert together(2, lambda communicator: work(communicator, "N")) == [mean] * 2
    with pytest.raises(StepError, match="'T' of 'x', 'N' of 'y': name the batch dimension"):
        together(2, lambda communicator: work(communicator, None))
    with pytest.raises(StepError, match="no input has a dimension named 'M'"):
        together(2, lambda communicator: work(communicator, "M"))


# --- state ------------------------------------------------------------------------------------------------------------


def test_all_start_from_the_state_of_the_first() -> None:
    def work(communicator: ThreadCommunicator) -> State:
        start = steps.start() | {"mean": np.full(3, communicator.rank + 1, np.float32)}
        model = step_model(steps.bare_step(), start)
        return Trainer(model, kernel_options(), communicator=communicator).state_dict()

    for state in together(3, work):
        np.testing.assert_array_equal(state["mean"], [1, 1, 1])


def five_steps(
    model: onnx.ModelProto, state: State, first: int, counts: tuple[int, ...], communicator: ThreadCommunicator
) -> State:
    trainer = Trainer(model, kernel_options(), communicator=communicator)
    trainer.load_state_dict(state)
    trainer.learning_rate = 0.25
    for number in range(first, first + 5):
        trainer.step(**share(steps.batch(8, seed=number), counts, communicator.rank))
    return trainer.state_dict()


def test_training_goes_on_with_another_number_of_workers() -> None:
    """And alone, from a state that any worker has."""
    model = steps.whole_step()
    state: State = steps.start()
    for turn, counts in enumerate([(3, 5), (8,), (2, 0, 6)]):
        state = together(len(counts), functools.partial(five_steps, model, state, 5 * turn, counts))[-1]
    oracle = Oracle.of(steps.start() | {"learning_rate": np.array(0.25, np.float32)})
    for number in range(15):
        oracle.step(**steps.batch(8, seed=number))
    for name, array in state.items():
        tolerance = TOLERANCES[np.float32]
        assert_close(array, oracle.state[name].astype(array.dtype), rtol=tolerance, atol=tolerance, what=name)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_fails_on_one_worker_fails_on_all_and_changes_nothing() -> None:
    model = steps.whole_step()

    def work(communicator: ThreadCommunicator) -> tuple[Exception, bool, float]:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        before, batch = trainer.state_dict(), steps.batch(4)
        with pytest.raises((StepError, WorkerError)) as caught:
            trainer.step(**({"x": batch["x"]} if communicator.rank == 1 else batch))
        same = all(np.array_equal(before[name], array) for name, array in trainer.state_dict().items())
        return caught.value, same, float(trainer.step(**batch)["loss"])

    done = together(3, work)
    assert [type(error) for error, _, _ in done] == [WorkerError, StepError, WorkerError]
    assert "worker 1 has failed in this step" in str(done[0][0])
    assert "the batch lacks 'y'" in str(done[1][0])
    assert all(same for _, same, _ in done)
    expected = Oracle.of(steps.start()).step(**steps.batch(4))["loss"]
    assert_close(np.array([loss for _, _, loss in done]), np.full(3, expected), rtol=1e-6)  # a few roundings


def test_a_loss_that_is_no_number_is_refused_by_all_and_changes_nothing() -> None:
    """Also where it is one number with axes."""
    for body, outputs in (("", {}), ("mean = Unsqueeze (loss, axes)", {"mean": "float[1]"})):
        model = scaled_step(body=body, **outputs)
        if body:  # the first output is the loss
            del model.graph.output[0]
            model.graph.output.insert(0, model.graph.output.pop())
        name = model.graph.output[0].name

        def work(communicator: ThreadCommunicator, model: onnx.ModelProto = model, name: str = name) -> float:
            trainer = Trainer(model, kernel_options(), communicator=communicator)
            before = trainer.state_dict()
            with pytest.raises(StepError, match=f"'{name}' is nan, and the state is as before the step"):
                trainer.step(x=np.full((1, 2), np.nan if communicator.rank else 1, np.float32))
            for key, array in trainer.state_dict().items():
                assert_same_bits(array, before[key])
            return float(trainer.step(x=np.full((1, 2), 1 + communicator.rank, np.float32))[name].item())

        assert together(2, work) == [(3 + 6) / 2] * 2


def test_workers_need_the_same_settings_and_state() -> None:
    model = steps.whole_step()

    def settings(communicator: ThreadCommunicator) -> None:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        trainer.learning_rate = 0.25 if communicator.rank == 1 else 0.5
        trainer.step(**steps.batch(4))

    def loaded(communicator: ThreadCommunicator) -> None:
        trainer = Trainer(model, kernel_options(), communicator=communicator)
        if communicator.rank == 1:
            trainer.load_state_dict(steps.start())
        trainer.step(**steps.batch(4))

    for work in (settings, loaded):
        with pytest.raises(WorkerError, match="worker 1 differs from worker 0 in the state that was loaded, the "):
            together(2, work)


def test_workers_need_the_same_step() -> None:
    def work(communicator: ThreadCommunicator) -> None:
        model = steps.whole_step() if communicator.rank < 2 else scaled_step()
        Trainer(model, kernel_options(), communicator=communicator)

    with pytest.raises(WorkerError, match="worker 2 differs from worker 0 in the step that they make"):
        together(3, work)


def test_some_worker_needs_a_sample() -> None:
    def work(communicator: ThreadCommunicator) -> None:
        Trainer(steps.whole_step(), kernel_options(), communicator=communicator).step()

    with pytest.raises(StepError, match="no worker has a sample for this step"):
        together(2, work)


@pytest.mark.usefixtures("spinning_sessions")
def test_sessions_of_workers_leave_the_cores_to_each_other() -> None:
    """Unless they are given options: those stay as they are."""

    def told(given: ort.SessionOptions | None) -> list[str]:
        trainer = Trainer(steps.whole_step(), given, communicator=ThreadCommunicator.alone())
        runner = trainer._only().runner
        sessions = [bound._session for bound in (*runner._local, runner._shared._bound)]
        key = "session.intra_op.allow_spinning"
        return [session.get_session_options().get_session_config_entry(key) for session in sessions]

    assert told(None) == ["0", "0"]
    with pytest.raises(RuntimeError, match="does not have configuration with key: session"):
        told(options())


def test_a_single_trainer_needs_its_batch() -> None:
    with pytest.raises(StepError, match="the batch lacks 'x'"):
        Trainer(steps.whole_step(), kernel_options()).step()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        pytest.param(
            scaled_step(body="gradient = ReduceMax <keepdims = 0> (x, axes)"),
            "'next.w' \\(parameter\\) depends on the batch otherwise than by values named 'grad.<parameter>'",
            id="other gradient",
        ),
        pytest.param(
            scaled_step(body="size = Size (x)\nnext__calls = Add (calls, size)"),
            r"'next.calls' depends on the batch and is int64 \(\), expected a floating dtype",
            id="integers",
        ),
    ],
)
def test_steps_that_cannot_be_shared(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(StepError, match=message):
        together(1, lambda communicator: Trainer(model, kernel_options(), communicator=communicator))


def test_gradients_have_names() -> None:
    model = scaled_step()
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("grad.", "slope.") for name in names]
    with pytest.raises(StepError, match=r"no value in its graph is named 'grad.<parameter>'"):
        together(1, lambda communicator: Trainer(model, kernel_options(), communicator=communicator))
