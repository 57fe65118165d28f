"""Batch norm over the samples of all workers: they make the steps of one worker with the whole batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("sklearn")

from backends import assert_close, assert_same_bits, kernel_options
from cases import names_with
from linear_oracle import State
from onnx import helper

from models.batch_norm_workers.training import TRAINING
from onnx_ops import StepError, Trainer, WorkerError
from onnx_ops.core.types import TensorType
from onnx_ops.training.step_files import step_model
from onnx_ops.training.workers.exchange import Combined, Exchange, Exchanged
from scripts.trainings.threads import ThreadCommunicator, together

STEPS = 20
BATCHES = TRAINING.in_batches(TRAINING.samples(0))
SHARES = [(12,), (6, 6), (3, 3, 3, 3), (9, 3), (6, 1, 5), (7, 0, 5), (0, 7, 4, 1)]
"""How many of the samples of a batch each worker has."""
# Twenty steps; workers add up in another order what one worker adds up, and round statistics twice.
CLOSE = 1e-5


def share(number: int, counts: tuple[int, ...], rank: int) -> State:
    """A worker's share of a batch; nothing at all for one that has no sample."""
    ends = np.cumsum([0, *counts])
    batch = BATCHES.batch(BATCHES.order(0, 0), number)
    return {name: array[ends[rank] : ends[rank + 1]] for name, array in batch.items()} if counts[rank] else {}


def losses(trainer: Trainer, counts: tuple[int, ...] = (12,), rank: int = 0, first: int = 0) -> list[float]:
    return [float(trainer.step(**share(number, counts, rank))["loss"]) for number in range(first, first + STEPS)]


def synchronized(communicator: ThreadCommunicator) -> Trainer:
    return Trainer(TRAINING.started(0), kernel_options(), communicator=communicator, synchronize_batch_norm=True)


def changed(change: Callable[[onnx.NodeProto], list[onnx.NodeProto]]) -> onnx.ModelProto:
    """The step with other nodes."""
    model = onnx.ModelProto()
    model.CopyFrom(TRAINING.model)
    del model.graph.initializer[:]
    model.graph.initializer.extend(t for t in TRAINING.model.graph.initializer if t.name != "learning_rate")
    nodes = [node for given in TRAINING.model.graph.node for node in change(given)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


@pytest.fixture(scope="module")
def whole() -> tuple[list[float], State]:
    """The losses, and the state in the end, of one trainer with the whole batches."""
    trainer = Trainer(TRAINING.started(0), kernel_options())
    return losses(trainer), trainer.state_dict()


@pytest.mark.parametrize("counts", names_with(full=[(6, 6), (9, 3), (6, 1, 5)], names=SHARES), ids=str)
def test_workers_make_the_steps_of_the_whole_batch(counts: tuple[int, ...], whole: tuple[list[float], State]) -> None:
    """The losses are PyTorch's, which has made them with the whole batches; running statistics are those of all too."""

    def work(communicator: ThreadCommunicator) -> tuple[list[float], State, int]:
        trainer = synchronized(communicator)
        before = communicator.messages
        return losses(trainer, counts, communicator.rank), trainer.state_dict(), communicator.messages - before

    done = together(len(counts), work)
    kept = json.loads(TRAINING.files.losses.read_text())[:STEPS]
    for reported, state, messages in done:
        np.testing.assert_allclose(reported, whole[0], rtol=CLOSE)
        np.testing.assert_allclose(reported, kept, rtol=1e-4)  # another library's convolutions, and another machine's
        assert messages == 5 * STEPS, "two batch norms, forward and backward, and the gradients"
        for name, array in state.items():
            assert_same_bits(array, done[0][1][name])
            assert_close(array, whole[1][name], rtol=CLOSE, atol=CLOSE, what=name)


def test_without_it_each_worker_normalizes_with_its_own_samples(whole: tuple[list[float], State]) -> None:
    def work(communicator: ThreadCommunicator) -> list[float]:
        trainer = Trainer(TRAINING.started(0), kernel_options(), communicator=communicator)
        return losses(trainer, (3, 3, 3, 3), communicator.rank)

    assert np.abs(np.array(together(4, work)[0]) / whole[0] - 1).max() > 0.1


def test_training_goes_on_with_another_number_of_workers(whole: tuple[list[float], State]) -> None:
    state, reported = TRAINING.started(0).state, []
    for first, counts in ((0, (2, 10)), (5, (3, 0, 6, 3)), (10, (12,)), (15, (4, 4, 4))):

        def work(
            communicator: ThreadCommunicator, first: int = first, counts: tuple[int, ...] = counts, state: State = state
        ) -> tuple[list[float], State]:
            trainer = synchronized(communicator)
            trainer.load_state_dict(state)
            numbers = range(first, first + 5)
            made = [float(trainer.step(**share(n, counts, communicator.rank))["loss"]) for n in numbers]
            return made, trainer.state_dict()

        made, state = together(len(counts), work)[-1]
        reported += made
    np.testing.assert_allclose(reported, whole[0], rtol=CLOSE)
    for name, array in state.items():
        assert_close(array, whole[1][name], rtol=CLOSE, atol=CLOSE, what=name)


def test_a_saved_step_can_be_synchronized(tmp_path: Path, whole: tuple[list[float], State]) -> None:
    """Which is linked: its ops are there as functions too."""
    onnx.save(step_model(changed(lambda node: [node]), TRAINING.started(0).state), tmp_path / "step.onnx")

    def work(communicator: ThreadCommunicator) -> list[float]:
        path = tmp_path / "step.onnx"
        trainer = Trainer(path, kernel_options(), communicator=communicator, synchronize_batch_norm=True)
        return losses(trainer, (7, 5), communicator.rank)

    for reported in together(2, work):
        np.testing.assert_allclose(reported, whole[0], rtol=CLOSE)


def test_a_sum_of_gradients_can_be_a_gradient_too(whole: tuple[list[float], State]) -> None:
    """As in a step written by hand: the sum that batch norm needs is the gradient by its bias."""
    biases: dict[str, str] = {}

    def change(given: onnx.NodeProto) -> list[onnx.NodeProto]:
        node = onnx.NodeProto()
        node.CopyFrom(given)
        if node.op_type == "BatchNormReduceBackward":
            biases[node.output[0]] = node.output[3]
        if node.op_type == "BatchNormElemtBackward":
            node.input[5] = biases[node.input[5]]
        return [node]

    step = replace(TRAINING.started(0), model=changed(change))

    def work(communicator: ThreadCommunicator) -> list[float]:
        trainer = Trainer(step, kernel_options(), communicator=communicator, synchronize_batch_norm=True)
        return losses(trainer, (7, 5), communicator.rank)

    for reported in together(2, work):
        np.testing.assert_allclose(reported, whole[0], rtol=CLOSE)
    assert len(biases) == 2


# --- what fails -------------------------------------------------------------------------------------------------------


def both(counts: tuple[int, ...], spoil: Callable[[Trainer, State], None]) -> list[tuple[Exception, bool, list[float]]]:
    """What each worker raises in a step that worker 1 spoils, whether its state is as before, and the steps after."""

    def work(communicator: ThreadCommunicator) -> tuple[Exception, bool, list[float]]:
        trainer = synchronized(communicator)
        batch, before = share(0, counts, communicator.rank), trainer.state_dict()
        if communicator.rank == 1:
            spoil(trainer, batch)
        try:
            trainer.step(**batch)
        except Exception as error:
            raised = error
        same = all(np.array_equal(before[name], array) for name, array in trainer.state_dict().items())
        return raised, same, losses(trainer, counts, communicator.rank)

    return together(len(counts), work)


def wrong_label(trainer: Trainer, batch: State) -> None:
    """The node that chooses the label's probability refuses it: after both batch norms, before their gradients."""
    batch["labels"] = batch["labels"] + 10


def wrong_batch(trainer: Trainer, batch: State) -> None:
    del batch["labels"]


@pytest.mark.parametrize("spoil", [wrong_label, wrong_batch])
def test_what_fails_on_one_worker_fails_on_all_and_changes_nothing(
    spoil: Callable[[Trainer, State], None], whole: tuple[list[float], State]
) -> None:
    done = both((4, 5, 3), spoil)
    assert [type(error) is WorkerError for error, _, _ in done] == [True, False, True]
    assert "worker 1 has failed in this step" in str(done[0][0])
    for _, same, after in done:
        assert same
        np.testing.assert_allclose(after, whole[0], rtol=CLOSE)


def test_a_worker_that_has_not_made_the_last_step_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all do alike can fail on one of them, for want of memory; it has the state of before then."""

    def refuse(*given: object) -> None:
        raise MemoryError

    def work(communicator: ThreadCommunicator) -> None:
        trainer = synchronized(communicator)
        if communicator.rank == 1:
            with monkeypatch.context() as patched:
                patched.setattr(trainer._only().runner._shared, "run", refuse)
                with pytest.raises(MemoryError):
                    trainer.step(**share(0, (6, 6), 1))
        else:
            trainer.step(**share(0, (6, 6), 0))
        trainer.step(**share(1, (6, 6), communicator.rank))

    with pytest.raises(WorkerError, match=r"worker 1 differs from worker 0 in .* the steps that were made"):
        together(2, work)


def refused(model: onnx.ModelProto) -> None:
    step = replace(TRAINING.started(0), model=model)
    Trainer(step, kernel_options(), communicator=ThreadCommunicator.alone(), synchronize_batch_norm=True)


def in_a_branch(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    if node.op_type != "BatchNormStats":
        return [node]
    empty = [helper.make_empty_tensor_value_info(name) for name in ("mean_inside", "invstd_inside")]
    inner = helper.make_node(node.op_type, node.input, ["mean_inside", "invstd_inside"], domain=node.domain)
    branch = helper.make_graph([inner], "branch", [], empty)
    always = helper.make_node("Constant", [], ["always"], value=helper.make_tensor("", onnx.TensorProto.BOOL, [], [1]))
    always.output[0] += node.output[0]
    return [always, helper.make_node("If", [always.output[0]], node.output, then_branch=branch, else_branch=branch)]


def of_the_standard(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    if node.op_type != "BatchNormElemt":
        return [node]
    x, weight, bias, mean, invstd = node.input
    return [
        helper.make_node("BatchNormalization", [x, weight, bias, mean, invstd], [*node.output, "", ""], training_mode=1)
    ]


def without_statistics(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Of each mean a constant."""
    if node.op_type != "BatchNormStats":
        return [node]
    size = 16 if "convolution" in node.input[0] else 64
    value = helper.make_tensor("", onnx.TensorProto.FLOAT, [size], np.ones(size, np.float32))
    return [helper.make_node("Constant", [], [name], value=value) for name in node.output]


def by_other_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    if node.op_type != "BatchNormElemt" or "convolution" in node.input[0]:
        return [node]
    x, _, _, mean, _ = node.input
    return [helper.make_node("Identity", [mean], ["centre"]), helper.make_node("Sub", [x, "centre"], node.output)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_a_branch, "BatchNormStats .* in graph / If .* cannot be synchronized, expected it in the step's own graph"),
        (
            by_other_nodes,
            r"Sub \(node .*\) reads statistics of batch norm, .* expected that only its own nodes read them",
        ),
        (of_the_standard, "BatchNormalization .* cannot be synchronized, expected BatchNormStats and BatchNormElemt"),
        (without_statistics, "the step has no batch norm to synchronize: none of its nodes is BatchNormStats"),
    ],
)
def test_steps_that_cannot_be_synchronized(
    change: Callable[[onnx.NodeProto], list[onnx.NodeProto]], message: str
) -> None:
    with pytest.raises(StepError, match=message):
        refused(changed(change))


# --- exchanges --------------------------------------------------------------------------------------------------------


def test_what_becomes_of_the_values_of_workers() -> None:
    """By hand; worker 1 has no sample, and what is in its tensors does not count."""
    vector, number = TensorType(onnx.TensorProto.FLOAT, (2,)), TensorType(onnx.TensorProto.INT32, ())
    values = [Exchanged(how.name, f"all {how.name}", vector, how) for how in Combined]
    values.append(Exchanged("count", "counts", number, Combined.ROWS))
    held = [[1.0, 2.0], [np.nan, np.inf], [4.0, -1.0]]

    def work(communicator: ThreadCommunicator) -> State:
        exchange = Exchange(communicator, values)
        for how in Combined:
            exchange.own[how.name].array[...] = held[communicator.rank]
        exchange.own["count"].array[...] = communicator.rank + 7
        for _ in range(2):  # a second one finds what the first has left
            exchange([3, 0, 1][communicator.rank], 0, None)
        return {name: tensor.array.copy() for name, tensor in exchange.of_all.items()}

    for rank, found in enumerate(together(3, work)):
        np.testing.assert_array_equal(found["all MEAN"], [7 / 4, 5 / 4])
        np.testing.assert_array_equal(found["all GRADIENT_SUM"], np.float32([7, 5]) / np.float32([3, np.inf, 1][rank]))
        np.testing.assert_array_equal(found["all TOTAL"], [5, 1])
        np.testing.assert_array_equal(found["all ROWS"], [[1, 2], [0, 0], [4, -1]])
        np.testing.assert_array_equal(found["counts"], [7, 0, 9])


def test_counts_that_their_dtype_does_not_hold_are_refused() -> None:
    value = Exchanged("count", "counts", TensorType(onnx.TensorProto.INT32, (1,)), Combined.TOTAL)

    def work(communicator: ThreadCommunicator) -> None:
        exchange = Exchange(communicator, [value])
        exchange.own["count"].array[...] = 2**30
        exchange(1, 0, None)

    with pytest.raises(StepError, match="all workers count 2147483648 elements, more than int32 holds"):
        together(2, work)
