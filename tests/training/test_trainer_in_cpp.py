"""The trainer in C++ beside that in Python, both on the function bodies: the same bits, files and messages."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backends
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import steps
from cpp_trainer import CppError, CppTrainer, library, program
from onnx import TensorProto, helper, numpy_helper
from test_several_steps import two_steps
from test_workers import scaled_step

import onnx_ops
from models.digit_training import HIDDEN
from models.line_reader import training as line_reader
from models.perceptron import perceptron_step
from onnx_ops.core.step_format import CARRIED_DOMAIN, CONDITIONS, INFERENCE, STEP_METADATA, WEIGHTS_METADATA
from onnx_ops.graph.light import delimited
from onnx_ops.integrations import sessions
from onnx_ops.runtime.process import STATE
from onnx_ops.training.checkpoints import open_checkpoint
from onnx_ops.training.step_files import prepare_step, save_step, step_model
from scripts.compiling import COMPILER, FLAGS, MissingError
from scripts.examples.cpp import files

Array = np.ndarray[Any, Any]
ELSEWHERE = {
    r"; convert it with .*": "",
    r"Trainer\(\.\.\., check_finite=False\)": "TrainerOptions::check_finite = false",
    r"is loaded by load_weights": "is loaded with strict = false",
}
"""What messages of Python say of Python, and what those of C++ have in its place."""

FILE_ERROR, MODEL_ERROR = 2, 3
HEADERS = Path(onnx_ops.include_directory())
PROGRAM = Path(files.__file__).with_name("train.cpp")

pytestmark = pytest.mark.filterwarnings("ignore:onnx_ops runs on function bodies")


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs on function bodies too; without compiler or onnxruntime's library the test is skipped."""
    try:
        library()
    except MissingError as missing:
        pytest.skip(str(missing))
    monkeypatch.setitem(STATE.shared, "library", (None, "no such library here"))
    monkeypatch.setattr(sessions, "_warned", set())


def both(model: onnx.ModelProto, folder: Path, **options: Any) -> tuple[onnx_ops.Trainer, CppTrainer]:
    """The trainers of a step with prepared graphs, in Python and in C++."""
    prepare_step(model, folder / "step.onnx")
    here = onnx_ops.Trainer(folder / "step.onnx", backends.options(), **options)
    return here, CppTrainer(folder / "step.onnx", **options)


def assert_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Names and their order, dtypes, shapes and every bit."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name


def refused(call: Callable[[], object], other: Callable[[], object]) -> str | None:
    """The message of Python for a call, which is that of C++; None if neither refuses it."""
    try:
        call()
    except onnx_ops.Error as error:
        message = str(error)
        for here, there in ELSEWHERE.items():
            message = re.sub(here, there, message)
        with pytest.raises(CppError, match=f"^{re.escape(message)}$"):
            other()
        return message
    other()
    return None


# --- steps ------------------------------------------------------------------------------------------------------------


def perceptron() -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    """The step of the digit classifier, and batches."""
    rng = np.random.default_rng(0)
    model = perceptron_step((64, *HIDDEN, 10))
    labels = np.eye(10, dtype=np.float32)
    return model, [
        {"x": rng.random((size, 64), np.float32), "labels": labels[rng.integers(10, size=size)]} for size in (64, 64, 7)
    ]


def reader() -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    """The step of the line reader, which was captured from PyTorch, and batches."""
    training = line_reader.TRAINING
    started, samples = training.started(0), training.samples(0)
    model = step_model(started.model, started.state, started.inference)
    return model, [{name: array[:size] for name, array in samples.items()} for size in (8, 8, 3)]


def linear(dtype: type = np.float32) -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    return steps.whole_step(dtype), [steps.batch(size, dtype, size) for size in (4, 4, 9)]


def evaluated() -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    return steps.step_with_evaluation(), [steps.batch(size, seed=size) for size in (4, 1, 5)]


@pytest.mark.parametrize(
    "make",
    [perceptron, pytest.param(reader, marks=pytest.mark.full), linear, lambda: linear(np.float64), evaluated],
    ids=["digits", "lines", "linear", "float64", "evaluation"],
)
def test_the_same_bits(make: Callable[[], tuple[onnx.ModelProto, list[dict[str, Array]]]], tmp_path: Path) -> None:
    """Over several steps, batch sizes and learning rates, of every output, the state, evaluation and prediction."""
    model, batches = make()
    here, there = both(model, tmp_path)
    assert_same(there.state_dict(), here.state_dict())
    assert list(there.batch_inputs) == list(here.batch_inputs)
    assert there.has_graphs == (here.has_inference_graph, here.has_evaluation_graph)
    first = {name: array for name, array in batches[0].items() if name in ("x", "images")}
    for number, batch in enumerate([*batches, *batches]):
        if number == 2:
            here.learning_rate = there.learning_rate = 0.03
            assert there.learning_rate == here.learning_rate
        for mode in ("eval", "train") if here.has_evaluation_graph else ("train",):
            assert_same(there.evaluate(mode, **batch), here.evaluate(mode, **batch))
        assert_same(there.step(**batch), here.step(**batch))
        assert_same(there.state_dict(), here.state_dict())
        broken = {name: np.full_like(a, np.nan) if a.dtype.kind == "f" else a for name, a in batch.items()}
        assert refused(functools.partial(here.step, **broken), functools.partial(there.step, **broken))
        assert_same(there.state_dict(), here.state_dict())
    assert_same(there.predict(**first), here.predict(**first))
    for trainer, name in ((here, "python.onnx"), (there, "cpp.onnx")):
        trainer.export(tmp_path / name)
    exported = [onnxruntime.InferenceSession(str(tmp_path / name)) for name in ("python.onnx", "cpp.onnx")]
    for array, expected in zip(*(session.run(None, first) for session in exported), strict=True):
        assert array.tobytes() == expected.tobytes()
    assert exported[0].get_inputs()[0].shape == exported[1].get_inputs()[0].shape
    onnx.checker.check_model(tmp_path / "cpp.onnx", full_check=True)
    weights = [onnx.load(tmp_path / name).graph.initializer for name in ("python.onnx", "cpp.onnx")]
    found = [{tensor.name: numpy_helper.to_array(tensor).tobytes() for tensor in tensors} for tensors in weights]
    assert found[0] == found[1]


def test_loss_that_is_not_checked(tmp_path: Path) -> None:
    here, there = both(steps.whole_step(), tmp_path, check_finite=False)
    batch = steps.batch() | {"x": np.full((4, 3), np.inf, np.float32)}
    assert_same(there.step(**batch), here.step(**batch))
    assert np.isnan(there.state_dict()["linear.weight"]).any()


def test_averages_are_exported(tmp_path: Path) -> None:
    here, there = both(steps.averaging_step(), tmp_path)
    x = {"x": np.array(1, np.float32)}
    for _ in range(2):
        assert_same(there.evaluate(**x), here.evaluate(**x))
        assert_same(there.step(**x), here.step(**x))
    for averaged, weight in ((False, 1), (True, 3)):
        there.export(tmp_path / "trained.onnx", averaged=averaged)
        assert onnxruntime.InferenceSession(str(tmp_path / "trained.onnx")).run(None, x) == [weight]
    here, there = both(steps.whole_step(inference=False), tmp_path)
    target = tmp_path / "none.onnx"
    assert refused(lambda: here.export(target), lambda: there.export(target))
    here, there = both(steps.whole_step(), tmp_path)
    assert refused(lambda: here.export(target, averaged=True), lambda: there.export(target, averaged=True))
    assert not target.exists()


# --- accumulated gradients, several steps -----------------------------------------------------------------------------


def called(trainer: Any, call: str, batch: dict[str, Array]) -> dict[str, Array]:
    """What `step` or `accumulate` of a trainer returns."""
    found: dict[str, Array] = getattr(trainer, call)(**batch)
    return found


@pytest.mark.parametrize(
    "make",
    [perceptron, pytest.param(reader, marks=pytest.mark.full), linear, lambda: linear(np.float64)],
    ids=["digits", "lines", "linear", "float64"],
)
def test_accumulated_gradients(
    make: Callable[[], tuple[onnx.ModelProto, list[dict[str, Array]]]], tmp_path: Path
) -> None:
    """The same bits as in Python of several updates, of batches of other sizes, with refused batches between them."""
    model, batches = make()
    here, there = both(model, tmp_path)
    for number, call in enumerate(["accumulate", "step", "accumulate", "accumulate", "step", "step", "accumulate"]):
        batch = batches[number % len(batches)]
        nan = {name: np.full_like(a, np.nan) if a.dtype.kind == "f" else a for name, a in batch.items()}
        for wrong in (nan, dict(list(batch.items())[:1])):
            assert refused(*(functools.partial(called, trainer, call, wrong) for trainer in (here, there)))
        assert_same(called(there, call, batch), called(here, call, batch))
        assert_same(there.state_dict(), here.state_dict())
    assert_same(there.step(), here.step())  # of the accumulated gradients alone
    assert_same(there.state_dict(), here.state_dict())
    for trainer in (here, there):
        trainer.accumulate(**batches[0])
        trainer.load_state_dict(trainer.state_dict())  # discards them
    assert refused(here.step, there.step)
    assert_same(there.step(**batches[1]), here.step(**batches[1]))
    assert_same(there.state_dict(), here.state_dict())


DRAWING = """
    size = Size (x)
    nought = Sub (size, size)
    drawn = Add (seed, nought)
"""


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("seed", [3, 2**40 + 5, -7])
def test_seeds_counters_and_rounding(dtype: str, seed: int, tmp_path: Path) -> None:
    """Each batch has a seed of its own, a buffer counts them, and gradients of 16 bits are rounded once."""
    here, there = both(scaled_step(dtype, body=DRAWING, drawn="int64"), tmp_path)
    rng = np.random.default_rng(0)
    for trainer in (here, there):
        trainer.load_state_dict({"seed": np.array(seed)}, strict=False)
    for call in ("accumulate", "accumulate", "accumulate", "step", "accumulate", "step"):
        batch = {"x": rng.normal(size=(2, 2)).astype(np.float16 if dtype == "float16" else np.float32)}
        assert_same(called(there, call, batch), called(here, call, batch))
        assert_same(there.state_dict(), here.state_dict())
    for trainer in (here, there):
        trainer.accumulate(**batch)
        calls = trainer.state_dict()["calls"]
        trainer.step()  # which has no further batch
        assert trainer.state_dict()["calls"] == calls
    assert_same(there.state_dict(), here.state_dict())


def test_conditions_of_accumulated_batches(tmp_path: Path) -> None:
    """A step that cannot be cut says why; one with conditions refuses a batch as it does in a step."""
    here, there = both(steps.conditional_step(), tmp_path)
    batch = steps.conditional_batches()[0]
    assert refused(lambda: here.accumulate(**batch), lambda: there.accumulate(**batch))
    onnx.save(steps.whole_step(), tmp_path / "step.onnx")
    with pytest.raises(CppError, match=r"no graphs for the accumulation of gradients: .*prepared=True"):
        CppTrainer(tmp_path / "step.onnx").accumulate(**steps.batch())


@pytest.mark.parametrize("check_finite", [True, False])
def test_loss_of_accumulated_batches(check_finite: bool, tmp_path: Path) -> None:
    here, there = both(scaled_step(), tmp_path, check_finite=check_finite)
    for value in (np.inf, 1):
        batch = {"x": np.full((1, 2), value, np.float32)}
        message = refused(lambda: here.accumulate(**batch), lambda: there.accumulate(**batch))  # noqa: B023
        assert bool(message) == (check_finite and value == np.inf)
    assert_same(there.step(**batch), here.step(**batch))
    assert_same(there.state_dict(), here.state_dict())


def test_several_steps(tmp_path: Path) -> None:
    """They share one state; checkpoints are those of Python."""
    paths = {name: tmp_path / f"{name}.onnx" for name in ("moving", "fixed")}
    for name, model in two_steps().items():
        prepare_step(model, paths[name])
    here, there = onnx_ops.Trainer(paths, backends.options()), CppTrainer(paths)
    for number, (name, call) in enumerate(
        [("moving", "step"), ("fixed", "step"), ("fixed", "accumulate"), ("moving", "step"), ("fixed", "step")]
    ):
        batch = steps.batch(1 + number, seed=number)
        assert_same(called(there[name], call, batch), called(here[name], call, batch))
        assert_same(there.state_dict(), here.state_dict())
        here[name].learning_rate = there[name].learning_rate = 0.25 / (1 + number)
        assert_same(there[name].predict(x=batch["x"]), here[name].predict(x=batch["x"]))
    for trainer, name in ((here, "here"), (there, "there")):
        trainer.save(tmp_path / name, {"epoch": "3"})
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
    there.load(tmp_path / "here")
    rates = {"fixed.learning_rate": np.array(-1, np.float32)}
    for use in (
        lambda trainer: trainer.step(**batch),
        lambda trainer: trainer.learning_rate,
        lambda trainer: trainer["other"],
        lambda trainer: trainer.load_state_dict(rates, strict=False),
    ):
        assert refused(lambda: use(here), lambda: use(there))  # noqa: B023
    changed = two_steps()["fixed"]
    for change in ("start", "role"):
        if change == "role":
            step = onnx_ops.Step.of(changed)
            onnx_ops.Step({**step.roles, "mean": onnx_ops.InputRole.PARAMETER}, step.tied).write_into(changed)
        else:
            tensor = next(tensor for tensor in changed.graph.initializer if tensor.name == "mean")
            tensor.CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), "mean"))
        onnx.save(changed, paths["fixed"])
        assert refused(*(functools.partial(make, paths) for make in (onnx_ops.Trainer, CppTrainer)))
    assert refused(*(functools.partial(make, {}) for make in (onnx_ops.Trainer, CppTrainer)))


def test_batch_dimension(tmp_path: Path) -> None:
    model = steps.whole_step()
    model.graph.input[-1].type.tensor_type.shape.dim[0].dim_param = "M"
    here, there = both(model, tmp_path)
    batch = steps.batch()
    assert refused(lambda: here.accumulate(**batch), lambda: there.accumulate(**batch))
    here, there = both(model, tmp_path, batch_dimension="M")
    assert_same(there.accumulate(**batch), here.accumulate(**batch))
    assert_same(there.step(**batch), here.step(**batch))
    assert_same(there.state_dict(), here.state_dict())
    path = tmp_path / "step.onnx"
    assert refused(*(lambda m=m: m(path, batch_dimension="K") for m in (onnx_ops.Trainer, CppTrainer)))


@pytest.mark.full
@pytest.mark.parametrize("header", [str(path.relative_to(HEADERS)) for path in sorted(HEADERS.rglob("*.hpp"))])
def test_header_compiles_by_itself(header: str, tmp_path: Path) -> None:
    source = tmp_path / "source.cpp"
    source.write_text(f"#include <{header}>\n")
    assert COMPILER is not None
    subprocess.run([COMPILER, *FLAGS, "-fsyntax-only", f"-I{HEADERS}", source], check=True, timeout=100)


EXPORTING = """
    #include <onnx_ops/trainer.hpp>
    int main(int, char **arguments) {
      using namespace onnx_ops::detail;
      const LightModel light = read_light(arguments[1]);
      const Message model(light.bytes);
      Contents contents(arguments[1], light);
      const Graph graph = *carried_graph(model, INFERENCE);
      Sources weights;
      for (const Message &tensor : model.messages(field::MODEL_GRAPH).at(0).messages(field::GRAPH_INITIALIZERS)) {
        const std::string name = tensor.text(field::TENSOR_NAME);
        if (graph.inputs.has(name)) weights.set(name, contents.source(tensor));
      }
      write_inference_model(arguments[2], graph, weights, 20000);
    }
    """


@pytest.mark.full
def test_external_data_of_exported_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models above a limit, here 20,000 bytes, have their large weights in the file that Python writes."""
    model, batches = perceptron()
    onnx.save(model, tmp_path / "step.onnx")
    source = tmp_path / "export.cpp"
    source.write_text(EXPORTING)
    subprocess.run([program(source), tmp_path / "step.onnx", tmp_path / "trained.onnx"], check=True, timeout=100)
    data = tmp_path / "trained.onnx.data"
    found = data.read_bytes()
    x = {"x": batches[0]["x"]}
    results = [onnxruntime.InferenceSession(str(tmp_path / "trained.onnx")).run(None, x)]
    record = [(entry.key, entry.value) for entry in onnx.load(tmp_path / "trained.onnx").metadata_props]
    onnx.checker.check_model(tmp_path / "trained.onnx", full_check=True)
    monkeypatch.setattr("onnx_ops.training.weights.MOST_BYTES", 20_000)
    onnx_ops.Trainer(tmp_path / "step.onnx", backends.options()).export(tmp_path / "trained.onnx")
    assert data.read_bytes() == found
    results.append(onnxruntime.InferenceSession(str(tmp_path / "trained.onnx")).run(None, x))
    assert results[0][0].tobytes() == results[1][0].tobytes()
    assert {entry for entry in record if entry[0] == WEIGHTS_METADATA} <= {
        (entry.key, entry.value) for entry in onnx.load(tmp_path / "trained.onnx").metadata_props
    }
    assert len(found) > 20_000


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_batches_that_are_refused(tmp_path: Path) -> None:
    """With the message of Python, and the state as before."""
    here, there = both(steps.whole_step(), tmp_path)
    batch, before = steps.batch(), here.state_dict()
    wrong: list[dict[str, Array]] = [
        {},
        {"x": batch["x"]},
        batch | {"z": batch["x"], "a": batch["x"]},
        batch | {"x": batch["x"][:2]},
        batch | {"x": batch["x"].astype(np.float64)},
        batch | {"x": batch["x"].astype(ml_dtypes.bfloat16)},
        batch | {"x": batch["x"][:, :2]},
        batch | {"x": batch["x"][0]},
        {name: array[:0] for name, array in batch.items()},
    ]
    for given in wrong:
        assert refused(lambda: here.step(**given), lambda: there.step(**given))  # noqa: B023
        assert refused(lambda: here.evaluate("train", **given), lambda: there.evaluate("train", **given))  # noqa: B023
        assert_same(there.state_dict(), before)
    no_samples = {"x": batch["x"][:0]}
    assert_same(there.predict(**no_samples), here.predict(**no_samples))
    assert refused(lambda: here.predict(**batch), lambda: there.predict(**batch))
    assert refused(lambda: here.evaluate(**batch), lambda: there.evaluate(**batch))
    assert refused(lambda: here.evaluate("test", **batch), lambda: there.evaluate("test", **batch))  # type: ignore[arg-type]
    for rate in (-1.0, np.nan, np.inf, 1e300, -0.1, 0.0, 1e-50):

        def change(trainer: Any, rate: float = rate) -> None:
            trainer.learning_rate = rate

        assert bool(refused(lambda: change(here), lambda: change(there))) == (rate not in (0.0, 1e-50))
        assert there.learning_rate == here.learning_rate
    here, there = both(steps.averaging_step(), tmp_path)
    with pytest.raises(CppError, match="the step has no seed: it draws no random numbers"):
        _ = there.seed
    assert refused(lambda: here.learning_rate, lambda: there.learning_rate)


def test_seed(tmp_path: Path) -> None:
    here, there = both(steps.whole_step(), tmp_path)
    for seed in (7, 0, 2**63 - 2, -(2**63)):
        there.seed = seed
        here.load_state_dict({"seed": np.array(seed)}, strict=False)
        assert_same(there.step(**steps.batch()), here.step(**steps.batch()))
        assert there.seed == seed + 1 == here.state_dict()["seed"]


def test_indices_and_sizes_out_of_range(tmp_path: Path) -> None:
    here, there = both(steps.indexing_step(), tmp_path)
    messages = set()
    for batch in steps.index_batches():
        message = refused(lambda: here.step(**batch), lambda: there.step(**batch))  # noqa: B023
        messages.add(re.sub(r"\[.*\] is -?\d+|is int64.*, expected", "", message or ""))
        assert_same(there.state_dict(), here.state_dict())
    assert len(messages) == 6, messages  # of bounds, of each range, and none


def test_one_sample_where_the_statistics_of_a_batch_need_two(tmp_path: Path) -> None:
    here, there = both(steps.step_of_batch_norm(), tmp_path)
    batch = steps.batch(1)
    assert_same(there.evaluate(**batch), here.evaluate(**batch))
    assert_same(there.predict(x=batch["x"]), here.predict(x=batch["x"]))
    assert refused(lambda: here.evaluate("train", **batch), lambda: there.evaluate("train", **batch))
    assert refused(lambda: here.step(**batch), lambda: there.step(**batch))


def test_sizes_that_are_no_multiple(tmp_path: Path) -> None:
    here, there = both(steps.multiples_step(), tmp_path)
    messages = [
        refused(lambda: here.step(**batch), lambda: there.step(**batch))  # noqa: B023
        for batch in steps.multiple_batches()
    ]
    assert_same(there.state_dict(), here.state_dict())
    *wrong, three, four = messages
    assert all(wrong)
    assert {three, four} == {None}
    assert "expected float32 (2*pairs + 1, 2) for a number pairs" in str(wrong[0])
    assert "expected float32 (pairs, 1) with pairs = 3 as in 'x'" in str(wrong[3])


def test_conditions(tmp_path: Path) -> None:
    here, there = both(steps.conditional_step(), tmp_path)
    messages = set()
    for batch in steps.conditional_batches(1.1, 1 / 3):
        for method, mode in (("evaluate", ["eval"]), ("evaluate", ["train"]), ("step", [])):
            calls = [lambda t=t: getattr(t, method)(*mode, **batch) for t in (here, there)]  # noqa: B023
            messages.add(refused(*calls))
            assert_same(there.state_dict(), here.state_dict())
    assert len(messages) == 18, messages


# --- states and checkpoints -------------------------------------------------------------------------------------------


def test_checkpoints_are_those_of_python(tmp_path: Path) -> None:
    """The same bytes of the same state, for every dtype, and whatever the names."""
    state = steps.stored_state([(3,), (0, 2), ()])
    names = ("10", "9", "\x7f", 'a "b"\\\n', "größe", "\uff5e", "\U0001f600", "\x01'")
    state |= {name: np.full(2, number, np.float32) for number, name in enumerate(names)}
    state["bfloat16"] = np.arange(3).astype(ml_dtypes.bfloat16)
    here, there = both(step_model(steps.carrying_step(state), state), tmp_path)
    metadata = {"epoch": "3", "2": "\x7f\u2028", "größe": "\U0001f600"}
    paths = [tmp_path / "python.safetensors", tmp_path / "cpp.safetensors"]
    for trainer, path in ((here, paths[0]), (there, paths[1])):
        trainer.step()
        trainer.save(path, metadata)
        trainer.step()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert here.load(paths[1]) == metadata
    there.load(paths[0])
    assert {key: there.metadata(key) for key in metadata} == metadata
    assert there.metadata("onnx_ops.sha256") is None
    assert_same(there.state_dict(), here.state_dict())
    assert there.state_dict()["count"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpp.safetensors", "python.safetensors", "step.onnx"]


def test_states_that_do_not_fit(tmp_path: Path) -> None:
    """They are refused with the message of Python; what strict=False takes, both take."""
    here, there = both(steps.whole_step(), tmp_path)
    here.step(**steps.batch())
    state, path = here.state_dict(), tmp_path / "here.safetensors"
    there.load_state_dict(state)
    assert_same(there.state_dict(), state)
    for wrong in (
        {},
        {name: array for name, array in state.items() if name != "seed"},
        state | {"other": state["mean"]},
        state | {"mean": state["mean"].astype(np.float64)},
        state | {"mean": state["mean"][:2]},
        state | {"head.weight": state["linear.weight"] + 1},
        state | {"learning_rate": np.array(np.nan, np.float32)},
        state | {"learning_rate": np.array(-1, np.float32)},
    ):
        assert refused(lambda: here.load_state_dict(wrong), lambda: there.load_state_dict(wrong))  # noqa: B023
        assert_same(there.state_dict(), state)
    tied = {name: array for name, array in state.items() if name != "linear.weight"}
    tied["head.weight"] = state["linear.weight"] * 2
    for given, strict in (({"mean": state["mean"] + 1, "other": state["mean"]}, False), (tied, True), (tied, False)):
        here.load_state_dict(given, strict=strict)
        there.load_state_dict(given, strict=strict)
        assert_same(there.state_dict(), here.state_dict())
        assert_same(there.step(**steps.batch()), here.step(**steps.batch()))
    here.save(path, frozen=False)
    there.save(tmp_path / "there.safetensors", frozen=False)
    assert path.read_bytes() == (tmp_path / "there.safetensors").read_bytes()


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    here, there = both(steps.whole_step(), tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    here.save(path)
    good, before = path.read_bytes(), here.state_dict()
    header = json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")])
    here.save_weights(path)
    weights = path.read_bytes()

    def headed(text: str) -> bytes:
        encoded = text.encode()
        return len(encoded).to_bytes(8, "little") + encoded

    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    files = [
        good[:-1] + bytes([good[-1] ^ 1]),
        good.replace(b'"1.1"', b'"3.0"'),
        good.replace(b'"1.1"', b'"1.x"'),
        good.replace(b'"F32"', b'"F33"'),
        good.replace(b'"F32"', b'"F64"'),
        good[:-1],
        b"",
        good[:9],
        weights,
        headed(json.dumps({"a": entry})) + bytes(4),
        headed(json.dumps({"a": entry, "b": entry})) + bytes(4),
        *(
            headed(text)
            for text in ("[]", "{", '{"a"', '{"a":', '{"a":1', '{"a":"\\x"}', "", "nul", '{"a":1} 2', '{"a":"b')
        ),
        *(headed(json.dumps({"__metadata__": wrong})) for wrong in ([1], {"a": 1}, None)),
        *(headed(json.dumps({"a": entry | wrong})) for wrong in ({"dtype": 1}, {"shape": [-1]}, {"shape": [1.5]})),
        headed(json.dumps(header)[:-1] + ', "é": {"shape": [true, null, "ü"]}}'),
    ]
    messages = set()
    for content in files:
        path.write_bytes(content)
        for strict in (True, False):
            calls = [lambda t=t: t.load(path, strict=strict) for t in (here, there)]  # noqa: B023
            messages.add(refused(*calls))
    assert len(messages) > 25, messages
    here.load_state_dict(before)
    for missing in (tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(OSError, match=r"\[Errno \d+\] \w+") as caught:
            here.load(missing)
        expected = f"[Errno {caught.value.errno}] {caught.value.strerror}: '{missing}'"
        with pytest.raises(CppError, match=f"^{re.escape(expected)}$") as found:
            there.load(missing)
        assert found.value.kind == FILE_ERROR
    assert refused(lambda: here.save(tmp_path), lambda: there.save(tmp_path))
    (tmp_path / "link").symlink_to(path)
    assert refused(lambda: here.save(tmp_path / "link"), lambda: there.save(tmp_path / "link"))
    with pytest.raises(CppError, match="No such file or directory") as found:
        there.save(tmp_path / "nowhere" / "file")
    assert found.value.kind == FILE_ERROR


# --- step files -------------------------------------------------------------------------------------------------------


def large_step() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A step with a state whose tensors are above the sizes from which they are left in files, and with zeros."""
    state = steps.stored_state([(40_000,)])
    state["zeros"] = np.zeros(2**19, np.float32)
    return steps.carrying_step(state), state


@pytest.mark.parametrize("external", [False, True], ids=["one file", "two files"])
def test_files_of_steps(external: bool, tmp_path: Path) -> None:
    model, state = large_step()
    constant = numpy_helper.from_array(np.arange(20_000, dtype=np.float32), "constant")
    model.graph.initializer.append(constant)
    model.graph.node.append(helper.make_node("ReduceMax", ["constant"], ["most"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("most", TensorProto.FLOAT, ()))
    save_step(model, state, None, tmp_path / "step.onnx", external=external)
    here, there = (make(tmp_path / "step.onnx") for make in (onnx_ops.Trainer, CppTrainer))
    assert_same(there.state_dict(), here.state_dict())
    assert_same(there.step(), here.step())
    assert there.evaluate("train")["most"] == 19_999
    assert_same(there.state_dict(), here.state_dict())
    if external:
        weights = tmp_path / "step.safetensors"
        good = weights.read_bytes()
        save_step(model, {**state, "count": np.array(1, np.float32)}, None, tmp_path / "other.onnx", external=True)
        other = (tmp_path / "other.safetensors").read_bytes()
        for content in (other, good[:100], good[:-1], b""):
            weights.write_bytes(content)
            assert refused(*(lambda m=m: m(tmp_path / "step.onnx") for m in (onnx_ops.Trainer, CppTrainer)))
        weights.unlink()
        assert refused(*(lambda m=m: m(tmp_path / "step.onnx") for m in (onnx_ops.Trainer, CppTrainer)))


def test_frozen_weights_in_a_shared_file(tmp_path: Path) -> None:
    bare = steps.bare_step()
    kept = [value for value in bare.graph.output if value.name != "next.mean"]
    del bare.graph.output[:]
    bare.graph.output.extend(kept)
    path = tmp_path / "step.onnx"
    save_step(bare, steps.start(), steps.inference_graph(), path, external=False, frozen="base.safetensors")
    here, there = onnx_ops.Trainer(path, backends.options()), CppTrainer(path)
    assert_same(there.step(**steps.batch()), here.step(**steps.batch()))
    assert_same(there.state_dict(), here.state_dict())
    for trainer, name in ((here, "here"), (there, "there")):
        trainer.save(tmp_path / name, frozen=False)
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
    assert refused(lambda: here.load(tmp_path / "here"), lambda: there.load(tmp_path / "here"))


def test_files_that_are_no_steps(tmp_path: Path) -> None:
    """With the messages of Python, but for those of protobuf."""
    path = tmp_path / "step.onnx"
    good = steps.conditional_step()
    metadata = next(entry for entry in good.metadata_props if entry.key == STEP_METADATA)
    record = json.loads(metadata.value)
    condition = record["conditions"][0]
    number = condition["numbers"][0]
    texts = [
        "",
        "[]",
        "{}",
        "{'a'}",
        '{"roles": {}, "tied": {}, "format": 1}',
        *(json.dumps({**record, **wrong}) for wrong in (
            {"roles": []},
            {"roles": {"weight": 1}},
            {"roles": {"weight": "father"}},
            {"roles": {"other": "parameter"}},
            {"roles": {"weight": "seed"}},
            {"roles": {"numbers": "setting", "weight": "parameter"}},
            {"roles": {}},
            {"roles": {"weight": "optimizer"}, "tied": {"head": "weight"}},
            {"tied": {"x": "weight"}},
            {"tied": {"y": 5}},
            {"bounds": 5},
            {"bounds": {"N": {"min": 3, "max": 2}}},
            {"bounds": {"N": {"min": None, "max": [1.5, True, "a'b"]}}},
            {"bounds": {"N": {"min": 2, "max": None, "worker_min": 3}}},
            {"ranges": {}},
            {"ranges": [{"input": "x", "low": 0}]},
            {"ranges": [{"input": "x", "low": 0, "high": 1.5}]},
            {"ranges": [{"input": "x", "low": 0, "high": 3, "cuts": [[1]]}]},
            {"ranges": [{"input": "x", "low": 0, "high": 3}]},
            {"ranges": [{"input": "weight", "low": 0, "high": 3}]},
            {"conditions": 1},
            {"conditions": [1]},
            {"conditions": [condition | {"line": 3}]},
            {"conditions": [condition | {"numbers": [number | {"kind": "complex", "captured": "it's"}]}]},
            {"conditions": record["conditions"][:2]},
            {"conditions": [*record["conditions"][:3], condition | {"numbers": [number | {"place": 4}]}]},
            {"format": "3.0"},
            {"format": "2"},
        )),
    ]  # fmt: skip
    messages = set()
    for text in texts:
        metadata.value = text
        onnx.save(good, path)
        messages.add(refused(*(lambda m=m: m(path) for m in (onnx_ops.Trainer, CppTrainer))))
    assert None not in messages
    assert len(messages) >= 30, messages
    good = steps.conditional_step()
    for change in (
        lambda model: model.graph.output.pop([v.name for v in model.graph.output].index(CONDITIONS)),
        lambda model: model.graph.output[-1].type.tensor_type.shape.dim.pop(),
        lambda model: model.graph.initializer.pop(),
        lambda model: model.graph.initializer[0].dims.append(1),
        lambda model: model.graph.initializer.append(numpy_helper.from_array(np.zeros(2), "weight")),
        lambda model: model.metadata_props.pop(),
        lambda model: model.ClearField("graph"),
        lambda model: setattr(model.graph.node[0], "op_type", "Nothing"),
    ):
        model = onnx.ModelProto()
        model.CopyFrom(good)
        change(model)
        onnx.save(model, path)
        assert refused(*(lambda m=m: m(path) for m in (onnx_ops.Trainer, CppTrainer))), change
    whole = good.SerializeToString()
    rng = np.random.default_rng(0)
    for _ in range(300):  # damaged files are refused or read, whatever the bytes
        wrong = bytearray(whole[: rng.integers(len(whole))] if rng.integers(2) else whole)
        for place in rng.integers(len(wrong) or 1, size=rng.integers(1, 4) if wrong else 0):
            wrong[place] = rng.integers(256)
        path.write_bytes(wrong)
        with contextlib.suppress(CppError):
            CppTrainer(path)
    nested = onnx.NodeProto(op_type="Identity").SerializeToString()
    for _ in range(20_000):  # nodes in graphs in attributes of nodes
        nested = delimited(5, delimited(6, delimited(1, nested)))
    carried = onnx.FunctionProto(domain=CARRIED_DOMAIN, name=INFERENCE).SerializeToString() + delimited(7, nested)
    for content, problem in (
        (b"no model", "no field has the wire type 6"),
        (b"", "there is no graph in it"),
        (whole + delimited(25, carried), "graphs in it are nested more than 100 deep"),
    ):
        path.write_bytes(content)
        with pytest.raises(CppError, match=f"^{re.escape(str(path))} is no ONNX model: {problem}$") as found:
            CppTrainer(path)
        assert found.value.kind == MODEL_ERROR


# --- kernels ----------------------------------------------------------------------------------------------------------


def test_library_of_custom_ops(tmp_path: Path) -> None:
    """It is registered with the sessions of the trainer."""
    source = tmp_path / "ops.cpp"
    source.write_text("""
        static int registered = 0;
        extern "C" int count(void) { return registered; }
        extern "C" void *RegisterCustomOps(void *, const void *) { ++registered; return nullptr; }
        """)
    path = program(source, "-shared", "-fPIC")
    onnx.save(steps.whole_step(), tmp_path / "step.onnx")
    trainer = CppTrainer(tmp_path / "step.onnx", kernels=path)
    assert np.isfinite(trainer.step(**steps.batch())["loss"])
    assert ctypes.CDLL(str(path)).count() == 1
    with pytest.raises(CppError, match=r"missing\.so"):
        CppTrainer(tmp_path / "step.onnx", kernels=tmp_path / "missing.so")


# --- the program ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "steps", "read"), [pytest.param("digits", 300, 90.0, marks=pytest.mark.full), ("lines", 3, 0.0)]
)
def test_program(name: str, steps: int, read: float, tmp_path: Path) -> None:
    """It ends in the state of Python, bit for bit."""
    files.write({"digits": files.digit_classifier, "lines": files.line_reader}[name](epochs=3), tmp_path)
    done = subprocess.run(
        [program(PROGRAM), tmp_path, str(steps)], capture_output=True, text=True, check=True, timeout=100
    )
    assert float(re.findall(r"read correctly: (.*) %", done.stdout)[0]) >= read
    data = {own: np.asarray(tensor) for own, tensor in open_checkpoint(tmp_path / "data.safetensors")[0].items()}
    trainer = onnx_ops.Trainer(tmp_path / "step.onnx", backends.options(threads=0))
    learned = {own.removeprefix("learned."): array for own, array in data.items() if own.startswith("learned.")}
    for order, rate in zip(data["order"][:steps], data["learning_rates"], strict=False):
        trainer.learning_rate = rate
        trainer.step(**{own: array[order] for own, array in learned.items()})
    expected = trainer.state_dict()
    trainer.load(tmp_path / "state.safetensors")
    assert_same(trainer.state_dict(), expected)
    assert onnx.load(tmp_path / "trained.onnx").graph.initializer


def test_program_that_fails(tmp_path: Path) -> None:
    done = subprocess.run([program(PROGRAM), tmp_path], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"[Errno 2] No such file or directory: '{tmp_path / 'step.onnx'}'\n"
