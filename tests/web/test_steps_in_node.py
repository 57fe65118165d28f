"""Training steps in Node: the files that the trainer in JavaScript takes, and what is captured from PyTorch."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import backends
import numpy as np
import onnx
import pytest
import steps
from cases import names_with
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_web import PROGRAM, SECONDS, WEB_PACKAGE, Node, Trainer, WebError, in_both_packages

import onnx_ops
from onnx_ops.core.step_format import STEP_METADATA, InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Builder
from onnx_ops.training.step import Step
from onnx_ops.training.step_files import save_step, step_model

Array = np.ndarray[Any, Any]
SelfContained = Callable[[onnx.ModelProto], onnx.ModelProto]
GUIDE = Path(__file__).parents[2] / "docs" / "from-pytorch.md"
CAN_CAPTURE = all(importlib.util.find_spec(name) for name in ("torch", "onnxscript"))
TASKS = (
    "MLP, BCE",
    "MLP, KL",
    "CNN with batch norm and max pooling",
    "depthwise CNN",
    "transformer block",
    "speech, CTC",
    "LSTM",
)
"""Of models.networks, which cannot be imported without PyTorch."""
LIKE_OTHERS = {"MLP, BCE", "MLP, KL", "transformer block", "depthwise CNN", "LSTM"}
"""Their losses and layers are in others, or have bodies that are tested by themselves."""
NEAR = 2e-5
"""Of the largest entry of a tensor: float32, added up in another order, over a few steps."""
OF_A_CHANGE = 0.05
"""Of the largest change of a tensor. Two things let the rounding of one number show. Adam divides a gradient by its own
size, so that what rounding leaves of a sum makes a step of the whole learning rate. And an entry near the edge of a
ReLU, or of a tie between maxima, falls on either side of it. Such an entry was seen to make 2 % of a gradient."""

pytestmark = in_both_packages

needs_capture = pytest.mark.skipif(not CAN_CAPTURE, reason="PyTorch or onnxscript is not installed")
made_self_contained = pytest.mark.parametrize(
    "self_contained", [onnx_ops.link, onnx_ops.inline], ids=["linked", "inlined"]
)


def check_steps(node: Node, model: onnx.ModelProto, batches: list[dict[str, Array]], of_a_change: float = 0.0) -> None:
    """The same numbers as the trainer's in Python, step by step, from what the file says it starts from."""
    trainer, there = onnx_ops.Trainer(model, backends.kernel_options()), Trainer(node, model)
    start = trainer.state_dict()
    assert_near(there.state(), start, near=0)
    for batch in batches:
        assert_near(there.step(**batch), trainer.step(**batch))
    state = trainer.state_dict()
    more = {name: of_a_change * _largest(state[name] - array) for name, array in start.items()}
    assert_near(there.state(), state, more=more)
    there.release()


def assert_near(
    actual: Mapping[str, Array], expected: Mapping[str, Array], near: float = NEAR, more: Mapping[str, float] = {}
) -> None:
    """Within a part of the largest entry, and so much more by name.

    That of the tensor; of an optimizer's state that of all tensors of its kind, for the gradient of a bias before a
    batch norm is 0, and what is there is what rounding leaves of sums of other gradients.
    """
    assert actual.keys() == expected.keys()
    largest: dict[str, float] = {}
    for name, value in expected.items():
        largest[_kind(name)] = max(largest.get(_kind(name), 0), _largest(value))
    for name, value in expected.items():
        allowed = near * largest[_kind(name)] + more.get(name, 0)
        backends.assert_close(actual[name], value, atol=allowed, what=name)


def _largest(array: Array) -> float:
    return float(np.abs(array).max(initial=0))


def _kind(name: str) -> str:
    """Of an optimizer's state, "optimizer.exp_avg" for all parameters."""
    return ".".join(name.split(".")[:2]) if name.startswith("optimizer.") else name


@made_self_contained
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step(node: Node, dtype: type, self_contained: SelfContained) -> None:
    model = self_contained(steps.whole_step(dtype))
    check_steps(node, model, [steps.batch(8, dtype, seed) for seed in range(3)])


@functools.cache
def captured(name: str) -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    """The step of a task, and batches for it."""
    import torch

    from models.networks import TASKS
    from onnx_ops.torch import training_step

    task = TASKS[name]
    torch.manual_seed(0)
    network = task.network()
    # Unchecked, for the numbers beside PyTorch's have tests of their own.
    capture = training_step(network, task.loss, task.batch(), task.optimizer(network), check=False)
    names = [value.name for value in capture.model.graph.input if value.name not in capture.state]
    batches = [dict(zip(names, (t.numpy() for t in task.batch()), strict=True)) for _ in range(2)]
    return step_model(capture.model, capture.state, capture.inference), batches


@needs_capture
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch.onnx, about itself
@pytest.mark.parametrize("task", names_with(full=LIKE_OTHERS, names=TASKS))
def test_captured_steps(node: Node, task: str) -> None:
    """Those that are measured too: convolutions, batch norm, pooling, attention, CTC, an LSTM."""
    model, batches = captured(task)
    check_steps(node, model, batches, OF_A_CHANGE)


@needs_capture
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch.onnx, about itself
@pytest.mark.parametrize("task", names_with(full=set(TASKS) - {"MLP, KL"}, names=TASKS))
def test_inlined_captured_steps(node: Node, task: str) -> None:
    model, batches = captured(task)
    check_steps(node, onnx_ops.inline(model), batches, OF_A_CHANGE)


@needs_capture
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch.onnx, about itself
def test_loops_over_time(node: Node) -> None:
    """The Scan nodes of a GRU."""
    import torch

    from onnx_ops.torch import training_step

    def loss(model: torch.nn.GRU, x: torch.Tensor) -> torch.Tensor:
        return model(x)[0].square().mean()

    torch.manual_seed(0)
    network = torch.nn.GRU(3, 4, bidirectional=True)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    capture = training_step(network, loss, (torch.randn(5, 2, 3),), optimizer, check=False)
    assert sum(n.op_type == "Scan" for n in capture.model.graph.node) == 4
    batches = [{"x": torch.randn(5, 2, 3).numpy()} for _ in range(3)]
    check_steps(node, onnx_ops.link(step_model(capture.model, capture.state, capture.inference)), batches)


# --- the state --------------------------------------------------------------------------------------------------------


@pytest.fixture
def trainer(node: Node) -> Iterator[Trainer]:
    """Of the step that is written by hand."""
    trainer = Trainer(node, steps.whole_step())
    yield trainer
    trainer.release()


def test_batch_inputs(trainer: Trainer) -> None:
    assert trainer.batch_inputs == {
        "x": {"type": "float32", "dims": ["N", steps.FEATURES]},
        "y": {"type": "float32", "dims": ["N", steps.CLASSES]},
    }


def test_state_goes_on_elsewhere(node: Node, trainer: Trainer) -> None:
    """The state after a step, in another trainer and in Python, with a name that is tied in the first one's place."""
    trainer.step(**steps.batch())
    state = trainer.state()
    state["head.weight"] = state.pop("linear.weight")
    other, here = Trainer(node, steps.whole_step()), onnx_ops.Trainer(steps.whole_step(), backends.kernel_options())
    other.load_state(state)
    here.load_state_dict(state)
    expected = trainer.step(**steps.batch(seed=1))
    assert_near(other.step(**steps.batch(seed=1)), expected, near=0)
    assert_near(here.step(**steps.batch(seed=1)), expected)
    assert_near(other.state(), trainer.state(), near=0)
    other.release()


def test_learning_rate(trainer: Trainer) -> None:
    """Halved, it makes half a step. (The first one: momentum starts from 0.)"""
    start = trainer.state()
    trainer.step(**steps.batch())
    whole = trainer.state()["linear.bias"] - start["linear.bias"]
    trainer.load_state(start)
    assert trainer.learning_rate == 0.5
    trainer.learning_rate = 0.25
    trainer.step(**steps.batch())
    assert trainer.learning_rate == 0.25
    half = trainer.state()["linear.bias"] - start["linear.bias"]
    np.testing.assert_allclose(half, whole / 2, rtol=1e-6)  # rounded to float32 once


def test_learning_rates_of_groups(node: Node) -> None:
    """Each setting that is a learning rate, in order."""
    b = Builder(TensorProto.FLOAT)
    scalar = TensorType(TensorProto.FLOAT, ())
    names = ("learning_rate.0", "learning_rate.1", "decay")
    first, *others = (b.input(name, scalar) for name in names)
    b.output("loss", sum(others, first), scalar)
    model = helper.make_model(b.graph("settings"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Step(dict.fromkeys(names, InputRole.SETTING)).write_into(model)
    start = {name: np.array(number, np.float32) for name, number in zip(names, (0.5, 0.25, 4.0), strict=True)}
    trainer = Trainer(node, step_model(model, start))
    assert trainer.learning_rate == [0.5, 0.25]
    trainer.learning_rate = [1, 2]
    assert trainer.step()["loss"] == 7
    trainer.learning_rate = 3
    assert trainer.learning_rate == [3, 3]
    with pytest.raises(WebError, match="1 learning rates are given, expected 2"):
        trainer.learning_rate = [1]
    with pytest.raises(WebError, match="a learning rate is fast, expected a finite number"):
        trainer.learning_rate = "fast"
    with pytest.raises(WebError, match="a learning rate is -1, expected a finite number of at least 0"):
        trainer.learning_rate = [1, -1]
    trainer.release()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda s: s.pop("mean"), r"the state lacks 'mean' \(float32 \(3,\)\)"),
        (lambda s: s.update(more=s["mean"]), "the state has 'more', where the step wants 'linear.weight', "),
        (lambda s: s.update(mean=np.zeros(4, np.float32)), r"'mean' is float32 \(4,\), expected float32 \(3,\)"),
        (lambda s: s.update(seed=np.array(7, np.int32)), r"'seed' is int32 \(\), expected int64 \(\)"),
        (lambda s: s.update({"head.weight": s["linear.weight"] + 1}), "'head.weight' differs from 'linear.weight'"),
    ],
    ids=["missing", "unknown", "shape", "dtype", "tied"],
)
def test_wrong_state(trainer: Trainer, state: Callable[[dict[str, Array]], object], message: str) -> None:
    """It is refused, and what was there is still there."""
    before = trainer.state()
    wrong = dict(before)
    state(wrong)
    with pytest.raises(WebError, match=message):
        trainer.load_state(wrong)
    assert_near(trainer.state(), before, near=0)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.pop("y"), r"the batch lacks 'y' \(float32 \(N, 2\)\)"),
        (lambda b: b.update(z=b["y"]), "the batch has 'z', where the step wants 'x', 'y'"),
        (lambda b: b.update(x=b["x"].astype(np.float64)), r"'x' is float64 \(4, 3\), expected float32 \(N, 3\)"),
        (lambda b: b.update(x=b["x"][0]), r"'x' is float32 \(3,\), expected float32 \(N, 3\)"),
        (lambda b: b.update(x=b["y"]), r"'x' is float32 \(4, 2\), expected float32 \(N, 3\)"),
        (lambda b: b.update(y=b["y"][:2]), r"'y' is float32 \(2, 2\), expected .* with N = 4 as in 'x'"),
    ],
    ids=["missing", "unknown", "dtype", "rank", "dimension", "named dimension"],
)
def test_wrong_batch(trainer: Trainer, change: Callable[[dict[str, Array]], object], message: str) -> None:
    """It is refused, and the state stays as it was."""
    before = trainer.state()
    batch = steps.batch()
    change(batch)
    with pytest.raises(WebError, match=message):
        trainer.step(**batch)
    assert_near(trainer.state(), before, near=0)
    trainer.step(**steps.batch())


# --- the trained network ----------------------------------------------------------------------------------------------


@made_self_contained
def test_inference(node: Node, self_contained: SelfContained, tmp_path: Path) -> None:
    """As the model that Python exports after the same steps."""
    trainer = Trainer(node, self_contained(steps.whole_step()))
    here = onnx_ops.Trainer(steps.whole_step(), backends.kernel_options())
    for seed in range(2):
        trainer.step(**steps.batch(seed=seed))
        here.step(**steps.batch(seed=seed))
        here.export(tmp_path / "classifier.onnx")
        session = backends.kernel_session(str(tmp_path / "classifier.onnx"))
        x = steps.batch(5, seed=9)["x"]
        (expected,) = session.run(None, {"x": x})
        assert_near(trainer.infer(x=x), {"probabilities": expected})
    with pytest.raises(WebError, match=r"the input lacks 'x' \(float32 \(N, 3\)\)"):
        trainer.infer()
    trainer.release()


def test_no_inference_graph(node: Node) -> None:
    trainer = Trainer(node, steps.whole_step(inference=False))
    with pytest.raises(WebError, match="the step has no inference graph"):
        trainer.infer()
    trainer.release()


# --- files ------------------------------------------------------------------------------------------------------------


def test_no_step(node: Node) -> None:
    model = steps.whole_step()
    del model.metadata_props[:]
    with pytest.raises(WebError, match=f"the model is no training step: its metadata have no entry '{STEP_METADATA}'"):
        Trainer(node, model)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "'roles' is no object of strings"),
        ('{"format": 1, "roles": {}, "tied": {}}', 'its format version is 1, expected a string such as "2.0"'),
        ('{"format": null, "roles": {}, "tied": {}}', 'its format version is null, expected a string such as "2.0"'),
        ('{"format": "3.0", "parts": []}', r"its format version is 3\.0, expected at most 2\.0: update onnx_ops"),
        ('{"roles": {"x": 1}, "tied": {}}', "'roles' is no object of strings"),
        ('{"roles": {"mean": "constant"}, "tied": {}}', "'mean' has the role 'constant', expected one of parameter, "),
        ('{"roles": {"nowhere": "buffer"}, "tied": {}}', "the step has no input of that name"),
        ('{"roles": {"x": "buffer"}, "tied": {}}', r"the file lacks the start of 'x', float32 \(N, 3\)"),
        ('{"roles": {}, "tied": {"a": "b"}}', "'a' is tied to 'b', which is no parameter and no buffer"),
        ('{"roles": {}, "tied": {}}', r"output 'next.linear.weight' is the next value of .*, which is no state"),
    ],
)
def test_damaged_record(node: Node, text: str, message: str) -> None:
    model = steps.whole_step()
    entry = next(entry for entry in model.metadata_props if entry.key == STEP_METADATA)
    entry.value = text
    with pytest.raises(WebError, match=message):
        Trainer(node, model)


@pytest.mark.parametrize("version", [None, "1.7"])
def test_record_of_another_minor_version(node: Node, version: str | None) -> None:
    model = steps.whole_step()
    entry = next(entry for entry in model.metadata_props if entry.key == STEP_METADATA)
    record = json.loads(entry.value)
    assert record.pop("format") == "1.1"
    entry.value = json.dumps(({} if version is None else {"format": version}) | record | {"more": []})
    Trainer(node, model)


def test_damaged_bytes(node: Node) -> None:
    """Cut off anywhere, a file is refused, and by no error of the language."""
    data = steps.whole_step().SerializeToString()
    for length in (*range(0, 40), *range(40, len(data), 997), len(data) - 1):
        with pytest.raises(WebError, match=r"the bytes are no ONNX model|lacks|is no training step|'is the next value"):
            Trainer(node, data[:length])
    for noise in (b"\xff" * 20, b"PK\x03\x04 no protobuf", b'{"an": "object"}'):
        with pytest.raises(WebError, match="the bytes are no ONNX model"):
            Trainer(node, noise)


def test_data_in_another_file(node: Node) -> None:
    model = steps.whole_step()
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "linear.weight")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    tensor.ClearField("raw_data")
    with pytest.raises(WebError, match=r"'linear\.weight' has its data in another file"):
        Trainer(node, model)


@pytest.mark.parametrize("blob", [False, True], ids=["bytes", "blob"])
def test_state_in_a_second_file(node: Node, blob: bool, tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    save_step(steps.bare_step(), steps.start(), steps.inference_graph(), path, external=True)
    data, weights = path.read_bytes(), (tmp_path / "step.safetensors").read_bytes()
    trainer, there = onnx_ops.Trainer(path, backends.kernel_options()), Trainer(node, data, weights, blob=blob)
    assert_near(there.state(), steps.start(), near=0)
    assert_near(there.step(**steps.batch()), trainer.step(**steps.batch()))
    assert_near(there.state(), trainer.state_dict())
    there.release()
    (tmp_path / "other").mkdir()
    other = steps.start() | {"mean": np.ones(3, np.float32)}
    save_step(steps.bare_step(), other, None, tmp_path / "other" / "step.onnx", external=True)
    length = 8 + int.from_bytes(weights[:8], "little")
    refused = "the weights are not the file that was saved with the step: "
    no_file = "the file of weights is no safetensors file: "
    for wrong, problem in (
        ((tmp_path / "other" / "step.safetensors").read_bytes(), f"{refused}it has another checksum"),
        (weights.replace(b'"linear.bias"', b'"linear.bats"'), f"{refused}'linear.bias' is not where it was"),
        (weights[:-1], f"{no_file}its tensors end at byte"),
        (weights[: length - 1], f"{no_file}its header would have {length - 8} bytes"),
        (b"", f"{no_file}it is too short for a header"),
        (weights[:8] + b"?" + weights[9:], f"{no_file}its header is no JSON"),
    ):
        with pytest.raises(WebError, match=problem):
            Trainer(node, data, wrong, blob=blob)
    with pytest.raises(
        WebError, match=r"'linear\.weight' has its data in another file, 'step\.safetensors'; pass that"
    ):
        Trainer(node, data)
    with pytest.raises(WebError, match="weights are given, and the step was saved as one file"):
        Trainer(node, steps.whole_step(), weights, blob=blob)


def test_two_graphs(node: Node) -> None:
    """Protobuf would make one of them; no writer of models lets it come to that."""
    data = steps.whole_step().SerializeToString()
    with pytest.raises(WebError, match="the bytes are no ONNX model: they hold 2 graphs"):
        Trainer(node, data + b"\x3a\x00")


def test_bfloat16_is_refused(node: Node) -> None:
    with pytest.raises(WebError, match=r"'linear\.weight' is bfloat16, and JavaScript has no such tensors"):
        Trainer(node, steps.whole_step(backends.BFLOAT16))


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_every_dtype_of_state(node: Node, raw: bool) -> None:
    """Bit for bit, however the file stores it. Nothing computes with it: it goes from step to step as it is."""
    state = steps.stored_state([(3,), (1, 3), (0, 2), ()])
    model = steps.carrying_step(state)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name)
        if raw
        else helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.flatten())
        for name, array in state.items()
    )
    trainer = Trainer(node, model)
    trainer.step()
    after = trainer.state()
    assert after.pop("count") == 1
    for name, array in after.items():
        assert (array.dtype, array.shape) == (state[name].dtype, state[name].shape)
        assert array.tobytes() == state[name].tobytes()
    trainer.release()


# --- programs ---------------------------------------------------------------------------------------------------------

FETCH = """
import { readFile } from "node:fs/promises";
globalThis.fetch = async (name) => new Response(await readFile(name)); // Node fetches nothing that is beside a program
"""


def run_program(node: Node, folder: Path, text: str, **files: bytes) -> None:
    """Run JavaScript as a page would that has these files and the trainer beside it, in the package of `node`."""
    for name in ("training", "node_modules"):
        (folder / name).symlink_to(PROGRAM.parent / name)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "fetch.mjs").write_text(FETCH)
    (folder / "program.mjs").write_text(text.replace(WEB_PACKAGE, node.runtime))
    command = ["node", "--import", "./fetch.mjs", "program.mjs"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert result.returncode == 0, result.stderr


def test_one_thing_at_a_time(node: Node, tmp_path: Path) -> None:
    """A step that is not awaited: what else is asked is refused, and that step is made all the same."""
    program = """
import * as ort from "onnxruntime-web";
import { StepError, Trainer } from "./training/trainer.js";
ort.env.wasm.numThreads = 1;
const trainer = await Trainer.create(ort, await (await fetch("step")).arrayBuffer());
const before = await trainer.state();
const tensor = (columns) => new ort.Tensor("float32", new Float32Array(4 * columns).fill(0.5), [4, columns]);
const batch = { x: tensor(3), y: tensor(2) };
const step = trainer.step(batch);
const calls = [
  () => trainer.step(batch), () => trainer.state(), () => trainer.infer({ x: batch.x }), () => trainer.release(),
  () => trainer.loadState(before), () => { trainer.learningRate = 1; },
];
for (const { status, reason } of await Promise.allSettled(calls.map(async (call) => call()))) {
  const refused = reason instanceof StepError && reason.message.includes("await");
  if (!refused) throw new Error(`${status}: ${reason}`);
}
await step;
const { seed } = await trainer.state();
if (seed.data[0] !== before.seed.data[0] + 1n || before.learning_rate.data[0] !== 0.5) throw new Error("no step");
await trainer.release();
"""
    run_program(node, tmp_path, program, step=steps.whole_step().SerializeToString())


def test_released_trainers_and_unknown_options_are_refused(node: Node, tmp_path: Path) -> None:
    program = """
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import * as ort from "onnxruntime-web";
import { Trainer } from "./training/trainer.js";
ort.env.wasm.numThreads = 1;
const file = await readFile("step");
await assert.rejects(Trainer.create(ort, file, { checkfinite: false }), {
  name: "StepError",
  message: "there is no option 'checkfinite', expected one of weights, checkFinite, executionProviders, sessionOptions",
});
const trainer = await Trainer.create(ort, file);
await trainer.release();
const x = new ort.Tensor("float32", new Float32Array(3), [1, 3]);
const calls = [() => trainer.step({}), () => trainer.infer({ x }), () => trainer.state(), () => trainer.export()];
for (const call of calls) {
  await assert.rejects(async () => call(), { name: "StepError", message: /the trainer is released/ });
}
assert.throws(() => (trainer.learningRate = 1), { message: /the trainer is released/ });
"""
    run_program(node, tmp_path, program, step=steps.whole_step().SerializeToString())


def test_bytes_however_they_come(node: Node, tmp_path: Path) -> None:
    """Also as Buffers, which Node cuts out of a pool that others share; what cannot be bytes is refused."""
    program = """
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import * as ort from "onnxruntime-web";
import { Trainer } from "./training/trainer.js";
ort.env.wasm.numThreads = 1;

const file = await readFile("step");
const odd = new Uint8Array(file.length + 1);
odd.set(file, 1);
const { buffer } = odd.slice(1);
let start;
for (const bytes of [buffer, odd.subarray(1), Buffer.from(file), Buffer.from(odd.buffer, 1), new DataView(buffer)]) {
  const trainer = await Trainer.create(ort, bytes);
  start ??= await trainer.state();
  assert.deepEqual(await trainer.state(), start);
  await trainer.release();
}
for (const other of [readFile("step"), "step", undefined]) {
  await assert.rejects(Trainer.create(ort, other), { name: "StepError", message: /expected the bytes of a step/ });
}

const trainer = await Trainer.create(ort, file);
const { data } = start["linear.weight"];
const stored = Buffer.from(data.buffer);
const as = (data) => ({ ...start, "linear.weight": { type: "float32", data, dims: [3, 2] } });
const unaligned = Buffer.concat([Buffer.alloc(1), stored]).subarray(1);
for (const bytes of [stored, unaligned, data.buffer, new DataView(data.buffer)]) {
  trainer.loadState({ ...as(bytes), "head.weight": start["linear.weight"] }); // a tied name, with the same data
  assert.deepEqual(await trainer.state(), start);
}
const passed = Buffer.from(stored);
trainer.loadState(as(passed));
passed.fill(0); // it is the caller's, the state is not
assert.deepEqual(await trainer.state(), start);
const expected = "expected Float32Array or its bytes as Uint8Array";
for (const [wrong, message] of [
  [stored.subarray(4), "'linear.weight' is float32 (3, 2), but has 5 elements"],
  [stored.subarray(1), "the data of 'linear.weight' are 23 bytes, no multiple of 4"],
  [Float64Array.from(data), `the data of 'linear.weight' are Float64Array, ${expected}`],
  [undefined, `the data of 'linear.weight' are Undefined, ${expected}`],
]) {
  assert.throws(() => trainer.loadState(as(wrong)), { name: "StepError", message });
  assert.deepEqual(await trainer.state(), start);
}
"""
    run_program(node, tmp_path, program, step=steps.whole_step().SerializeToString())


@needs_capture
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch.onnx, about itself
def test_the_guide_runs(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it captures trains in JavaScript as it says."""
    text = GUIDE.read_text()
    capture, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (program,) = re.findall(r"```javascript\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(capture, str(GUIDE), "exec"), {})
    run_program(node, tmp_path, program)
