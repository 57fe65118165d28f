"""Steps that update their state in place: what waits for what, and what failures leave."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import steps
from backends import assert_same_bits, kernel_options
from onnx import TensorProto, helper, parser
from update_order import late_readers

import models
from onnx_ops import InferenceSession, StateLostError, StepError, Trainer
from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.step_format import InputRole
from onnx_ops.graph.reading import load_model
from onnx_ops.training import in_place as rewriting
from onnx_ops.training.in_place import in_place
from onnx_ops.training.step import Step
from onnx_ops.training.step_files import step_model

HEADER = '<ir_version: 10, opset_import: ["" : 21]> step '


def step_of(text: str, roles: dict[str, InputRole]) -> onnx.ModelProto:
    """A step in ONNX's text format, which has no points in names: "next_" and "grad_" end with one in the model."""
    model = parser.parse_model(HEADER + text)
    for names in (*(node.input for node in model.graph.node), *(node.output for node in model.graph.node)):
        names[:] = [re.sub("^(next|grad)_", r"\1.", name) for name in names]
    for value in model.graph.output:
        value.name = re.sub("^next_", "next.", value.name)
    Step(roles).write_into(model)
    return model


# Backpropagation by hand: `w` is read in the forward pass and, for the gradient of `v`'s layer, after its own gradient.
TWO_LAYERS = step_of(
    """(float[4, 3] v, float[3, 2] w, float learning_rate, float[N, 4] x, float[N, 2] y)
    => (float loss, float[4, 3] next_v, float[3, 2] next_w)
    <float two = {2}, int64[1] whole = {-1}> {
        h = MatMul(x, v)
        p = MatMul(h, w)
        d = Sub(p, y)
        e = Mul(d, d)
        loss = ReduceSum<keepdims = 0>(e)
        g = Mul(d, two)
        ht = Transpose<perm = [1, 0]>(h)
        grad_w = MatMul(ht, g)
        step_w = Mul(grad_w, learning_rate)
        next_w = Sub(w, step_w)
        same = Identity(w)
        wt = Transpose<perm = [1, 0]>(same)
        gh = MatMul(g, wt)
        xt = Transpose<perm = [1, 0]>(x)
        grad_v = MatMul(xt, gh)
        step_v = Mul(grad_v, learning_rate)
        next_v = Sub(v, step_v)
    }""",
    {"v": InputRole.PARAMETER, "w": InputRole.PARAMETER, "learning_rate": InputRole.SETTING},
)

# The same with a factor, which onnxruntime makes a part of both products that read it.
SCALED = step_of(
    """(float[4, 3] v, float[3, 2] w, float learning_rate, float[N, 4] x, float[N, 2] y)
    => (float loss, float[4, 3] next_v, float[3, 2] next_w)
    <float two = {2}, float half = {0.5}> {
        h = MatMul(x, v)
        s = Mul(w, half)
        p = MatMul(h, s)
        d = Sub(p, y)
        e = Mul(d, d)
        loss = ReduceSum<keepdims = 0>(e)
        g = Mul(d, two)
        ht = Transpose<perm = [1, 0]>(h)
        grad_s = MatMul(ht, g)
        grad_w = Mul(grad_s, half)
        step_w = Mul(grad_w, learning_rate)
        next_w = Sub(w, step_w)
        st = Transpose<perm = [1, 0]>(s)
        gh = MatMul(g, st)
        xt = Transpose<perm = [1, 0]>(x)
        grad_v = MatMul(xt, gh)
        step_v = Mul(grad_v, learning_rate)
        next_v = Sub(v, step_v)
    }""",
    {"v": InputRole.PARAMETER, "w": InputRole.PARAMETER, "learning_rate": InputRole.SETTING},
)
BY_HAND = {"two_layers": TWO_LAYERS, "scaled": SCALED}


def start() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    arrays = {"v": rng.normal(size=(4, 3)), "w": rng.normal(size=(3, 2)), "learning_rate": np.array(1e-3)}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def batch(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(5, 4)).astype(np.float32), "y": rng.normal(size=(5, 2)).astype(np.float32)}


def optimized(model: onnx.ModelProto, path: Path, level: ort.GraphOptimizationLevel) -> onnx.ModelProto:
    """The graph that onnxruntime runs."""
    options = kernel_options()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3  # it warns that the graph is for this processor
    InferenceSession(model, options)
    return onnx.load(path)


FOLDER = Path(models.__file__).parent
KEPT = {path.parent.name: path for path in FOLDER.glob("*/*.onnxtxt") if ".inference" not in path.name}
LEVELS = ort.GraphOptimizationLevel
EACH_LEVEL = pytest.mark.parametrize("level", [LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_BASIC, LEVELS.ORT_ENABLE_ALL])


@EACH_LEVEL
@pytest.mark.parametrize("name", [*BY_HAND, "linear", *KEPT])
def test_readers_run_before_updates(name: str, level: ort.GraphOptimizationLevel, tmp_path: Path) -> None:
    model = load_model(KEPT[name]) if name in KEPT else BY_HAND.get(name) or steps.bare_step()
    assert late_readers(model) or name in ("sparse_coding", "scaled"), "without rewriting, some readers may run last"
    rewritten = in_place(model, "loss")
    assert rewritten is not None
    assert late_readers(rewritten.model) == []
    assert late_readers(optimized(rewritten.model, tmp_path / "optimized.onnx", level)) == []


def test_check_finds_a_reader_that_may_run_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting._Rewriting, "_reading", lambda self, name: iter(()))
    rewritten = in_place(TWO_LAYERS, "loss")
    assert rewritten is not None
    assert late_readers(rewritten.model) == ["Transpose wt reads w after Sub"]


@pytest.mark.parametrize("parallel", [False, True])
def test_results_are_those_of_two_sets(parallel: bool) -> None:
    def trainer(keep_previous: bool) -> Trainer:
        options = kernel_options()
        if parallel:
            options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = 3
        return Trainer(step_model(TWO_LAYERS, start()), options, keep_previous=keep_previous)

    one, two = trainer(False), trainer(True)
    assert not one._state.keeps_previous
    for seed in range(6):
        samples = batch(seed)
        assert_same_bits(one.step(**samples)["loss"], two.step(**samples)["loss"])
    for name, array in one.state_dict().items():
        assert_same_bits(array, two.state_dict()[name])


# --- states of all kinds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["int64", "int32", "uint8", "int16", "bool", "float16", "bfloat16", "float", "double"]
)
def test_state_that_no_kernel_updates_in_place(dtype: str) -> None:
    """A value that is selected: Where does not work in place."""
    element = TensorProto.DataType.Value(dtype.upper())
    model = step_of(
        f"""({dtype}[3] x, float[N] y) => (float loss, {dtype}[3] next_x) <float one = {{1}}, float zero = {{0}}> {{
            loss = ReduceMax<keepdims = 0>(y)
            on = Greater(loss, zero)
            before = Cast<to = 1>(x)
            chosen = Where(on, one, before)
            next_x = Cast<to = {element}>(chosen)
        }}""",
        {"x": InputRole.BUFFER},
    )
    zeros = np.zeros(3, onnx.helper.tensor_dtype_to_np_dtype(element))
    trainer = Trainer(step_model(model, {"x": zeros}), kernel_options())
    assert not trainer._state.keeps_previous
    trainer.step(y=np.array([-1, -2], np.float32))
    assert list(trainer.state_dict()["x"]) == [0, 0, 0]
    trainer.step(y=np.array([-1, 2], np.float32))
    assert list(trainer.state_dict()["x"]) == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_inputs_that_change_places(dtype: str) -> None:
    """In place for floating dtypes, otherwise with two sets."""
    model = step_of(
        f"""({dtype}[2] a, {dtype}[2] b, float[N] y) => (float loss, {dtype}[2] next_a, {dtype}[2] next_b) {{
            loss = ReduceMax<keepdims = 0>(y)
            next_a = Identity(b)
            next_b = Identity(a)
        }}""",
        {"a": InputRole.BUFFER, "b": InputRole.BUFFER},
    )
    ones = np.ones(2, np.float32 if dtype == "float" else np.int64)
    trainer = Trainer(step_model(model, {"a": 0 * ones, "b": ones}), kernel_options())
    assert trainer._state.keeps_previous == (dtype == "int64")
    for turn in range(3):
        state = trainer.state_dict()
        assert list(state["a"]) == [turn % 2] * 2
        assert list(state["b"]) == [1 - turn % 2] * 2
        trainer.step(y=np.ones(1, np.float32))


def test_a_state_that_is_reported_has_two_sets() -> None:
    model = step_of(
        """(float[2] a, float[N] y) => (float loss, float[2] seen, float[2] next_a) <float one = {1}> {
            loss = ReduceMax<keepdims = 0>(y)
            seen = Identity(a)
            next_a = Add(a, one)
        }""",
        {"a": InputRole.BUFFER},
    )
    assert in_place(model, "loss") is None
    trainer = Trainer(step_model(model, {"a": np.zeros(2, np.float32)}), kernel_options())
    assert list(trainer.step(y=np.ones(1, np.float32))["seen"]) == [0, 0]


def test_a_buffer_that_the_loss_reads_after_its_update() -> None:
    """As spectral norm does. A step whose loss is refused leaves it as it was."""
    model = step_of(
        """(float[3] u, float[N, 3] x) => (float loss, float[3] next_u) <int64[1] rows = {0}> {
            mean = ReduceMean<keepdims = 0>(x, rows)
            moved = Add(u, mean)
            norm = ReduceL2<keepdims = 0>(moved)
            next_u = Div(moved, norm)
            products = Mul(x, next_u)
            loss = ReduceSum<keepdims = 0>(products)
        }""",
        {"u": InputRole.BUFFER},
    )
    trainer = Trainer(step_model(model, {"u": np.ones(3, np.float32)}), kernel_options())
    assert not trainer._state.keeps_previous
    u = np.ones(3)
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)
        u = u + x.mean(0)
        u /= np.linalg.norm(u)
        np.testing.assert_allclose(trainer.step(x=x)["loss"], (x * u).sum(), rtol=1e-5)
        np.testing.assert_allclose(trainer.state_dict()["u"], u, rtol=1e-5)
    with pytest.raises(StepError, match="'loss' is nan, and the state is as before the step"):
        trainer.step(x=np.full((4, 3), np.nan, np.float32))
    np.testing.assert_allclose(trainer.state_dict()["u"], u, rtol=1e-5)


# --- failures ---------------------------------------------------------------------------------------------------------


def failing() -> onnx.ModelProto:
    """TWO_LAYERS with a lookup that fails for some batches, on which the loss does not depend, but the update of v."""
    model = onnx.ModelProto()
    model.CopyFrom(TWO_LAYERS)
    graph = model.graph
    graph.input.append(onnx.helper.make_tensor_value_info("row", TensorProto.INT64, [1]))
    graph.node.append(onnx.helper.make_node("Gather", ["next.w", "row"], ["looked_up"], axis=0))
    graph.node.append(onnx.helper.make_node("ReduceSum", ["looked_up"], ["total"], keepdims=0))
    graph.output.append(onnx.helper.make_tensor_value_info("total", TensorProto.FLOAT, []))
    return model


def test_a_failure_during_the_update_loses_the_state(tmp_path: Path) -> None:
    trainer = Trainer(step_model(failing(), start()), kernel_options())
    good, bad = {**batch(), "row": np.array([1])}, {**batch(), "row": np.array([7])}
    trainer.step(**good)
    kept, before = tmp_path / "kept.safetensors", trainer.state_dict()
    with pytest.raises(StateLostError, match=r"failed during its update: .*out of data bounds.* by load_state_dict$"):
        Trainer(step_model(failing(), start()), kernel_options()).step(**bad)
    trainer.save(kept)
    with pytest.raises(StateLostError, match=rf"the last one is {kept}$"):
        trainer.step(**bad)
    attempts: list[Callable[[], object]] = [
        lambda: trainer.step(**good),
        trainer.state_dict,
        trainer.weights,
        lambda: trainer.learning_rate,
        lambda: trainer.save(tmp_path / "lost.safetensors"),
    ]
    for attempt in attempts:
        with pytest.raises(StateLostError, match="the state is lost"):
            attempt()
    assert not (tmp_path / "lost.safetensors").exists()
    trainer.load(kept)
    for name, array in trainer.state_dict().items():
        assert_same_bits(array, before[name])
    expected = Trainer(step_model(failing(), before), kernel_options()).step(**good)["loss"]
    assert_same_bits(trainer.step(**good)["loss"], expected)


def test_a_failure_with_two_sets_leaves_the_state() -> None:
    trainer = Trainer(step_model(failing(), start()), kernel_options(), keep_previous=True)
    before = trainer.state_dict()
    with pytest.raises(Exception, match="out of data bounds") as raised:
        trainer.step(**batch(), row=np.array([7]))
    assert not isinstance(raised.value, StepError)
    for name, array in trainer.state_dict().items():
        assert_same_bits(array, before[name])


def test_a_failure_before_the_update_leaves_the_state() -> None:
    """The batch's matrix has two columns, where its type says any number, and the step needs four."""
    model = onnx.ModelProto()
    model.CopyFrom(TWO_LAYERS)
    model.graph.input[3].type.tensor_type.shape.dim[1].dim_param = "columns"
    trainer = Trainer(step_model(model, start()), kernel_options())
    assert not trainer._state.keeps_previous
    before = trainer.state_dict()
    with pytest.raises(Exception, match="MatMul") as raised:
        trainer.step(x=np.ones((5, 2), np.float32), y=np.ones((5, 2), np.float32))
    assert not isinstance(raised.value, StepError)
    for name, array in trainer.state_dict().items():
        assert_same_bits(array, before[name])
    assert np.isfinite(trainer.step(**batch())["loss"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_leaves_the_state(value: float) -> None:
    trainer = Trainer(step_model(TWO_LAYERS, start()), kernel_options())
    trainer.step(**batch())
    before, bad = trainer.state_dict(), batch()
    bad["x"][0, 0] = value
    with pytest.raises(StepError, match=r"'loss' is (nan|inf), and the state is as before the step") as raised:
        trainer.step(**bad)
    assert not isinstance(raised.value, StateLostError)
    for name, array in trainer.state_dict().items():
        assert_same_bits(array, before[name])
    unchecked = Trainer(step_model(TWO_LAYERS, before), kernel_options(), check_finite=False)
    assert not np.isfinite(unchecked.step(**bad)["loss"])
    assert not np.isfinite(unchecked.state_dict()["v"]).all()


# --- updates by one node of an op with several outputs ---------------------------------------------------------------

NUMBERS = ("lr", "power1", "power2", "decay", "beta1", "beta2", "epsilon")
UPDATES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "FusedSgd": (("w", "g", "lr", "b", "decay", "beta1"), ("w", "b")),
    "ApplyAdamW": (
        ("w", "m", "v", "power1", "power2", "lr", "decay", "beta1", "beta2", "epsilon", "g", "largest"),
        ("w", "m", "v", "largest"),
    ),
}
"""By op: inputs of the node, of which `lr` alone is no constant, and the state that it updates."""


def step_by_one_node(op: str) -> onnx.ModelProto:
    """A step whose loss reads all of the state."""
    inputs, state = UPDATES[op]
    numbers = [helper.make_tensor(name, TensorProto.DOUBLE, [], [0.5]) for name in NUMBERS if name != "lr"]
    nodes = [
        helper.make_node("Sum", [*state, "x"], ["total"]),
        helper.make_node("ReduceSum", ["total"], ["loss"], keepdims=0),
        helper.make_node("Mul", ["total", "x"], ["g"]),
        helper.make_node(op, inputs, [f"next.{name}" for name in state], domain=DOMAIN),
    ]

    def vector(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])

    rate = helper.make_tensor_value_info("lr", TensorProto.DOUBLE, [])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    outputs = [loss, *(vector(f"next.{name}") for name in state)]
    graph = helper.make_graph(nodes, "step", [vector("x"), rate, *map(vector, state)], outputs, numbers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("op", UPDATES)
def test_no_output_of_an_update_is_copied(op: str) -> None:
    rewritten = in_place(step_by_one_node(op), "loss")
    assert rewritten is not None
    onnx.checker.check_model(rewritten.model, full_check=True)
    (update,) = (node for node in rewritten.model.graph.node if node.op_type == op)
    assert list(update.output) == [f"next.{name}" for name in UPDATES[op][1]]
