"""A training step for a multilayer perceptron with ReLU, written without PyTorch.

The loss is binary cross entropy with logits, the optimizer SGD with momentum. As in captured steps, the gradient with
respect to a parameter is named `grad.<parameter>`, so that data-parallel training can average it.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper

import onnx_ops
from onnx_ops.core.step_format import GRADIENT, LEARNING_RATE, LOSS, NEXT, InputRole, optimizer_name
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Builder, Value
from onnx_ops.training.step import Step
from onnx_ops.training.step_files import step_model

ONNX_OPSET = 21
IR_VERSION = 10


def perceptron_step(
    sizes: Sequence[int], *, momentum: float = 0.9, rate: float = 0.1, seed: int = 0
) -> onnx.ModelProto:
    """A training step with its initial state, for `onnx_ops.Trainer`.

    Args:
        sizes: numbers of features of the input, the hidden layers and the output.
        momentum: of SGD.
        rate: initial learning rate.
        seed: of the initial weights.

    Returns:
        A model with the batch inputs `x` (N, sizes[0]) and `labels` (N, sizes[-1]), float32, labels 0 or 1, and the
        output `loss`. Its inference graph maps `x` to `logits` (N, sizes[-1]).
    """
    b, rng = Builder(), np.random.default_rng(seed)
    start: dict[str, np.ndarray] = {}
    layers = list(pairwise(sizes))
    for i, (inputs, outputs) in enumerate(layers):
        start[f"weight{i}"] = (rng.normal(size=(inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)
        start[f"bias{i}"] = np.zeros(outputs, np.float32)
    roles = dict.fromkeys(start, InputRole.PARAMETER)
    types = {name: TensorType.of(array) for name, array in start.items()}
    parameters = {name: b.input(name, tensor) for name, tensor in types.items()}
    momenta = {name: optimizer_name("momentum", name) for name in types}
    moving = {name: b.input(momenta[name], tensor) for name, tensor in types.items()}
    roles |= dict.fromkeys(momenta.values(), InputRole.OPTIMIZER)
    start |= {momentum: np.zeros_like(start[name]) for name, momentum in momenta.items()}
    learning_rate = b.input(LEARNING_RATE, TensorType(TensorProto.FLOAT, ()))
    roles[LEARNING_RATE], start[LEARNING_RATE] = InputRole.SETTING, np.array(rate, np.float32)

    x = b.input("x", TensorType(TensorProto.FLOAT, ("N", sizes[0])))
    labels = b.input("labels", TensorType(TensorProto.FLOAT, ("N", sizes[-1])))
    *entering, logits = forward(b, x, parameters)
    b.output(
        LOSS,
        b.op("BinaryCrossEntropyWithLogits", logits, labels, domain=onnx_ops.DOMAIN),
        TensorType(TensorProto.FLOAT, ()),
    )
    grad = b.op("BinaryCrossEntropyWithLogitsBackward", 1.0, logits, labels, domain=onnx_ops.DOMAIN)
    for i in reversed(range(len(layers))):
        gradients = {
            f"weight{i}": b.op("Gemm", entering[i], grad, transA=1, name=f"{GRADIENT}weight{i}"),
            f"bias{i}": b.op("ReduceSum", grad, [0], keepdims=0, name=f"{GRADIENT}bias{i}"),
        }
        if i:
            before = b.op("Gemm", grad, parameters[f"weight{i}"], transB=1)
            grad = b.op("ThresholdBackward", before, entering[i], domain=onnx_ops.DOMAIN, threshold=0.0)
        for name, gradient in gradients.items():
            moved = moving[name] * momentum + gradient
            b.output(NEXT + name, parameters[name] - learning_rate * moved, types[name])
            b.output(NEXT + momenta[name], moved, types[name])
    model = model_of(b, "perceptron")
    Step(roles).write_into(model)
    return step_model(model, start, inference(types))


def inference(types: Mapping[str, TensorType]) -> onnx.ModelProto:
    """The forward pass, with parameters of these types as inputs."""
    b = Builder()
    weights = [tensor for name, tensor in types.items() if name.startswith("weight")]
    x = b.input("x", TensorType(TensorProto.FLOAT, ("N", (weights[0].shape or ())[0])))
    *_, logits = forward(b, x, {name: b.input(name, tensor) for name, tensor in types.items()})
    b.output("logits", logits, TensorType(TensorProto.FLOAT, ("N", (weights[-1].shape or ())[1])))
    return model_of(b, "inference")


def forward(b: Builder, x: Value, parameters: Mapping[str, Value]) -> list[Value]:
    """The input of each layer, then the logits."""
    values, layers = [x], len(parameters) // 2
    for i in range(layers):
        value = b.op("Gemm", values[-1], parameters[f"weight{i}"], parameters[f"bias{i}"])
        values.append(b.op("Relu", value) if i + 1 < layers else value)
    return values


def model_of(b: Builder, name: str) -> onnx.ModelProto:
    """The model of the builder's graph."""
    imports = [helper.make_opsetid("", ONNX_OPSET), onnx_ops.opset_import()]
    return helper.make_model(b.graph(name), opset_imports=imports, ir_version=IR_VERSION)
