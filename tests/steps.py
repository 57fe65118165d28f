"""Training steps written by hand: a linear classifier under binary cross entropy, with momentum, and small ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from linear_oracle import DECAY, MOMENTUM, State
from onnx import TensorProto, helper

from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.step_format import CONDITION_NUMBERS, CONDITIONS, InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Builder, Value
from onnx_ops.training.checkpoints import open_checkpoint
from onnx_ops.training.conditions import Condition, Number
from onnx_ops.training.forward_session import reporting_part
from onnx_ops.training.ranges import IndexRange
from onnx_ops.training.step import Bounds, Step
from onnx_ops.training.step_files import step_model

FEATURES, CLASSES = 3, 2
SCALAR = TensorType(TensorProto.FLOAT, ())

ROLES = {
    "linear.weight": InputRole.PARAMETER,
    "linear.bias": InputRole.PARAMETER,
    "mean": InputRole.BUFFER,
    "optimizer.momentum.linear.weight": InputRole.OPTIMIZER,
    "seed": InputRole.SEED,
    "learning_rate": InputRole.SETTING,
}
STEP = Step(ROLES, {"head.weight": "linear.weight"})


def start(dtype: np.dtype | type = np.float32) -> State:
    """The state that a step starts from. Settings are float32, in models of float64 float64."""
    rng = np.random.default_rng(5)
    setting = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    return {
        "linear.weight": rng.normal(size=(FEATURES, CLASSES)).astype(dtype),
        "linear.bias": np.zeros(CLASSES, dtype),
        "mean": np.zeros(FEATURES, dtype),
        "optimizer.momentum.linear.weight": np.zeros((FEATURES, CLASSES), dtype),
        "seed": np.array(7, np.int64),
        "learning_rate": np.array(0.5, setting),
    }


SHARED = 8
"""Samples in a batch that several workers share."""


def batch(samples: int = 4, dtype: np.dtype | type = np.float32, seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, FEATURES))
    return {"x": x.astype(dtype), "y": (x[:, :CLASSES] > 0).astype(dtype)}


def bare_step(dtype: int = TensorProto.FLOAT, samples: int | str = "N") -> onnx.ModelProto:
    """The step, with metadata and without a start."""
    setting = TensorProto.DOUBLE if dtype == TensorProto.DOUBLE else TensorProto.FLOAT
    b = Builder(dtype)
    weights, features = TensorType(dtype, (FEATURES, CLASSES)), TensorType(dtype, (FEATURES,))
    weight = b.input("linear.weight", weights)
    bias = b.input("linear.bias", TensorType(dtype, (CLASSES,)))
    mean = b.input("mean", features)
    momentum = b.input("optimizer.momentum.linear.weight", weights)
    seed = b.input("seed", TensorType(TensorProto.INT64, ()))
    rate = b.input("learning_rate", TensorType(setting, ())).cast(dtype)
    x = b.input("x", TensorType(dtype, (samples, FEATURES)))
    y = b.input("y", TensorType(dtype, (samples, CLASSES)))
    logits = _logits(b, x, mean, weight, bias)
    loss = b.op("BinaryCrossEntropyWithLogits", logits, y, domain=DOMAIN, name="bce")
    grad = b.op("BinaryCrossEntropyWithLogitsBackward", 1.0, logits, y, domain=DOMAIN)
    # No product with a transposed matrix: onnxruntime 1.23 makes one operator of the two that it has not for double.
    weight_grad = b.op("Einsum", _centred(x, mean), grad, equation="nf,nc->fc", name="grad.linear.weight")
    moved = momentum * MOMENTUM + weight_grad
    b.output("loss", loss, TensorType(dtype, ()))
    b.output("logits", logits, TensorType(dtype, (samples, CLASSES)))
    b.output("next.linear.weight", weight - rate * moved, weights)
    bias_grad = b.op("ReduceSum", grad, [0], keepdims=0, name="grad.linear.bias")
    b.output("next.linear.bias", bias - rate * bias_grad, TensorType(dtype, (CLASSES,)))
    seen = b.op("ReduceMean", x, [0], keepdims=0)
    b.output("next.mean", mean * DECAY + seen * (1 - DECAY), features)
    b.output("next.optimizer.momentum.linear.weight", moved, weights)
    b.output("next.seed", seed + 1, TensorType(TensorProto.INT64, ()))
    model = _model(b.graph("linear"))
    STEP.write_into(model)
    return model


def inference_graph(dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """The trained classifier, its parameters among the inputs: gate(sigmoid(logits))."""
    b = Builder(dtype)
    weight = b.input("linear.weight", TensorType(dtype, (FEATURES, CLASSES)))
    bias = b.input("linear.bias", TensorType(dtype, (CLASSES,)))
    mean = b.input("mean", TensorType(dtype, (FEATURES,)))
    x = b.input("x", TensorType(dtype, ("N", FEATURES)))
    y = b.op("Hardshrink", b.op("Sigmoid", _logits(b, x, mean, weight, bias)), domain=DOMAIN)
    b.output("probabilities", y, TensorType(dtype, ("N", CLASSES)))
    return _model(b.graph("classifier"))


def read_checkpoint(path: Path) -> tuple[State, dict[str, str]]:
    """The arrays of a checkpoint, and its metadata."""
    tensors, metadata = open_checkpoint(path)
    return {name: np.asarray(tensor) for name, tensor in tensors.items()}, metadata


def whole_step(
    dtype: np.dtype | type = np.float32,
    samples: int | str = "N",
    *,
    inference: bool = True,
    changes_mean: bool = True,
) -> onnx.ModelProto:
    """What a step's file holds."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    bare = bare_step(element, samples)
    if not changes_mean:
        kept = [value for value in bare.graph.output if value.name != "next.mean"]
        del bare.graph.output[:]
        bare.graph.output.extend(kept)
    return step_model(bare, start(dtype), inference_graph(element) if inference else None)


def step_with_evaluation() -> onnx.ModelProto:
    """A step that carries the graphs for inference and evaluation."""
    bare = bare_step()
    return step_model(bare, start(), inference_graph(), reporting_part(bare))


def step_of_batch_norm() -> onnx.ModelProto:
    """The same with the bounds of a step whose batch norm needs two samples, unless it has other statistics."""
    model = step_with_evaluation()
    dataclasses.replace(Step.of(model), bounds={"N": Bounds(2, None, 1)}).write_into(model)
    return model


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _centred(x: Value, mean: Value) -> Value:
    return x - mean


def _logits(b: Builder, x: Value, mean: Value, weight: Value, bias: Value) -> Value:
    return b.op("MatMul", _centred(x, mean), weight) + bias


STORED: dict[type[np.generic], list[float]] = {
    np.float16: [1.5, -2.0, 65504.0],
    np.float32: [1.5, -np.inf, 1e-40],
    np.float64: [1e300, -0.1, 5e-324],
    np.bool_: [True, False, True],
    np.int8: [-128, 0, 127],
    np.uint8: [0, 200, 255],
    np.int16: [-(2**15), -1, 2**15 - 1],
    np.uint16: [0, 1, 2**16 - 1],
    np.int32: [-(2**31), -1, 2**31 - 1],
    np.uint32: [0, 1, 2**32 - 1],
    np.int64: [-(2**63), -1, 2**63 - 1],
    np.uint64: [0, 2**53 + 1, 2**64 - 1],
}
"""Numbers of every dtype, its extremes among them."""


def stored_state(shapes: Sequence[tuple[int, ...]]) -> State:
    """Buffers of every dtype and the shapes, by their names in `carrying_step`, and a count of steps."""
    state: State = {"count": np.array(0, np.float32)}
    for dtype, numbers in STORED.items():
        for shape in shapes:
            state[f"{dtype.__name__} {shape}"] = np.resize(np.array(numbers, dtype), shape)
    return state


def carrying_step(state: State) -> onnx.ModelProto:
    """A step that adds 1 to the buffer `count` and leaves all others as they are."""
    elements = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in state.items()}
    b = Builder(TensorProto.FLOAT)
    inputs = {name: b.input(name, TensorType(elements[name], array.shape)) for name, array in state.items()}
    b.output("next.count", inputs["count"] + 1.0, TensorType(TensorProto.FLOAT, ()))
    model = _model(b.graph("carried"))
    Step(dict.fromkeys(state, InputRole.BUFFER)).write_into(model)
    return model


def averaging_step() -> onnx.ModelProto:
    """A step of a weight and its average, whose inference graph is x * weight, and whose evaluation is its square."""

    def graph(**outputs: Callable[..., Any]) -> onnx.ModelProto:
        b = Builder(TensorProto.FLOAT)
        x, weight = b.input("x", SCALAR), b.input("weight", SCALAR)
        average = b.input("averaged.module.weight", SCALAR) if "loss" in outputs and len(outputs) > 1 else None
        for name, output in outputs.items():
            b.output(name.replace("next_", "next.").replace("grad_", "grad."), output(x, weight, average), SCALAR)
        return helper.make_model(b.graph("graph"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    model = graph(
        loss=lambda x, weight, average: x * weight,
        next_weight=lambda x, weight, average: weight - x,
        **{"next_averaged.module.weight": lambda x, weight, average: (average + weight) / 2.0},
    )
    Step({"weight": InputRole.PARAMETER, "averaged.module.weight": InputRole.BUFFER}).write_into(model)
    state = {"weight": np.float32(3), "averaged.module.weight": np.float32(5)}
    return step_model(
        model,
        {name: np.asarray(value) for name, value in state.items()},
        graph(y=lambda x, weight, _: x * weight),
        graph(loss=lambda x, weight, _: x * weight * weight),
    )


def index_batches() -> Iterator[dict[str, np.ndarray]]:
    """Batches for `indexing_step`, some with too many rows or indices out of range."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        rows = rng.integers(0, 5, size=(rng.integers(1, 6), 3))
        rows[3:4] = 7
        rows.reshape(-1)[rng.integers(rows.size)] = rng.integers(-4, 10)
        yield {"rows": rows}


def indexing_step() -> onnx.ModelProto:
    """A step that reports the sum of its indices, of which there may be two to four rows."""
    b = Builder(TensorProto.FLOAT)
    weight = b.input("weight", SCALAR)
    rows = b.input("rows", TensorType(TensorProto.INT64, ("N", 3)))
    b.output("loss", b.op("ReduceSum", rows.cast(TensorProto.FLOAT), keepdims=0) * weight, SCALAR)
    b.output("next.weight", weight + 1.0, SCALAR)
    model = helper.make_model(b.graph("indices"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    ranges = (
        IndexRange("rows", -3, 9),
        IndexRange("rows", 0, 8, -1, ((0, 1, 2**63 - 1, 2), (1, -1))),
        IndexRange("rows", -1, 8, cuts=((1, -1, -3, -1), (0, -2, 9, 1))),
        IndexRange("rows", 7, 8, cuts=((0, 3),)),
    )
    Step({"weight": InputRole.PARAMETER}, bounds={"N": Bounds(2, 4)}, ranges=ranges).write_into(model)
    return step_model(model, {"weight": np.array(1, np.float32)})


def multiple_batches() -> Iterator[dict[str, np.ndarray]]:
    """Batches for `multiples_step`, right ones last."""
    for x, y in ((6, 3), (4, 2), (0, 0), (7, 2), (5, 3), (21, 10), (3, 1), (7, 3), (9, 4)):
        yield {"x": np.ones((x, 2), np.float32), "y": np.ones((y, 1), np.float32)}


def multiples_step() -> onnx.ModelProto:
    """A step of pairs of rows and one more; `y` has a row for each pair."""
    b = Builder(TensorProto.FLOAT)
    weight = b.input("weight", SCALAR)
    x = b.input("x", TensorType(TensorProto.FLOAT, ("2*pairs + 1", 2)))
    y = b.input("y", TensorType(TensorProto.FLOAT, ("pairs", 1)))
    b.output("loss", (b.op("ReduceSum", x, keepdims=0) + b.op("ReduceSum", y, keepdims=0)) * weight, SCALAR)
    b.output("next.weight", weight + 1.0, SCALAR)
    model = helper.make_model(b.graph("multiples"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Step({"weight": InputRole.PARAMETER}, bounds={"2*pairs + 1": Bounds(5, 19)}).write_into(model)
    return step_model(model, {"weight": np.array(1, np.float32)})


def conditional_step() -> onnx.ModelProto:
    """A step that adds x to a weight; it is valid for three numbers from -1 to 1 and for a next weight up to 8."""
    b = Builder(TensorProto.FLOAT)
    weight, x = b.input("weight", SCALAR), b.input("x", SCALAR)
    numbers = b.input("numbers", TensorType(TensorProto.DOUBLE, (3,)))
    moved = weight + x
    read = b.op("Concat", numbers, b.op("Reshape", moved.cast(TensorProto.DOUBLE), [1]), axis=0)
    holds = b.op("LessOrEqual", b.op("Abs", read), b.constant(np.array([1.0, 1.0, 1.0, 8.0])))
    b.output("loss", moved, SCALAR)
    b.output("next.weight", moved + 0.0, SCALAR)
    b.output(CONDITIONS, holds, TensorType(TensorProto.BOOL, (4,)))
    b.output(CONDITION_NUMBERS, read, TensorType(TensorProto.DOUBLE, (4,)))
    model = helper.make_model(b.graph("conditional"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    evaluation = onnx.ModelProto()
    evaluation.CopyFrom(model)
    kept = [value for value in model.graph.output if value.name != "next.weight"]
    del evaluation.graph.output[:]
    evaluation.graph.output.extend(kept)
    conditions = (
        Condition("model.py, line 1", "if x.any():", (Number(0, "bool", "True"), Number(1, "int", "1"))),
        Condition("model.py, line 2", "", (Number(1, "int", "1"),)),
        Condition("model.py, line 3", "if x > 1:", (Number(2, "float", "0.5"),), "at most 1"),
        Condition("model.py, line 4", "", (Number(3, "float", ""),), "a sum of at most 8"),
    )
    Step({"weight": InputRole.PARAMETER}, conditions=conditions).write_into(model)
    return step_model(model, {"weight": np.array(1, np.float32)}, evaluation=evaluation)


def conditional_batches(*more: float) -> list[dict[str, np.ndarray]]:
    """Batches of `conditional_step`, most of which it refuses: large, small and special numbers, and `more` of them.

    The last ones let the weight grow beyond its bound.
    """
    floats = [0.5, 2, -1.5, 1e16, 123456789012345680.0, 1e15, -2.5e-5, 1e21, np.inf, -np.inf, np.nan, *more]
    numbers: list[tuple[float, ...]] = [(1, 1, number) for number in floats]
    numbers += [(1, number, -0.0) for number in (0, 2, -3, 2.0**70, np.nan)]
    numbers += [(number, 1, 1) for number in (7, np.nan)]
    numbers += [(0, 0, 0)] * 8
    return [{"x": np.array(1, np.float32), "numbers": np.array(three, np.float64)} for three in numbers]


def gather_step() -> onnx.ModelProto:
    """A step that fails, after it has computed the next state, where an index is out of range."""
    b = Builder()
    one = TensorType(TensorProto.FLOAT, (1,))
    weight = b.input("w", TensorType(TensorProto.FLOAT, (2,)))
    index = b.input("i", TensorType(TensorProto.INT64, (1,)))
    moved = weight * 2.0
    loss = b.op("Gather", moved, index)
    b.output("loss", loss, one)
    b.output("next.w", moved, TensorType(TensorProto.FLOAT, (2,)))
    model = helper.make_model(b.graph("gather"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Step({"w": InputRole.PARAMETER}).write_into(model)
    return step_model(model, {"w": np.float32([1, 2])})
