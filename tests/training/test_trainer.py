"""The trainer: its steps against the formulas, what it refuses, its state, checkpoints and the trained model."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import gc
import pickle
import platform
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import built_library
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import steps
from backends import BFLOAT16, LIBRARY, WITH_KERNELS, Backend, assert_close, assert_same_bits, kernel_options, options
from linear_oracle import Oracle, State
from onnx import TensorProto, helper, parser

from onnx_ops import StepError, Trainer, inline
from onnx_ops.core.step_format import InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Builder
from onnx_ops.integrations import prebuilt
from onnx_ops.training import checkpoints, freed_memory, step_sessions
from onnx_ops.training.step import Bounds, Step
from onnx_ops.training.step_files import step_model
from scripts.memory.peaks import STATUS, resident
from scripts.trainings.threads import ThreadCommunicator

WEIGHT = "linear.weight"
STATE = tuple(steps.start())
# Twenty steps with sums of at most eight products each; weights and losses are of size 1.
TOLERANCES = {np.float32: 2e-6, np.float64: 1e-14}


@pytest.fixture
def model() -> onnx.ModelProto:
    return steps.whole_step()


@pytest.fixture
def trainer(model: onnx.ModelProto) -> Trainer:
    return Trainer(model, kernel_options())


def assert_same_state(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    assert list(one) == list(other)
    for name in one:
        assert_same_bits(one[name], other[name])


def save(model: onnx.ModelProto, path: Path, *, external: bool) -> None:
    copy = onnx.load_model_from_string(model.SerializeToString())  # onnx takes the data out of what it saves
    onnx.save_model(copy, path, save_as_external_data=external, location="weights.bin", size_threshold=0)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not STATUS.exists(), reason="reads the address space of the process as Linux counts it")
def test_sessions_of_large_parameters_begin_with_a_region_for_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the largest parameter, 6 floats, as a power of two; none that is smaller than the least."""
    region = 128
    monkeypatch.setattr(step_sessions, "new_heap", lambda options: None)
    monkeypatch.setattr(step_sessions, "LEAST_REGION", region)
    asked: list[int] = []
    monkeypatch.setattr(step_sessions, "reserving", lambda size: asked.append(size) or contextlib.nullcontext())
    Trainer(steps.whole_step(), kernel_options())
    monkeypatch.setattr(step_sessions, "LEAST_REGION", region + 1)
    Trainer(steps.whole_step(), kernel_options())
    assert asked == [region, 0]


@pytest.mark.skipif(not STATUS.exists(), reason="reads the address space of the process as Linux counts it")
@pytest.mark.parametrize("backend", WITH_KERNELS, ids=str)
def test_a_region_takes_address_space_but_no_memory(
    backend: Backend, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = 1 << 30
    batch = steps.batch(3)
    monkeypatch.setattr(step_sessions, "new_heap", lambda options: None)
    monkeypatch.setenv(prebuilt.VARIABLE, str(built_library.library()) if backend is LIBRARY else "")
    usual = Trainer(model)
    expected = usual.step(**batch)
    before, space = resident(), address_space()
    monkeypatch.setattr(step_sessions, "first_region", lambda _: region)
    trainer = Trainer(model)
    assert address_space() - space >= region
    assert_same_state(trainer.step(**batch), expected)
    assert_same_state(trainer.state_dict(), usual.state_dict())
    assert resident() - before < region // 8  # 1/32 is written for the bookkeeping of the arena


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a function of glibc")
def test_free_pages_of_the_heap_are_returned_once_a_session_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages between blocks in use, which glibc keeps otherwise."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    size, count = 1 << 14, 2000  # smaller than what glibc allocates pages for
    freed: list[int] = []
    returned = freed_memory.return_freed_memory

    def return_freed_memory() -> None:
        blocks = [libc.malloc(size) for _ in range(count)]
        for block in blocks:
            ctypes.memset(block, 1, size)
        for block in blocks[:-1]:
            libc.free(block)
        before = resident()
        returned()
        freed.append(before - resident())
        libc.free(blocks[-1])

    monkeypatch.setattr("onnx_ops.training.step_sessions.return_freed_memory", return_freed_memory)
    Trainer(steps.whole_step(), kernel_options())
    assert not freed  # a small model
    monkeypatch.setattr("onnx_ops.training.step_sessions.LARGE", 0)
    Trainer(steps.whole_step(), kernel_options())
    assert len(freed) == 1
    assert freed[0] > size * count // 2


def address_space() -> int:
    """Bytes of the process's address space (VmSize)."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmSize:"))
    return int(line.split()[1]) * 1024


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_steps_follow_the_formulas(dtype: type) -> None:
    """With batches of all sizes."""
    tolerance = TOLERANCES[dtype]
    trainer, oracle = Trainer(steps.whole_step(dtype), kernel_options()), Oracle.of(steps.start(dtype))
    for number in range(20):
        batch = steps.batch(1 + number % 8, dtype, seed=number)
        reported, expected = trainer.step(**batch), oracle.step(**batch)
        assert list(reported) == ["loss", "logits"]
        for name, array in reported.items():
            wanted = np.asarray(expected[name], dtype)
            assert_close(array, wanted, rtol=tolerance, atol=tolerance, what=f"{name} of step {number}")
    state = trainer.state_dict()
    assert tuple(state) == STATE
    for name in state:
        assert_close(state[name], oracle.state[name].astype(state[name].dtype), rtol=tolerance, atol=tolerance)
    assert state["seed"] == 27


def test_what_was_reported_stays_as_it_was(trainer: Trainer) -> None:
    first = trainer.step(**steps.batch())
    copies = {name: array.copy() for name, array in first.items()}
    for _ in range(4):
        trainer.step(**steps.batch(seed=1))
    assert_same_state(first, copies)


def test_what_is_reported_is_the_callers_own() -> None:
    """Also where a step reports an input or a constant, whose memory onnxruntime hands out."""
    vector = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("w", "x", "two", "next.w")]
    two = helper.make_tensor("two", TensorProto.FLOAT, [2], [2, 2])
    twice = helper.make_node("Mul", ["w", "two"], ["next.w"])
    graph = helper.make_graph([twice], "doubling", vector[:2], vector, [two])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Step({"w": InputRole.PARAMETER}).write_into(model)
    trainer = Trainer(step_model(model, {"w": np.ones(2, np.float32)}), kernel_options())
    x, kept = np.float32([3, 3]), []
    for _ in range(4):
        kept.append(trainer.step(x=x))
        kept[-1]["two"][...] += 1
    x[...] = 0
    found = [[reported[name][0] for name in ("w", "x", "two")] for reported in kept]
    assert found == [[1, 3, 3], [2, 3, 3], [4, 3, 3], [8, 3, 3]]


def test_state_is_updated_in_place(trainer: Trainer) -> None:
    places = {name: tensor.array.ctypes.data for name, tensor in trainer._state.now.items()}
    for _ in range(2):
        trainer.step(**steps.batch())
        assert {name: tensor.array.ctypes.data for name, tensor in trainer._state.now.items()} == places


def test_previous_state_is_in_another_place(model: onnx.ModelProto) -> None:
    """What has no next value is in one."""
    trainer, places = Trainer(model, kernel_options(), keep_previous=True), []
    for _ in range(5):
        places.append({name: tensor.array.ctypes.data for name, tensor in trainer._state.now.items()})
        trainer.step(**steps.batch())
    assert places[0] == places[2] == places[4]
    assert places[1] == places[3]
    assert {name for name in STATE if places[0][name] == places[1][name]} == {"learning_rate"}


def test_two_trainers_of_one_step_know_nothing_of_each_other(model: onnx.ModelProto) -> None:
    one, other = Trainer(model, kernel_options()), Trainer(model, kernel_options())
    one.step(**steps.batch())
    assert_same_state(other.state_dict(), steps.start())


@dataclass
class Capture:
    """A step in memory."""

    model: onnx.ModelProto
    state: State
    inference: onnx.ModelProto | None
    evaluation: None = None


@pytest.mark.parametrize("kind", ["path", "text path", "bytes", "capture", "capture of a whole step", "external data"])
def test_steps_come_from_files_and_memory(kind: str, tmp_path: Path, model: onnx.ModelProto) -> None:
    path = tmp_path / "step.onnx"
    save(model, path, external=kind == "external data")
    assert (tmp_path / "weights.bin").exists() == (kind == "external data")
    step: Any = {
        "text path": str(path),
        "bytes": model.SerializeToString(),
        "capture": Capture(steps.bare_step(), steps.start(), steps.inference_graph()),
        "capture of a whole step": Capture(model, steps.start(), steps.inference_graph()),
    }.get(kind, path)
    trainer, batch = Trainer(step, kernel_options()), steps.batch()
    assert_same_state(trainer.step(**batch), Trainer(model, kernel_options()).step(**batch))
    trainer.export(tmp_path / "trained.onnx")


def test_step_of_standard_operators_alone_trains_the_same(model: onnx.ModelProto) -> None:
    """But for roundings: the ops are other ones."""
    plain, trainer = Trainer(inline(model), kernel_options()), Trainer(model, kernel_options())
    for number in range(3):
        batch = steps.batch(seed=number)
        assert_close(plain.step(**batch)["loss"], trainer.step(**batch)["loss"], rtol=2e-6)
    assert plain.has_inference_graph


def test_step_is_left_as_it_was(model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    Trainer(model, kernel_options()).step(**steps.batch())
    assert model.SerializeToString(deterministic=True) == before


def test_model_without_a_start_is_refused() -> None:
    with pytest.raises(StepError, match=r"the state lacks 'linear.weight' \(float32 \(3, 2\)\)"):
        Trainer(steps.bare_step())


def test_checkpoint_of_another_step_is_refused(model: onnx.ModelProto, tmp_path: Path) -> None:
    """The message has the file, and ten names at most."""
    trainer, path = Trainer(model, kernel_options()), tmp_path / "other"
    others = {f"layer{i:02}": np.zeros(1, np.float32) for i in range(99)}
    checkpoints.write_checkpoint(path, trainer.state_dict() | others, {})
    found = re.escape(f"{path}: the state has 'layer00', 'layer01', ")
    with pytest.raises(StepError, match=rf"^{found}.* 'layer09' and 89 more, where the step wants 'linear.weight', "):
        trainer.load(path)


def test_model_with_its_data_elsewhere_is_refused(tmp_path: Path, model: onnx.ModelProto) -> None:
    path = tmp_path / "step.onnx"
    save(model, path, external=True)
    with pytest.raises(StepError, match="has its data in another file, which is found only if the path is given"):
        Trainer(onnx.load_model(path, load_external_data=False))


def test_model_of_no_step_is_refused() -> None:
    with pytest.raises(StepError, match="the step is a list, expected a path, a model, its bytes or a capture"):
        Trainer([steps.whole_step()])
    with pytest.raises(StepError, match="the model is no training step: its metadata have no entry"):
        Trainer(steps.inference_graph())


def test_a_step_that_fails_leaves_the_state_as_it_was() -> None:
    trainer = Trainer(steps.gather_step(), kernel_options())
    trainer.step(i=np.array([0]))
    for _ in range(2):
        with pytest.raises(Exception, match="indices element out of data bounds"):
            trainer.step(i=np.array([5]))
        assert trainer.state_dict()["w"].tolist() == [2, 4]
    assert trainer.step(i=np.array([1]))["loss"] == 8
    assert trainer.state_dict()["w"].tolist() == [4, 8]


def test_error_of_a_kernel_names_op_and_input() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
        gate (float[2] w, float[N] x) => (float[M] loss) {
            [gate] loss = aclnn.HardshrinkBackward (w, x)
        }""")
    Step({"w": InputRole.PARAMETER}).write_into(model)
    trainer = Trainer(step_model(model, {"w": np.float32([1, 2])}), kernel_options())
    with pytest.raises(Exception, match=r"HardshrinkBackward: input 'self' has shape \(3,\).*node 'gate'"):
        trainer.step(x=np.zeros(3, np.float32))
    assert trainer.step(x=np.ones(2, np.float32))["loss"].tolist() == [1, 2]


def test_step_without_next_values_reports_the_same_each_time() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        gradient (float[2] w, float[2] x) => (float[2] grad) { grad = Mul (w, x) }""")
    Step({"w": InputRole.PARAMETER}).write_into(model)
    trainer = Trainer(step_model(model, {"w": np.float32([1, 2])}), kernel_options())
    assert [trainer.step(x=np.float32([3, 4]))["grad"].tolist() for _ in range(3)] == [[3, 8]] * 3


def test_next_values_that_are_other_inputs() -> None:
    """Two parameters that change places, as they are and in another shape: neither is overwritten before it is read."""
    b = Builder()
    flat, square = TensorType(TensorProto.FLOAT, (4,)), TensorType(TensorProto.FLOAT, (2, 2))
    one, two, three = (b.input(name, tensor) for name, tensor in (("a", flat), ("b", flat), ("c", square)))
    b.output("loss", b.op("ReduceSum", one, keepdims=0), TensorType(TensorProto.FLOAT, ()))
    b.output("next.a", two, flat)
    b.output("next.b", b.op("Reshape", three, [4]), flat)
    b.output("next.c", b.op("Reshape", one, [2, 2]), square)
    model = helper.make_model(b.graph("turns"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Step(dict.fromkeys("abc", InputRole.PARAMETER)).write_into(model)
    state = {"a": np.full(4, 1, np.float32), "b": np.full(4, 2, np.float32), "c": np.full((2, 2), 3, np.float32)}
    trainer = Trainer(step_model(model, state), kernel_options())
    seen = [tuple(array.flat[0] for array in trainer.state_dict().values()) for _ in range(4) if trainer.step()]
    assert seen == [(2, 3, 1), (3, 1, 2), (1, 2, 3), (2, 3, 1)]


def half_step(dtype: int) -> onnx.ModelProto:
    """A step of parameters of 16 bits, computed in float32; the names of its batch are no identifiers."""
    b = Builder()
    vector = TensorType(dtype, (2,))
    weight = b.input("w", vector)
    rate = b.input("learning_rate", TensorType(TensorProto.FLOAT, ()))
    x = b.input("batch.x", TensorType(dtype, ("N", 2)))
    factor = b.input("self", TensorType(dtype, ()))
    product = b.op("ReduceMean", x.cast(TensorProto.FLOAT), [0], keepdims=0) * factor.cast(TensorProto.FLOAT)
    b.output("next.w", (weight.cast(TensorProto.FLOAT) - rate * product).cast(dtype), vector)
    b.output("grad.w", product.cast(dtype), vector)
    model = helper.make_model(b.graph("half"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Step({"w": InputRole.PARAMETER, "learning_rate": InputRole.SETTING}).write_into(model)
    return model


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_state_and_batch_of_16_bits(dtype: type, tmp_path: Path) -> None:
    """All numbers here are exact in both dtypes."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    start = {"w": np.array([1, 2], dtype), "learning_rate": np.array(0.5, np.float32)}
    trainer = Trainer(step_model(half_step(element), start), kernel_options())
    batch = {"batch.x": np.array([[1, 2], [3, 6]], dtype), "self": np.array(2, dtype)}
    for expected in ([-1, -2], [-3, -6]):
        assert_same_bits(trainer.step(**batch)["grad.w"], np.array([4, 8], dtype))
        assert_same_bits(trainer.state_dict()["w"], np.array(expected, dtype))
    trainer.save(tmp_path / "half.safetensors")
    again = Trainer(step_model(half_step(element), start), kernel_options())
    again.load(tmp_path / "half.safetensors")
    assert_same_state(again.state_dict(), trainer.state_dict())


# --- batches ----------------------------------------------------------------------------------------------------------


def with_batch(**changes: Any) -> dict[str, Any]:
    return {name: array for name, array in {**steps.batch(), **changes}.items() if array is not None}


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (with_batch(y=None), r"the batch lacks 'y' \(float32 \(N, 2\)\)$"),
        (with_batch(z=np.zeros(1)), r"the batch has 'z', where the step wants 'x', 'y'$"),
        (
            with_batch(y=None, z=np.zeros(1)),
            r"the batch lacks 'y' \(float32 \(N, 2\)\) and has 'z', where the step wants 'x', 'y'$",
        ),
        (
            with_batch(x=np.zeros((4, 3))),
            r"'x' is float64 \(4, 3\), expected float32 \(N, 3\); convert it with"
            r" numpy.asarray\(..., numpy.float32\)$",
        ),
        (with_batch(x=np.zeros((4, 3), ">f4")), r"'x' is >f4 \(4, 3\), expected float32 \(N, 3\)"),
        (with_batch(x=[[0.0] * 3] * 4), r"'x' is a list, expected float32 \(N, 3\); .*numpy.float32\)$"),
        (with_batch(x=np.zeros((4, 2), np.float32)), r"'x' is float32 \(4, 2\), expected float32 \(N, 3\)$"),
        (with_batch(x=np.zeros(3, np.float32)), r"'x' is float32 \(3,\), expected float32 \(N, 3\)$"),
        (with_batch(x=np.ma.zeros((4, 3), np.float32)), r"'x' is a masked array, float32 \(4, 3\), expected "),
        (steps.batch(0), r"the batch has no samples: 'x' is float32 \(0, 3\); expected at least 1$"),
        (with_batch(x=np.full((4, 3), np.nan, np.float32)), "'loss' is nan, and the state is as before the step"),
        (with_batch(x=np.full((4, 3), -np.inf, np.float32)), "'loss' is nan, and the state is as before the step"),
        (
            with_batch(y=np.zeros((5, 2), np.float32)),
            r"'y' is float32 \(5, 2\), expected float32 \(N, 2\) with N = 4 as in 'x'$",
        ),
    ],
)
def test_batch_that_does_not_fit_is_refused(trainer: Trainer, batch: dict[str, Any], problem: str) -> None:
    with pytest.raises(StepError, match=problem):
        trainer.step(**batch)
    assert_same_state(trainer.state_dict(), steps.start())
    trainer.step(**steps.batch())


def test_onnxruntime_logs_nothing_of_a_step_that_is_refused(
    model: onnx.ModelProto, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not even where the state is updated in place, and a node that fails ends the step before the first update."""
    trainer = Trainer(model)
    with pytest.raises(StepError, match="'loss' is nan"):
        trainer.step(**with_batch(x=np.full((4, 3), np.nan, np.float32)))
    assert "onnxruntime" not in capfd.readouterr().err


def test_steps_of_any_loss_can_be_wanted(model: onnx.ModelProto) -> None:
    trainer = Trainer(model, kernel_options(), check_finite=False)
    assert np.isnan(trainer.step(**with_batch(x=np.full((4, 3), np.nan, np.float32)))["loss"])
    assert np.isnan(trainer.state_dict()[WEIGHT]).all()


def test_sizes_beyond_the_bounds_of_a_step_are_refused() -> None:
    """A single worker's; of workers, those of the ones that have samples."""
    model = steps.bare_step()
    Step(steps.ROLES, bounds={"N": Bounds(4, 6)}).write_into(model)
    model = step_model(model, steps.start())
    trainers = (
        Trainer(model, kernel_options()),
        Trainer(model, kernel_options(), communicator=ThreadCommunicator.alone()),
    )
    for trainer in trainers:
        for samples in (3, 7):
            problem = rf"'x' is float32 \({samples}, 3\), expected float32 \(N, 3\) with N from 4 to 6$"
            with pytest.raises(StepError, match=problem):
                trainer.step(**steps.batch(samples))
        for samples in (4, 6):
            trainer.step(**steps.batch(samples))
    for batch in (steps.batch(0), {}):
        with pytest.raises(StepError, match="no worker has a sample for this step"):
            trainers[1].step(**batch)


def test_wanted_dtype_of_bfloat16_is_named() -> None:
    start = {"w": np.zeros(2, BFLOAT16), "learning_rate": np.array(0.5, np.float32)}
    trainer = Trainer(step_model(half_step(TensorProto.BFLOAT16), start), kernel_options())
    with pytest.raises(StepError, match=r"expected bfloat16 \(N, 2\); .* numpy.asarray\(..., ml_dtypes.bfloat16\)"):
        trainer.step(**{"batch.x": np.zeros((1, 2), np.float32), "self": np.array(0, BFLOAT16)})


def test_batch_may_lie_in_memory_anyhow(model: onnx.ModelProto) -> None:
    """Transposed, with steps, as a scalar of NumPy."""
    batch = steps.batch(6)
    strange = {"x": np.asfortranarray(batch["x"]), "y": np.repeat(batch["y"], 2, axis=0)[::2]}
    assert not strange["x"].flags.c_contiguous
    assert not strange["y"].flags.c_contiguous
    assert_same_state(Trainer(model, kernel_options()).step(**strange), Trainer(model, kernel_options()).step(**batch))
    start = {"w": np.zeros(2, BFLOAT16), "learning_rate": np.array(0.5, np.float32)}
    half = Trainer(step_model(half_step(TensorProto.BFLOAT16), start), kernel_options())
    turned = np.asfortranarray(np.array([[1, 2], [3, 6]], BFLOAT16))
    assert half.step(**{"batch.x": turned, "self": BFLOAT16.type(2)})["grad.w"].tolist() == [4, 8]


def test_inputs_of_the_batch_are_told(trainer: Trainer) -> None:
    assert trainer.batch_inputs == {
        "x": TensorType(TensorProto.FLOAT, ("N", 3)),
        "y": TensorType(TensorProto.FLOAT, ("N", 2)),
    }


# --- the learning rate ------------------------------------------------------------------------------------------------


def test_learning_rate(trainer: Trainer) -> None:
    assert trainer.learning_rate == 0.5
    trainer.learning_rate = 0.0
    trainer.step(**steps.batch())
    assert_same_bits(trainer.state_dict()[WEIGHT], steps.start()[WEIGHT])
    trainer.learning_rate = 1
    assert trainer.learning_rate == 1
    trainer.learning_rate = (0.75,)
    assert trainer.learning_rate == 0.75
    trainer.step(**steps.batch())
    assert (trainer.state_dict()[WEIGHT] != steps.start()[WEIGHT]).all()


@pytest.mark.parametrize(
    ("rate", "came"), [(float("nan"), "nan"), (-0.5, "-0.5"), (1e39, r"1e\+39, which is inf in float32")]
)
def test_learning_rate_that_no_training_can_have_is_refused(
    rate: float, came: str, trainer: Trainer, tmp_path: Path
) -> None:
    """Nor is a state that has it loaded, or started from."""
    with pytest.raises(StepError, match=f"a learning rate is {came}, expected a finite number of at least 0"):
        trainer.learning_rate = rate
    assert trainer.learning_rate == 0.5
    with np.errstate(over="ignore"):
        state = steps.start() | {"learning_rate": np.array(rate).astype(np.float32)}
    checkpoints.write_checkpoint(tmp_path / "checkpoint", state, {})
    problem = "'learning_rate': a learning rate is .*, expected a finite number of at least 0"
    with pytest.raises(StepError, match=problem):
        trainer.load_state_dict(state)
    with pytest.raises(StepError, match=problem):
        trainer.load(tmp_path / "checkpoint")
    with pytest.raises(StepError, match=problem):
        Trainer(step_model(steps.bare_step(), state))
    assert_same_state(trainer.state_dict(), steps.start())


@pytest.mark.parametrize("rate", ["0.1", None, {}, [[0.1]], np.array([[0.1]]), 10**400], ids=lambda r: type(r).__name__)
def test_learning_rate_that_is_no_number_is_refused(rate: Any, trainer: Trainer) -> None:
    with pytest.raises(StepError, match=r"a learning rate is .*, expected a finite number of at least 0"):
        trainer.learning_rate = rate
    assert trainer.learning_rate == 0.5


def groups_step() -> onnx.ModelProto:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        groups (float rate_0, float rate_1) => (float product) { product = Mul (rate_0, rate_1) }""")
    for value, name in zip(model.graph.input, ("learning_rate.0", "learning_rate.1"), strict=True):
        value.name = name
    model.graph.node[0].input[:] = ["learning_rate.0", "learning_rate.1"]
    Step({value.name: InputRole.SETTING for value in model.graph.input}).write_into(model)
    return step_model(model, {"learning_rate.0": np.array(2, np.float32), "learning_rate.1": np.array(3, np.float32)})


def test_learning_rates_of_several_groups() -> None:
    trainer = Trainer(groups_step(), kernel_options())
    assert trainer.learning_rate == (2, 3)
    trainer.learning_rate = (4, 5)
    assert trainer.step()["product"] == 20
    trainer.learning_rate = np.array([6, 7], np.float32)
    assert trainer.learning_rate == (6, 7)
    for rate in (3, np.float32(3), np.array(3)):
        trainer.learning_rate = 1
        trainer.learning_rate = rate
        assert trainer.learning_rate == (3, 3)
    with pytest.raises(StepError, match="3 learning rates are given, expected 2, one for each group"):
        trainer.learning_rate = (1, 2, 3)
    with pytest.raises(StepError, match="a learning rate is -1"):
        trainer.learning_rate = (4, -1)
    assert trainer.learning_rate == (3, 3)


def test_step_without_a_learning_rate_says_so() -> None:
    with pytest.raises(StepError, match="the step has no setting 'learning_rate'"):
        Trainer(steps.gather_step(), kernel_options()).learning_rate = 1


# --- the state --------------------------------------------------------------------------------------------------------


def test_state_goes_out_as_copies_and_comes_back(trainer: Trainer) -> None:
    trainer.step(**steps.batch())
    state = trainer.state_dict()
    following = trainer.step(**steps.batch(seed=1))
    after = trainer.state_dict()
    assert (state[WEIGHT] != after[WEIGHT]).any()
    trainer.load_state_dict(state)
    state[WEIGHT][...] = np.nan
    assert_same_state(trainer.step(**steps.batch(seed=1)), following)
    assert_same_state(trainer.state_dict(), after)


def test_state_under_tied_names(trainer: Trainer) -> None:
    state = trainer.state_dict()
    weight = np.float32([[1, 2], [3, 4], [5, 6]])
    other = {name: array for name, array in state.items() if name != WEIGHT} | {"head.weight": weight}
    trainer.load_state_dict(other)
    assert_same_bits(trainer.state_dict()[WEIGHT], weight)
    trainer.load_state_dict(other | {WEIGHT: weight})
    with pytest.raises(StepError, match=r"'head.weight' differs from 'linear.weight', to which it is tied"):
        trainer.load_state_dict(other | {WEIGHT: -weight})


def test_weights_are_what_a_module_has(trainer: Trainer) -> None:
    weights = trainer.weights()
    assert list(weights) == [WEIGHT, "linear.bias", "mean", "head.weight"]
    assert_same_bits(weights["head.weight"], steps.start()[WEIGHT])
    weights[WEIGHT][...] = 0
    assert_same_state(trainer.state_dict(), steps.start())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"mean": None}, r"the state lacks 'mean' \(float32 \(3,\)\)"),
        ({"other": np.zeros(1)}, "the state has 'other', where the step wants 'linear.weight', "),
        ({"seed": np.array(1.0)}, r"'seed' is float64 \(\), expected int64 \(\)"),
        ({"seed": np.array([1])}, r"'seed' is int64 \(1,\), expected int64 \(\)"),
        ({"mean": np.ma.zeros(3, np.float32)}, r"'mean' is a masked array, float32 \(3,\), expected one "),
        ({"learning_rate": 0.5}, r"'learning_rate' is a float, expected an array, float32 \(\)"),
    ],
)
def test_state_that_does_not_fit_is_refused(trainer: Trainer, change: dict[str, Any], problem: str) -> None:
    state = {name: np.zeros_like(array) for name, array in trainer.state_dict().items()} | change
    with pytest.raises(StepError, match=problem):
        trainer.load_state_dict({name: array for name, array in state.items() if array is not None})
    assert_same_state(trainer.state_dict(), steps.start())


def test_state_that_has_no_names_is_refused(trainer: Trainer) -> None:
    with pytest.raises(StepError, match="the state is a list, expected arrays by name"):
        trainer.load_state_dict([np.zeros(1)])
    assert_same_state(trainer.state_dict(), steps.start())


def interrupted(work: Callable[[], object], line: int) -> bool:
    """Whether an interrupt came at the line of this number that the package runs; fewer lines are run without one."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if "onnx_ops" not in frame.f_code.co_filename:
            return None
        count += event in ("line", "return")
        if count == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    gc.disable()  # a finalizer, of a session of another test say, would swallow the interrupt
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    return False


@pytest.mark.parametrize("what", ["load_state_dict", "load", "learning_rate"])
def test_an_interrupt_leaves_the_state_before_or_the_one_after(what: str, tmp_path: Path) -> None:
    """At each line; the training then resumes from either of them."""
    trainer = Trainer(groups_step() if what == "learning_rate" else steps.whole_step(), kernel_options())
    other = {name: np.full_like(array, 3) for name, array in trainer.state_dict().items()}
    checkpoints.write_checkpoint(tmp_path / "checkpoint", other, {})

    def work() -> None:
        match what:
            case "load_state_dict":
                trainer.load_state_dict(other)
            case "load":
                trainer.load(tmp_path / "checkpoint")
            case _:
                trainer.learning_rate = (3, 3)

    batch = {} if what == "learning_rate" else steps.batch()
    start = trainer.state_dict()
    fine, following = [start, other], []
    for state in fine:
        trainer.load_state_dict(state)
        trainer.step(**batch)
        following.append(trainer.state_dict())
    found, line = set(), 1
    while True:
        trainer.load_state_dict(start)
        if not interrupted(work, line):
            break
        state = trainer.state_dict()
        same = [all(np.array_equal(state[name], array) for name, array in each.items()) for each in fine]
        assert any(same), f"a mixture by an interrupt at line {line}"
        trainer.step(**batch)
        assert_same_state(trainer.state_dict(), following[same.index(True)])
        found.add(same.index(True))
        line += 1
    assert found == {0, 1}, "some interrupts come before the change, some after"


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_trainer_cannot_be_copied(way: Callable[[Trainer], object], trainer: Trainer) -> None:
    with pytest.raises(TypeError, match="a Trainer cannot be copied or pickled: make another one of the same step"):
        way(trainer)


# --- the trained model ------------------------------------------------------------------------------------------------


def test_trained_model(trainer: Trainer, tmp_path: Path) -> None:
    oracle, batch = Oracle.of(steps.start()), steps.batch()
    trainer.step(**batch)
    oracle.step(**batch)
    path = tmp_path / "trained.onnx"
    trainer.export(path)
    onnx.checker.check_model(onnx.load_model(path), full_check=True)
    session = ort.InferenceSession(path, options(), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["x"]
    (probabilities,) = session.run(["probabilities"], {"x": batch["x"]})
    assert_close(probabilities, oracle.predict(batch["x"]).astype(np.float32), rtol=2e-6)


def test_step_without_inference_graph_trains_but_cannot_be_exported(tmp_path: Path) -> None:
    trainer = Trainer(steps.whole_step(inference=False), kernel_options())
    trainer.step(**steps.batch())
    with pytest.raises(StepError, match="the step has no inference graph"):
        trainer.export(tmp_path / "trained.onnx")
    assert not list(tmp_path.iterdir())


def test_one_sample_in_evaluation_mode_where_the_statistics_of_a_batch_need_two() -> None:
    trainer, batch, pair = Trainer(steps.step_of_batch_norm(), kernel_options()), steps.batch(1), steps.batch(2)
    plain = Trainer(steps.step_with_evaluation(), kernel_options())
    for name, array in plain.evaluate(**batch).items():
        assert_same_bits(trainer.evaluate(**batch)[name], array)
    assert_same_bits(trainer.predict(x=batch["x"])["probabilities"], plain.predict(x=batch["x"])["probabilities"])
    for refused in (trainer.step, trainer.accumulate, functools.partial(trainer.evaluate, "train")):
        with pytest.raises(StepError, match=r"^'x' is float32 \(1, 3\), expected float32 \(N, 3\) with N >= 2$"):
            refused(**batch)
        refused(**pair)


# --- machines ---------------------------------------------------------------------------------------------------------


def test_trainer_without_kernels_warns_and_trains() -> None:
    program = f"""
        import sys, warnings
        sys.modules["numba"] = None
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        import steps, onnx_ops
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer = onnx_ops.Trainer(steps.whole_step())
        assert [("function bodies" in str(w.message), w.filename) for w in caught] == [(True, "<string>")]
        print(trainer.step(**steps.batch())["loss"])"""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    expected = Oracle.of(steps.start()).step(**steps.batch())["loss"]
    np.testing.assert_allclose(float(done.stdout), expected, rtol=2e-6)
