"""A classifier of 8x8 digit images: one or more hidden layers of ReLU units, ten sigmoid outputs, one per digit.

Each output answers "is this the digit k?" on its own (one against all), so the loss is the op
`BinaryCrossEntropyWithLogits`, and the backward pass starts at its gradient, `BinaryCrossEntropyWithLogitsBackward`.
All the rest is standard ONNX.

Letters: N images in the batch, P = 64 pixels, H hidden units, K = 10 digits. The parameters of layer i are
`weight{i}` (inputs, outputs) and `bias{i}` (outputs).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper

import onnx_ops
from onnx_ops.core.types import Dim, TensorType
from onnx_ops.graph.builder import Builder, Value

SIDE = 8
PIXELS = SIDE * SIDE
DIGITS = 10
ONNX_OPSET = 21
IR_VERSION = 10


def training_step(hidden: Sequence[int] = (64,), batch: str = "N", momentum: float = 0.9) -> onnx.ModelProto:
    """One step of gradient descent with momentum: forward, loss, backward and update in a single graph.

    Inputs: `images` (N, P), `targets` (N, K) one-hot, `learning_rate` (), then the state as `initial_state` names it:
    every parameter, and for every parameter its `velocity_...`.
    Outputs: `loss` (), the mean over N and K, then `next_...` of every tensor of the state, in the same order.
    """
    b = Builder()
    images, targets = b.input("images", _floats(batch, PIXELS)), b.input("targets", _floats(batch, DIGITS))
    learning_rate = b.input("learning_rate", _floats())
    shapes = parameter_shapes(hidden)
    parameters = _inputs(b, shapes)
    velocities = _inputs(b, shapes, "velocity_")

    network = _forward(b, images, parameters)
    b.output("loss", _loss(b, "BinaryCrossEntropyWithLogits", network.logits, targets, name="loss"), _floats())

    gradients: dict[str, Value] = {}
    for layer, grad_sum in enumerate(_backward(b, network, targets, parameters), start=1):
        below = network.layer_inputs[layer - 1]
        gradients[f"weight{layer}"] = b.op("Gemm", below, grad_sum, transA=1, name=f"grad_weight{layer}")
        gradients[f"bias{layer}"] = b.op("ReduceSum", grad_sum, [0], keepdims=0, name=f"grad_bias{layer}")

    factor = b.constant(momentum, name="momentum")
    next_velocities = {
        name: (factor * velocities[name]).named(f"kept_{name}") + gradient for name, gradient in gradients.items()
    }
    for name, shape in shapes.items():
        change = (learning_rate * next_velocities[name]).named(f"step_{name}")
        b.output(f"next_{name}", parameters[name] - change, _floats(*shape))
    for name, shape in shapes.items():
        b.output(f"next_velocity_{name}", next_velocities[name], _floats(*shape))
    return _model(b, "training_step")


def inference(hidden: Sequence[int] = (64,), batch: str = "N") -> onnx.ModelProto:
    """From `images` (N, P) and the parameters to `logits` (N, K), `probabilities` (N, K) and `predictions` (N)."""
    b = Builder()
    images = b.input("images", _floats(batch, PIXELS))
    logits = _forward(b, images, _inputs(b, parameter_shapes(hidden))).logits
    b.output("logits", logits, _floats(batch, DIGITS))
    b.output("probabilities", b.op("Sigmoid", logits), _floats(batch, DIGITS))
    b.output("predictions", b.op("ArgMax", logits, axis=1, keepdims=0), TensorType(TensorProto.INT64, (batch,)))
    return _model(b, "inference")


def pixel_gradient(hidden: Sequence[int] = (64,), batch: str = "N") -> onnx.ModelProto:
    """The gradient of the loss on the pixels: from `images`, `targets` and the parameters to `grad_images` (N, P)."""
    b = Builder()
    images, targets = b.input("images", _floats(batch, PIXELS)), b.input("targets", _floats(batch, DIGITS))
    parameters = _inputs(b, parameter_shapes(hidden))
    first, *_ = _backward(b, _forward(b, images, parameters), targets, parameters)
    b.output("grad_images", b.op("Gemm", first, parameters["weight1"], transB=1), _floats(batch, PIXELS))
    return _model(b, "pixel_gradient")


def parameter_shapes(hidden: Sequence[int] = (64,)) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters, first layer first."""
    sizes = [PIXELS, *hidden, DIGITS]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (n_in, n_out) in enumerate(pairwise(sizes), start=1):
        shapes[f"weight{layer}"] = (n_in, n_out)
        shapes[f"bias{layer}"] = (n_out,)
    return shapes


def initial_state(hidden: Sequence[int] = (64,), seed: int = 0) -> dict[str, np.ndarray]:
    """What `training_step` starts from: random weights of variance 2 / inputs (He et al., 2015), all else zero."""
    rng = np.random.default_rng(seed)
    shapes = parameter_shapes(hidden)
    parameters = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        if name.startswith("weight"):
            parameters[name] = rng.normal(0.0, np.sqrt(2.0 / shape[0]), shape).astype(np.float32)
    return parameters | {f"velocity_{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}


def one_hot(labels: np.ndarray) -> np.ndarray:
    """From labels (N) to targets (N, K)."""
    return np.eye(DIGITS, dtype=np.float32)[labels]


def nudged(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The images (N, P), each moved by up to one pixel to any side: more to learn from than the images as they are."""
    padded = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    moved = np.lib.stride_tricks.sliding_window_view(padded, (SIDE, SIDE), axis=(1, 2))  # (N, 3, 3, 8, 8)
    down, right = rng.integers(3, size=(2, len(images)))
    return moved[np.arange(len(images)), down, right].reshape(-1, PIXELS)


@dataclass(frozen=True)
class _Network:
    """The forward pass: what goes into each layer, the sums that each hidden layer makes of it, and the logits."""

    layer_inputs: list[Value]
    hidden_sums: list[Value]
    logits: Value


def _forward(b: Builder, images: Value, parameters: dict[str, Value]) -> _Network:
    layers = len(parameters) // 2
    layer_inputs, sums = [images], []
    for layer in range(1, layers + 1):
        name = f"sum{layer}" if layer < layers else "logits"
        weight, bias = parameters[f"weight{layer}"], parameters[f"bias{layer}"]
        sums.append(b.op("Gemm", layer_inputs[-1], weight, bias, name=name))
        if layer < layers:
            layer_inputs.append(b.op("Relu", sums[-1], name=f"hidden{layer}"))
    return _Network(layer_inputs, sums[:-1], sums[-1])


def _backward(b: Builder, network: _Network, targets: Value, parameters: dict[str, Value]) -> list[Value]:
    """The gradients of the loss by the sums of each layer, first layer first."""
    op = "BinaryCrossEntropyWithLogitsBackward"
    gradients = [_loss(b, op, 1.0, network.logits, targets, name="grad_logits")]
    for layer in range(len(network.hidden_sums), 0, -1):
        grad = b.op("Gemm", gradients[0], parameters[f"weight{layer + 1}"], transB=1, name=f"grad_hidden{layer}")
        is_active = network.hidden_sums[layer - 1].greater(0.0).named(f"active{layer}")
        gradients.insert(0, b.op("Where", is_active, grad, 0.0, name=f"grad_sum{layer}"))
    return gradients


def _loss(b: Builder, op_type: str, *inputs: Value | float, name: str) -> Value:
    """The mean binary cross entropy, or its gradient."""
    return b.op(op_type, *inputs, name=name, domain=onnx_ops.DOMAIN, reduction=int(onnx_ops.Reduction.MEAN))


def _inputs(b: Builder, shapes: dict[str, tuple[int, ...]], prefix: str = "") -> dict[str, Value]:
    """Inputs of these shapes, by name without the prefix."""
    return {name: b.input(prefix + name, _floats(*shape)) for name, shape in shapes.items()}


def _floats(*shape: Dim) -> TensorType:
    return TensorType(TensorProto.FLOAT, shape)


def _model(b: Builder, name: str) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", ONNX_OPSET), onnx_ops.opset_import()]
    return helper.make_model(b.graph(name), ir_version=IR_VERSION, opset_imports=opsets)
