"""`fit`: its data, what it computes, validation, early stopping, checkpoints and logs, and what it refuses."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import steps
from backends import assert_same_bits, kernel_options
from linear_oracle import Oracle, State

import onnx_ops
from onnx_ops import CosineAnnealingLR, Epoch, LinearLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepError, Trainer
from onnx_ops.core.types import TensorType
from onnx_ops.fitting.columns import converted
from onnx_ops.fitting.fit import Files, Options, complete, prepared
from onnx_ops.fitting.monitoring import Monitor
from onnx_ops.fitting.run import Checkpoint
from onnx_ops.fitting.samples import Samples
from onnx_ops.fitting.sources import open_table
from onnx_ops.training.safetensors_format import write_safetensors
from onnx_ops.training.step_files import step_model
from scripts.trainings import threads

SAMPLES = 20
HELD_OUT = 7


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return steps.step_with_evaluation()


@pytest.fixture
def trainer(model: onnx.ModelProto) -> Trainer:
    return Trainer(model, kernel_options())


def held_out() -> State:
    return steps.batch(HELD_OUT, seed=9)


def assert_same_states(one: Trainer, other: Trainer) -> None:
    states = one.state_dict(), other.state_dict()
    for name in states[0]:
        assert_same_bits(states[0][name], states[1][name])


def expected(epochs: int, rates: Callable[[int], float], size: int = 8) -> tuple[Oracle, list[float], list[float]]:
    """The training by its formulas, on shuffled samples; losses of training and validation."""
    oracle, whole, losses, validations = Oracle.of(steps.start()), steps.batch(SAMPLES), [], []
    number = 0
    for epoch in range(epochs):
        order, total = np.random.default_rng([3, epoch]).permutation(SAMPLES), 0.0
        for chosen in np.split(order, range(size, SAMPLES, size)):
            oracle.state["learning_rate"] = np.array(rates(number))
            total += float(oracle.step(whole["x"][chosen], whole["y"][chosen])["loss"]) * len(chosen)
            number += 1
        losses.append(total / SAMPLES)
        before = oracle.state
        validations.append(float(oracle.step(held_out()["x"], held_out()["y"])["loss"]))
        oracle.state = before
    return oracle, losses, validations


def test_training_and_validation_follow_the_formulas(trainer: Trainer) -> None:
    """Under a schedule over the whole training, whose batches have 8, 8 and 4 samples."""
    history = onnx_ops.fit(
        trainer,
        steps.batch(SAMPLES),
        validation=held_out(),
        epochs=3,
        batch_size=8,
        seed=3,
        schedule=SequentialLR((LinearLR(0.5, 1.0, 2), CosineAnnealingLR()), (2,)),
        progress=False,
    )

    def rate(number: int) -> float:
        return 0.5 * (0.5 + 0.25 * number) if number < 2 else 0.25 * (1 + math.cos(math.pi * (number - 2) / 7))

    oracle, losses, validations = expected(3, rate)
    # Nine steps in float32, sums of at most eight numbers of size 1.
    np.testing.assert_allclose([epoch.training["loss"] for epoch in history], losses, rtol=2e-6)
    np.testing.assert_allclose([epoch.validation["loss"] for epoch in history], validations, rtol=2e-6)
    np.testing.assert_allclose([epoch.learning_rate for epoch in history], [[rate(k)] for k in (2, 5, 8)], rtol=1e-7)
    assert [epoch.steps for epoch in history] == [3, 6, 9]
    for name, array in trainer.state_dict().items():
        np.testing.assert_allclose(array, oracle.state[name], rtol=2e-6, atol=2e-6, err_msg=name)


def test_several_batches_in_a_step(model: onnx.ModelProto) -> None:
    """Make the step of a larger batch, except for buffers."""
    model = step_model(steps.whole_step(changes_mean=False), steps.start())
    one, other = Trainer(model, kernel_options()), Trainer(model, kernel_options())
    options = {"epochs": 2, "seed": 3, "progress": False}
    first = onnx_ops.fit(one, steps.batch(SAMPLES), batch_size=8, **options)
    second = onnx_ops.fit(other, steps.batch(SAMPLES), batch_size=4, accumulate=2, **options)
    assert [epoch.steps for epoch in second] == [3, 6]
    np.testing.assert_allclose(second[1].training["loss"], first[1].training["loss"], rtol=2e-6)
    for name, array in other.weights().items():
        np.testing.assert_allclose(array, one.weights()[name], rtol=2e-6, atol=2e-6)


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("size", [None, 8, 3 * SAMPLES])
def test_evaluation_is_the_mean_over_the_samples(size: int | None, mode: Any, trainer: Trainer) -> None:
    """With a last batch of 4 samples, and with a batch size that is larger than the data."""
    onnx_ops.fit(trainer, steps.batch(SAMPLES), progress=False)
    before = trainer.state_dict()
    found = onnx_ops.evaluate(trainer, steps.batch(SAMPLES), batch_size=size, mode=mode)
    whole = Oracle.of(before).step(**steps.batch(SAMPLES))["loss"]
    assert list(found) == ["loss"]
    np.testing.assert_allclose(found["loss"], whole, rtol=2e-6)  # float32, sums of at most 60 numbers of size 1
    for name, array in trainer.state_dict().items():
        assert_same_bits(array, before[name])
    batches = [{name: array[part] for name, array in steps.batch(SAMPLES).items()} for part in (slice(8), slice(8, 20))]
    np.testing.assert_allclose(onnx_ops.evaluate(trainer, batches, mode=mode)["loss"], whole, rtol=2e-6)


def test_remainder_is_dropped_where_the_step_fixes_the_batch_size() -> None:
    trainer = Trainer(steps.whole_step(samples=8), kernel_options())
    whole = steps.batch(SAMPLES)
    found = onnx_ops.evaluate(trainer, whole, mode="train")
    used = onnx_ops.evaluate(trainer, {name: array[:16] for name, array in whole.items()}, mode="train")
    assert found == used
    with pytest.raises(StepError, match="the batch size is 4, expected 8, as the step takes no other"):
        onnx_ops.evaluate(trainer, whole, batch_size=4, mode="train")
    with pytest.raises(StepError, match="the data has 7 samples, expected at least 8"):
        onnx_ops.evaluate(trainer, steps.batch(7), mode="train")


@pytest.mark.parametrize("shape", [("N",), None])
def test_number_for_each_sample_is_no_metric(shape: Any) -> None:
    """Though it is a single number in the last batch, of one sample."""
    bare = steps.bare_step()
    bare.graph.node.append(onnx.helper.make_node("Constant", [], ["axes"], value_ints=[1]))
    bare.graph.node.append(onnx.helper.make_node("ReduceMax", ["logits", "axes"], ["score"], keepdims=0))
    bare.graph.output.append(onnx.helper.make_tensor_value_info("score", onnx.TensorProto.FLOAT, shape))
    trainer = Trainer(step_model(bare, steps.start()), kernel_options())
    data, options = steps.batch(9), {"batch_size": 4, "validation_mode": "train"}
    (epoch,) = onnx_ops.fit(trainer, data, validation=data, progress=False, **options)
    assert list(epoch.metrics) == ["loss", "validation.loss"]


@pytest.mark.parametrize(
    ("data", "options", "problem"),
    [
        (steps.batch(0), {}, "the data has 0 samples, expected at least 1"),
        ([], {}, "the data have no batches to evaluate, expected at least one"),
        ([steps.batch(0)], {}, r"batch 1 of the evaluation: the batch has no samples: 'x' is float32 \(0, 3\)"),
        ([steps.batch()], {"batch_size": 3}, "batch_size is 3, but the data are an iterable"),
        ({"x": steps.batch()["x"]}, {}, r"the data lacks 'y' \(float32 \(N, 2\)\)"),
        (steps.batch(), {"mode": "test"}, "the mode is 'test', expected 'eval' or 'train'"),
        (steps.batch(), {"step": "first"}, "there is no step 'first'"),
    ],
)
def test_what_is_not_evaluated(data: Any, options: dict[str, Any], problem: str, trainer: Trainer) -> None:
    with pytest.raises(StepError, match=problem):
        onnx_ops.evaluate(trainer, data, **options)


def test_batches_without_samples(trainer: Trainer) -> None:
    """Have no loss, and predictions for none."""
    for mode in ("eval", "train"):
        with pytest.raises(StepError, match=r"the batch has no samples: 'x' is float32 \(0, 3\); expected at least 1"):
            trainer.evaluate(mode, **steps.batch(0))
    assert trainer.predict(x=steps.batch(0)["x"])["probabilities"].shape == (0, 2)


# --- data -------------------------------------------------------------------------------------------------------------


def as_npz(path: Path, arrays: State) -> Any:
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


def as_folder(path: Path, arrays: State) -> Any:
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return str(path)


def as_safetensors(path: Path, arrays: State) -> Any:
    write_safetensors(path / "data.safetensors", arrays, {})
    return path / "data.safetensors"


def as_arrow(arrays: State) -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {name: pyarrow.array(list(array)) for name, array in arrays.items()}
    return pyarrow.table(columns | {"remark": ["text"] * len(arrays["x"])})


def as_parquet(path: Path, arrays: State) -> Any:
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(as_arrow(arrays), path / "data.parquet", row_group_size=6)
    return path / "data.parquet"


def as_parquet_folder(path: Path, arrays: State) -> Any:
    parquet = pytest.importorskip("pyarrow.parquet")
    for number, part in enumerate((slice(0, 9), slice(9, None))):
        parquet.write_table(as_arrow({n: a[part] for n, a in arrays.items()}), path / f"{number}.parquet")
    return path


def as_data_set(path: Path, arrays: State) -> Any:
    return pytest.importorskip("datasets").Dataset(as_arrow(arrays))


def as_saved_data_set(path: Path, arrays: State) -> Any:
    as_data_set(path, arrays).save_to_disk(path / "saved", num_shards=2)
    return path / "saved"


EACH_FORM = pytest.mark.parametrize(
    "form",
    [
        *(as_npz, as_folder, as_safetensors),
        *(as_parquet, as_parquet_folder, as_data_set, as_saved_data_set),
    ],
)


@EACH_FORM
def test_data_in_each_form_are_the_same(
    form: Callable[[Path, State], Any], model: onnx.ModelProto, tmp_path: Path
) -> None:
    arrays = steps.batch(SAMPLES)
    one, other = Trainer(model, kernel_options()), Trainer(model, kernel_options())
    options = {"validation": held_out(), "epochs": 2, "batch_size": 8, "seed": 1, "progress": False}
    assert onnx_ops.fit(one, arrays, **options) == onnx_ops.fit(other, form(tmp_path, arrays), **options)
    assert_same_states(one, other)


def test_batches_of_iterables(model: onnx.ModelProto) -> None:
    """Lists, functions of the epoch, and iterables that are told the epoch; each with and without a known length."""
    whole, told = steps.batch(SAMPLES), []

    def batches(epoch: int) -> Iterator[State]:
        order = np.random.default_rng([3, epoch]).permutation(SAMPLES)
        for chosen in np.split(order, [8, 16]):
            yield {name: array[chosen] for name, array in whole.items()}

    class Told:
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

        def __iter__(self) -> Iterator[State]:
            return batches(told[-1])

        def __len__(self) -> int:
            return 3

    results = []
    for data, options in (
        (whole, {"batch_size": 8, "seed": 3}),
        (batches, {}),
        (Told(), {}),
    ):
        trainer = Trainer(model, kernel_options())
        schedule = CosineAnnealingLR(6 if data is batches else None)
        history = onnx_ops.fit(trainer, data, epochs=2, schedule=schedule, progress=False, **options)
        results.append((history, trainer))
    assert told == [0, 1]
    for history, trainer in results[1:]:
        assert history == results[0][0]
        assert_same_states(trainer, results[0][1])
    trainer = Trainer(model, kernel_options())
    assert onnx_ops.fit(trainer, iter(list(batches(0))), progress=False)[0].steps == 3


def test_arrays_that_are_converted(model: onnx.ModelProto) -> None:
    arrays = steps.batch(SAMPLES)
    rounded = {"x": arrays["x"].astype(ml_dtypes.bfloat16), "y": arrays["y"].astype(np.int8)}
    one, other = Trainer(model, kernel_options()), Trainer(model, kernel_options())
    onnx_ops.fit(one, {name: array.astype(np.float32) for name, array in rounded.items()}, progress=False)
    onnx_ops.fit(other, rounded, cast=True, progress=False)
    assert_same_states(one, other)


def test_folders_are_not_read_whole(tmp_path: Path) -> None:
    """A file of 4 GB, most of which is a hole."""
    shape = (2**12, 2**18)
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, shape)[:4, :2] = 1
    inputs = {"x": TensorType(onnx.TensorProto.FLOAT, ("N", 2**18))}
    table = open_table(tmp_path, "the data", inputs)
    assert table is not None
    samples = Samples.of(table, inputs, 4)
    assert (samples.count, samples.steps) == (2**12, 2**10)
    batch = next(samples.epoch(None, 0))
    assert batch.arrays["x"].shape == (4, 2**18)
    assert batch.arrays["x"].sum() == 8


# --- early stopping, checkpoints --------------------------------------------------------------------------------------


def test_monitor() -> None:
    assert Monitor("loss").best([3.0, math.nan, 1.0, 1.0]) == 2
    assert Monitor("accuracy", "max").best([0.1, 0.9, 0.5]) == 1
    assert Monitor("loss").best([math.nan]) is None
    assert Monitor("loss").epochs_without_improvement([3, 2, 2, math.nan, 2.5], 0.0) == 3
    assert Monitor("loss").epochs_without_improvement([3.0, 2.75, 2.5], 0.5) == 2
    assert Monitor("loss").epochs_without_improvement([3.0, 2.75, 2.25], 0.5) == 0
    assert Monitor("accuracy", "max").epochs_without_improvement([0.5, 0.6, 0.6], 0.0) == 1


def test_training_stops_early_and_keeps_the_best(trainer: Trainer, tmp_path: Path) -> None:
    """With validation data of which some labels are wrong, so that the loss rises."""
    best, last = tmp_path / "best", tmp_path / "last"
    held = held_out()
    held["y"][:3] = 1 - held["y"][:3]
    options: dict[str, Any] = {"validation": held, "checkpoint": last, "best": best}
    history = onnx_ops.fit(trainer, steps.batch(SAMPLES), epochs=50, patience=3, **options, progress=False)
    losses = [epoch.validation["loss"] for epoch in history]
    lowest = int(np.argmin(losses))
    assert lowest > 0
    assert len(history) == lowest + 4 < 50
    assert trainer.evaluate(**held)["loss"] == np.float32(losses[-1])
    again = Trainer(steps.step_with_evaluation(), kernel_options())
    again.load(best)
    assert again.evaluate(**held)["loss"] == np.float32(losses[lowest])
    again.load(last)
    assert_same_states(again, trainer)
    # A training that has stopped is not continued, unless it may wait for longer.
    more = onnx_ops.fit(again, steps.batch(SAMPLES), epochs=50, patience=3, **options, resume=True, progress=False)
    assert more == history
    more = onnx_ops.fit(again, steps.batch(SAMPLES), epochs=50, patience=4, **options, resume=True, progress=False)
    assert more[: len(history)] == history
    assert len(more) > len(history)


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        SequentialLR((LinearLR(0.5, 1.0, 2), CosineAnnealingLR()), (2,)),
        ReduceLROnPlateau(patience=0, threshold=0.5),
    ],
    ids=["none", "warm-up", "plateau"],
)
@pytest.mark.parametrize(
    ("accumulate", "every"), [(2, 4), *(pytest.param(1, n, marks=pytest.mark.full) for n in (1, 4))], ids=str
)
def test_resuming_gives_the_same_bits(
    accumulate: int, every: int, schedule: Any, model: onnx.ModelProto, tmp_path: Path
) -> None:
    """From every few steps, at each place in an epoch: schedule, shuffling, early stopping, best epoch included."""
    if accumulate > 1:
        model = step_model(steps.whole_step(changes_mean=False), steps.start())
    mode = "train" if accumulate > 1 else "eval"
    options = Options(4, 4, accumulate, seed=2, learning_rate=2.0, schedule=schedule, validation_mode=mode, patience=2)

    def start(name: str, resumed: bool = False) -> tuple[Any, Files]:
        (tmp_path / name).mkdir(exist_ok=True)
        folder = tmp_path / name
        files = Files.of(folder / "last", folder / "best", [folder / "log.csv", folder / "log.jsonl"], None)
        given = Options(validation_mode=mode) if resumed else options
        checkpoint = files.resumed(resumed)
        return prepared(Trainer(model, kernel_options()), steps.batch(SAMPLES), held_out(), given, checkpoint), files

    whole, files = start("whole")
    complete(whole, files)
    total = whole.done
    assert total == whole.epoch * (5 if accumulate == 1 else 3)
    for stop in range(0, total + 1, every):
        name = f"stopped_{stop}"
        first, files = start(name)
        complete(first, files, interrupted=lambda first=first, stop=stop: first.done >= stop)
        second, files = start(name, resumed=True)
        assert second.done == stop
        complete(second, files)
        assert second.history == whole.history
        assert_same_states(second.trainer, whole.trainer)
        for file in ("last", "best", "log.csv", "log.jsonl"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


def test_a_new_learning_rate_is_the_start_of_the_schedule(model: onnx.ModelProto, tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path / "last", "progress": False}
    schedule = CosineAnnealingLR(4)
    onnx_ops.fit(Trainer(model, kernel_options()), steps.batch(4), schedule=schedule, learning_rate=1.0, **options)
    trainer = Trainer(model, kernel_options())
    history = onnx_ops.fit(trainer, steps.batch(4), epochs=3, learning_rate=0.5, resume=True, **options)
    height = [1.0, 0.5 * (1 + math.cos(math.pi / 4)) / 2, 0.25]
    np.testing.assert_allclose([epoch.learning_rate[0] for epoch in history], height, rtol=1e-7)


# --- logs -------------------------------------------------------------------------------------------------------------


def logged(model: onnx.ModelProto, **options: Any) -> list[Epoch]:
    trainer = Trainer(model, kernel_options())
    return onnx_ops.fit(trainer, steps.batch(4), validation=held_out(), epochs=3, progress=False, **options)


def test_logs(model: onnx.ModelProto, tmp_path: Path) -> None:
    history = logged(model, logs=[tmp_path / "log.csv", str(tmp_path / "log.jsonl")])
    rows = [
        {
            "epoch": number,
            "steps": number,
            "learning_rate": 0.5,
            "loss": epoch.training["loss"],
            "validation.loss": epoch.validation["loss"],
        }
        for number, epoch in enumerate(history, 1)
    ]
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == rows
    with (tmp_path / "log.csv").open(newline="") as file:
        assert [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)] == rows


def test_log_of_tensorboard(model: onnx.ModelProto, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = logged(model, tensorboard=tmp_path / "runs")
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"train/loss", "validation/loss", "learning_rate", "steps"}
    found = [(event.step, event.value) for event in events.Scalars("validation/loss")]
    assert found == [(number, np.float32(epoch.validation["loss"])) for number, epoch in enumerate(history, 1)]


def test_epochs_are_printed(model: onnx.ModelProto, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(model, kernel_options())
    (epoch,) = onnx_ops.fit(trainer, steps.batch(4), validation=held_out(), schedule=OneCycleLR(0.5))
    losses = f"loss {epoch.training['loss']:.6g}, validation.loss {epoch.validation['loss']:.6g}"
    assert capsys.readouterr().out == f"epoch 1 of 1: learning_rate {epoch.learning_rate[0]:.6g}, {losses}\n"


# --- several steps, workers -------------------------------------------------------------------------------------------


def test_one_of_several_steps(model: onnx.ModelProto) -> None:
    both = Trainer({"first": model, "second": model}, kernel_options())
    alone = Trainer(model, kernel_options())
    history = onnx_ops.fit(
        both, steps.batch(SAMPLES), step="second", epochs=2, schedule=CosineAnnealingLR(), progress=False
    )
    assert history == onnx_ops.fit(alone, steps.batch(SAMPLES), epochs=2, schedule=CosineAnnealingLR(), progress=False)
    assert_same_bits(both.weights()["linear.weight"], alone.weights()["linear.weight"])
    assert both["first"].learning_rate == 0.5
    with pytest.raises(StepError, match="the trainer has the steps 'first', 'second'"):
        onnx_ops.fit(both, steps.batch(SAMPLES))


def test_workers_take_parts_of_the_batches(tmp_path: Path) -> None:
    """Batches of 7, 7 and 6 samples, of which three workers take 3, 2 and 2, or 2 each."""
    model = steps.step_with_evaluation()
    options: dict[str, Any] = {"validation": held_out(), "epochs": 2, "batch_size": 7, "progress": False}

    def work(communicator: Any) -> tuple[list[Epoch], State]:
        trainer = Trainer(model, communicator=communicator)
        history = onnx_ops.fit(
            trainer, steps.batch(SAMPLES), checkpoint=tmp_path / "last", logs=[tmp_path / "log.csv"], **options
        )
        for problem, data, more in (
            ("are an iterable, of which workers cannot take parts", [steps.batch()], {}),
            ("not counted over workers", steps.batch(SAMPLES), {"accumulate": 2}),
        ):
            with pytest.raises(StepError, match=problem):
                onnx_ops.fit(trainer, data, **more)
        return history, trainer.state_dict()

    alone = Trainer(model)
    history = onnx_ops.fit(alone, steps.batch(SAMPLES), **options)
    found = threads.together(3, work)
    for other, state in found:
        assert other == found[0][0]
        for name, array in state.items():
            assert_same_bits(array, found[0][1][name])
            np.testing.assert_allclose(array, alone.state_dict()[name], rtol=2e-6, atol=2e-6)
    for epoch, theirs in zip(history, found[0][0], strict=True):
        np.testing.assert_allclose(list(theirs.metrics.values()), list(epoch.metrics.values()), rtol=2e-6)
    assert len(Checkpoint.read(tmp_path / "last").record.epochs) == 2
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "options", "problem"),
    [
        (3, {}, "the data are a int, expected arrays by name, a path, a data set, an iterable of batches"),
        ({}, {}, r"the data lacks 'x' \(float32 \(N, 3\)\), 'y'"),
        ([], {}, "the data have no batches, expected at least one"),
        ([steps.batch(), steps.batch(0)], {}, r"step 2 of epoch 1: the batch has no samples: 'x' is float32 \(0, 3\)"),
        ([3], {}, "a batch of the data is a int, expected a mapping of names to arrays"),
        ([{"x": 1}], {}, r"step 1 of epoch 1: the batch lacks 'y'"),
        (steps.batch(0), {}, "the data has 0 samples, expected at least 1"),
        (steps.batch() | {"y": [1]}, {}, r"'y' of the data is a list, expected an array, float32 \(N, 2\)"),
        (
            steps.batch() | {"y": np.zeros((4, 2))},
            {},
            r"'y' of the data is float64 \(4, 2\), expected float32 \(N, 2\); convert it with .*, or pass cast=True",
        ),
        (
            steps.batch() | {"y": np.zeros((4, 3), np.float32)},
            {},
            r"'y' of the data is float32 \(4, 3\), expected float32",
        ),
        (steps.batch() | {"y": np.zeros(4, np.float32)}, {}, r"'y' of the data is float32 \(4,\), expected float32"),
        (
            steps.batch() | {"y": np.zeros((5, 2), np.float32)},
            {},
            "the arrays of the data have different numbers of sam",
        ),
        (steps.batch(), {"validation": steps.batch(0)}, "the validation data has 0 samples"),
        (steps.batch(), {"validation": []}, "the data have no batches to evaluate"),
        (steps.batch(), {"validation": [steps.batch(), steps.batch(0)]}, "batch 2 of the evaluation: the batch has no"),
        (steps.batch(), {"epochs": -1}, "the number of epochs is -1, expected a whole number of at least 0"),
        (steps.batch(), {"epochs": 1.5}, "the number of epochs is 1.5, expected a whole number of at least 0"),
        (steps.batch(), {"batch_size": 0}, "the batch size is 0, expected a whole number of at least 1"),
        (steps.batch(), {"batch_size": "4"}, "the batch size is '4', expected a whole number of at least 1"),
        (
            steps.batch(),
            {"validation": steps.batch(), "validation_mode": "x"},
            "the validation mode is 'x'",
        ),
        (steps.batch(), {"seed": -1}, "the seed is -1, expected a whole number of at least 0"),
        (steps.batch(), {"schedule": "cosine"}, "the schedule is 'cosine', expected one such as onnx_ops.Cosine"),
        (lambda epoch: None, {}, "the data are a function that returned a NoneType, expected the iterable of an epoch"),
        (
            steps.batch(),
            {"accumulate": 0},
            "the number of batches in a step is 0, expected a whole number",
        ),
        (steps.batch(), {"patience": 0}, "the patience is 0, expected a whole number of at least 1"),
        (steps.batch(), {"min_delta": -1.0}, "min_delta is -1.0, expected a number of at least 0"),
        (steps.batch(), {"monitor": "accuracy"}, "no metric 'accuracy' to monitor, expected one of 'loss'"),
        (steps.batch(), {"monitor": "logits"}, "no metric 'logits' to monitor, expected one of 'loss'"),
        (steps.batch(), {"mode": "low"}, "the mode is 'low', expected 'min' or 'max'"),
        (steps.batch(), {"mode": "max", "schedule": ReduceLROnPlateau()}, "has mode='min', but 'loss' has mode='max'"),
        (
            iter([steps.batch()]),
            {"schedule": CosineAnnealingLR()},
            "CosineAnnealingLR goes over the whole training, whose",
        ),
        (iter([steps.batch()]), {"epochs": 2}, "the data are an iterator, which ends with the first epoch"),
        ([steps.batch()], {"batch_size": 3}, "batch_size is 3, but the data are an iterable"),
        ([steps.batch()], {"cast": True}, "cast is True, but the data are an iterable"),
        (steps.batch(), {"logs": ["log.txt"]}, "the log is log.txt, expected a file .csv or .jsonl"),
        (steps.batch(), {"checkpoint": "nowhere/last"}, "there is no folder nowhere"),
        (steps.batch(), {"best": "."}, "cannot write .: it is no regular file"),
        (steps.batch(), {"checkpoint": "last", "best": "last"}, "last is to be written, but it is also written with"),
        (steps.batch(), {"checkpoint": "log.csv", "logs": ["log.csv"]}, "log.csv is to be written, but it is also wri"),
        ("data", {"checkpoint": "data"}, "data is to be written, but it is also read: name another file"),
        (steps.batch(), {"validation": "data", "best": "data"}, "data is to be written, but it is also read"),
        (steps.batch(), {"resume": True}, "a training is resumed from its checkpoint, and there is no path of one"),
    ],
)
def test_what_is_refused(
    data: Any, options: dict[str, Any], problem: str, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StepError, match=problem):
        onnx_ops.fit(trainer, data, progress=False, **options)


def test_options_may_be_numbers_of_numpy(model: onnx.ModelProto, tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path / "last", "progress": False}
    schedule = LinearLR(np.float32(0.5), np.float64(1), np.int64(3))  # type: ignore[arg-type]
    numbers = {"batch_size": np.int64(2), "seed": np.int64(3), "patience": np.int32(2), "min_delta": np.float32(0.5)}
    for epochs in (1, 2):
        trainer = Trainer(model, kernel_options())
        found = onnx_ops.fit(
            trainer, steps.batch(), epochs=np.int64(epochs), schedule=schedule, resume=epochs > 1, **numbers, **options
        )
        assert len(found) == epochs


def test_integers_that_do_not_fit_are_not_converted() -> None:
    with pytest.raises(StepError, match="'y' has 300, which int8 does not have"):
        converted("y", np.array([3, 300]), np.dtype(np.int8))
    with pytest.raises(StepError, match="'y' has -1, which uint64 does not have"):
        converted("y", np.array([3, -1]), np.dtype(np.uint64))


def test_step_without_evaluation_graph_is_not_validated() -> None:
    trainer = Trainer(steps.whole_step(), kernel_options())
    with pytest.raises(StepError, match=r"the step has no evaluation graph: .* or use validation_mode='train'"):
        onnx_ops.fit(trainer, steps.batch(), validation=steps.batch())
    with pytest.raises(StepError, match=r"the step has no evaluation graph: .* or use mode='train' \(--mode train\) "):
        onnx_ops.evaluate(trainer, steps.batch())
    (epoch,) = onnx_ops.fit(trainer, steps.batch(), validation=held_out(), validation_mode="train", progress=False)
    expected_loss = trainer.evaluate("train", **held_out())["loss"]
    np.testing.assert_allclose(epoch.validation["loss"], expected_loss, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"seed": 1}, "the seed is 1, expected 0, as in the training that is resumed"),
        ({"shuffle": False}, "the shuffling is False, expected True"),
        ({"accumulate": 2}, "the number of batches in a step is 2, expected 1"),
        ({"schedule": LinearLR()}, "the schedule is {'name': 'LinearLR', .*}, expected {'name': 'CosineAnnealingLR', "),
        ({"epochs": 3}, "the number of steps of the whole training, over which the schedule goes, is 3, expected 2"),
        ({"mode": "max"}, "the better end of the monitored metric is max, expected min"),
        ({"validation": held_out(), "monitor": "validation.loss"}, "the monitored metric is validation.loss, expected"),
    ],
)
def test_training_with_other_settings_is_not_resumed(
    change: dict[str, Any], problem: str, model: onnx.ModelProto, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"epochs": 2, "checkpoint": tmp_path / "last", "progress": False}
    onnx_ops.fit(Trainer(model, kernel_options()), steps.batch(), schedule=CosineAnnealingLR(), **options)
    with pytest.raises(StepError, match=problem):
        onnx_ops.fit(Trainer(model, kernel_options()), steps.batch(), resume=True, **options | change)


def no_array(path: Path) -> None:
    path.write_bytes(b"\x93NUMPY" + bytes(20))


def cut(path: Path) -> None:
    np.save(path, np.zeros((4, 3), np.float32))
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("write", [no_array, cut, empty])
def test_broken_files_of_a_folder(write: Callable[[Path], None], trainer: Trainer, tmp_path: Path) -> None:
    as_folder(tmp_path, steps.batch())
    write(tmp_path / "x.npy")
    with pytest.raises(StepError, match=r"x\.npy is no \.npy file: "):
        onnx_ops.fit(trainer, tmp_path)


def test_no_trainer(tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"the trainer is a str, expected an onnx_ops\.Trainer"):
        onnx_ops.fit("step.onnx", steps.batch())  # type: ignore[arg-type]


def test_folders_without_data(trainer: Trainer, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"has no \.npy files; expected a file \.npz, "):
        onnx_ops.fit(trainer, tmp_path)
    with pytest.raises(FileNotFoundError):
        onnx_ops.fit(trainer, tmp_path / "data.npz")
    np.save(tmp_path / "z.npy", np.zeros(3))
    with pytest.raises(StepError, match=r"lacks 'x' .*, 'y' .* and has 'z', where the step wants 'x', 'y'"):
        onnx_ops.fit(trainer, tmp_path)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (["a"] * 4, "'x' of .* is of Arrow's type string, expected numbers"),
        ([[1.0] * 3, [1.0] * 2] * 2, "'x' of .* has (lists of 2 to 3 elements|rows of shapes .*), expected"),
        ([[1.0] * 3, None] * 2, r"'x' of .* has \d missing values, expected none"),
        ([[1.0, 2.0, None]] * 4, r"'x' of .* has \d missing values, expected none"),
        (np.ones((4, 3)), r"'x' of .* is float64 \(4, 3\), expected float32 \(N, 3\)"),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "data set"])
def test_columns_that_are_refused(column: Any, problem: str, form: str, trainer: Trainer, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    if isinstance(column, np.ndarray):
        values = pyarrow.array(list(column))
    else:
        values = pyarrow.array(column, None if "a" in column else pyarrow.list_(pyarrow.float32()))
    table = pyarrow.table({"x": values, "y": list(steps.batch()["y"])})
    if form == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, tmp_path / "data.parquet")
        data: Any = tmp_path / "data.parquet"
    else:
        data = pytest.importorskip("datasets").Dataset(table)
    with pytest.raises(StepError, match=problem):
        onnx_ops.fit(trainer, data, progress=False)


def test_what_needs_a_package_names_it(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "datasets", "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    (tmp_path / "data.parquet").touch()
    with pytest.raises(StepError, match=r"data\.parquet needs pyarrow, which is not installed: pip install 'onnx-ops"):
        onnx_ops.fit(trainer, tmp_path / "data.parquet")
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / name).touch()
    with pytest.raises(StepError, match="needs datasets, which is not installed"):
        onnx_ops.fit(trainer, tmp_path)
    with pytest.raises(StepError, match="needs tensorboard, which is not installed"):
        onnx_ops.fit(trainer, steps.batch(), tensorboard=tmp_path)
