"""A classifier of 8x8 digit images: one or more hidden layers of ReLU units, ten sigmoid outputs, one per digit.

Each output answers "is this the digit k?" on its own (one against all), so the loss is binary cross-entropy with
logits, and the backward pass starts at the op `BinaryCrossEntropyWithLogitsBackward`. All the rest is standard ONNX.

Letters: N images in the batch, P = 64 pixels, H hidden units, K = 10 digits. The parameters of layer i are
`weight{i}` (inputs, outputs) and `bias{i}` (outputs).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import onnx
from onnx import parser

import onnx_ops

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
    shapes = parameter_shapes(hidden)
    state = _typed(_state_shapes(shapes))
    next_state = _typed({f"next_{name}": shape for name, shape in _state_shapes(shapes).items()})
    return _model(
        "training_step",
        inputs=f"{_images(batch)}, float[{batch}, {DIGITS}] targets, float learning_rate, {state}",
        outputs=f"float loss, {next_state}",
        body=f"""
            one = Constant <value = float {{1.0}}> ()
            zero = Constant <value = float {{0.0}}> ()
            batch_axis = Constant <value = int64[1] {{0}}> ()
            momentum = Constant <value = float {{{momentum}}}> ()
            {_forward(len(hidden))}
            {_LOSS}
            {_backward(len(hidden))}
            {_parameter_gradients(len(hidden))}
            {_update(shapes)}
        """,
    )


def inference(hidden: Sequence[int] = (64,), batch: str = "N") -> onnx.ModelProto:
    """From `images` (N, P) and the parameters to `logits` (N, K), `probabilities` (N, K) and `predictions` (N)."""
    return _model(
        "inference",
        inputs=f"{_images(batch)}, {_typed(parameter_shapes(hidden))}",
        outputs=f"float[{batch}, {DIGITS}] logits, float[{batch}, {DIGITS}] probabilities, int64[{batch}] predictions",
        body=f"""
            {_forward(len(hidden))}
            probabilities = Sigmoid (logits)
            predictions = ArgMax <axis = 1, keepdims = 0> (logits)
        """,
    )


def pixel_gradient(hidden: Sequence[int] = (64,), batch: str = "N") -> onnx.ModelProto:
    """The gradient of the loss on the pixels: from `images`, `targets` and the parameters to `grad_images` (N, P)."""
    return _model(
        "pixel_gradient",
        inputs=f"{_images(batch)}, float[{batch}, {DIGITS}] targets, {_typed(parameter_shapes(hidden))}",
        outputs=f"float[{batch}, {PIXELS}] grad_images",
        body=f"""
            one = Constant <value = float {{1.0}}> ()
            zero = Constant <value = float {{0.0}}> ()
            {_forward(len(hidden))}
            {_backward(len(hidden))}
            grad_images = Gemm <transB = 1> ({_grad_above(0, len(hidden))}, weight1)
        """,
    )


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
    state = {name: np.zeros(shape, np.float32) for name, shape in _state_shapes(parameter_shapes(hidden)).items()}
    for name, shape in parameter_shapes(hidden).items():
        if name.startswith("weight"):
            state[name] = rng.normal(0.0, np.sqrt(2.0 / shape[0]), shape).astype(np.float32)
    return state


def nudged(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The images (N, P), each moved by up to one pixel to any side: more to learn from than the images as they are."""
    padded = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    moved = np.lib.stride_tricks.sliding_window_view(padded, (SIDE, SIDE), axis=(1, 2))  # (N, 3, 3, 8, 8)
    down, right = rng.integers(3, size=(2, len(images)))
    return moved[np.arange(len(images)), down, right].reshape(-1, PIXELS)


# Forward: sum{i} is the input of layer i's units, hidden{i} their output. The last sum is the logits.


def _forward(n_hidden: int) -> str:
    lines = []
    below = "images"
    for layer in range(1, n_hidden + 1):
        lines.append(f"sum{layer} = Gemm ({below}, weight{layer}, bias{layer})")
        lines.append(f"hidden{layer} = Relu (sum{layer})")
        below = f"hidden{layer}"
    lines.append(f"logits = Gemm ({below}, weight{n_hidden + 1}, bias{n_hidden + 1})")
    return "\n".join(lines)


# log(1 + exp(x)) - x·y, arranged so that exp never sees a positive number.
_LOSS = """
    positive_part = Relu (logits)
    linear_part = Mul (logits, targets)
    magnitude = Abs (logits)
    minus_magnitude = Neg (magnitude)
    small = Exp (minus_magnitude)
    one_plus_small = Add (small, one)
    log_part = Log (one_plus_small)
    difference = Sub (positive_part, linear_part)
    losses = Add (difference, log_part)
    loss = ReduceMean <keepdims = 0> (losses)
"""


def _backward(n_hidden: int) -> str:
    """grad_logits, then grad_hidden{i} and grad_sum{i} from the last hidden layer down to the first."""
    mean = int(onnx_ops.Reduction.MEAN)
    lines = [
        f"grad_logits = {onnx_ops.DOMAIN}.BinaryCrossEntropyWithLogitsBackward <reduction = {mean}>"
        " (one, logits, targets)"
    ]
    for layer in range(n_hidden, 0, -1):
        lines.append(f"grad_hidden{layer} = Gemm <transB = 1> ({_grad_above(layer, n_hidden)}, weight{layer + 1})")
        lines.append(f"active{layer} = Greater (sum{layer}, zero)")
        lines.append(f"grad_sum{layer} = Where (active{layer}, grad_hidden{layer}, zero)")
    return "\n".join(lines)


def _parameter_gradients(n_hidden: int) -> str:
    lines = []
    for layer in range(1, n_hidden + 2):
        below = f"hidden{layer - 1}" if layer > 1 else "images"
        grad = _grad_above(layer - 1, n_hidden)
        lines.append(f"grad_weight{layer} = Gemm <transA = 1> ({below}, {grad})")
        lines.append(f"grad_bias{layer} = ReduceSum <keepdims = 0> ({grad}, batch_axis)")
    return "\n".join(lines)


def _grad_above(layer: int, n_hidden: int) -> str:
    """The gradient on the sums of the next layer up, which the last one calls logits."""
    return f"grad_sum{layer + 1}" if layer < n_hidden else "grad_logits"


def _update(names: Iterable[str]) -> str:
    lines = []
    for name in names:
        lines.append(f"kept_{name} = Mul (momentum, velocity_{name})")
        lines.append(f"next_velocity_{name} = Add (kept_{name}, grad_{name})")
        lines.append(f"step_{name} = Mul (learning_rate, next_velocity_{name})")
        lines.append(f"next_{name} = Sub ({name}, step_{name})")
    return "\n".join(lines)


def _state_shapes(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return shapes | {f"velocity_{name}": shape for name, shape in shapes.items()}


def _images(batch: str) -> str:
    return f"float[{batch}, {PIXELS}] images"


def _typed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in shapes.items())


def _model(name: str, inputs: str, outputs: str, body: str) -> onnx.ModelProto:
    return parser.parse_model(f"""
        <ir_version: {IR_VERSION}, opset_import: ["": {ONNX_OPSET}, "{onnx_ops.DOMAIN}": {onnx_ops.OPSET_VERSION}]>
        {name} ({inputs}) => ({outputs})
        {{
            {body}
        }}
    """)
