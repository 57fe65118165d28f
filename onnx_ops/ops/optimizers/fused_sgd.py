"""FusedSgd: a step of stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.errors import Status
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Default, Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import (
    DOUBLE,
    FLOAT,
    FLOAT16,
    address_of,
    allocate,
    bfloats_at,
    doubles_at,
    floats_at,
    free,
    halves_at,
    item_size,
    record_at,
)
from onnx_ops.loops.primitives import Array, Number, choose, fma, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import size_of
from onnx_ops.ops.optimizers._steps import block_of, check_shapes, plan_blocks, scalar, scalar_value
from onnx_ops.ops.references import rounded

TENSORS = ("param", "grad", "momentum_buffer")
SCALARS = ("lr", "weight_decay", "momentum", "dampening")
SIGNATURE = Signature(
    "FusedSgd",
    """
One step of stochastic gradient descent (aclnnFusedSgd) for one parameter, with momentum (Sutskever et al., 2013) if
`momentum_buffer` is given. With g = `grad`, or `-grad` if `maximize` is 1:

    d                   = g + weight_decay * param
    momentum_buffer_out = momentum * momentum_buffer + (1 - dampening) * d
    param_out           = param - lr * d                                     without momentum_buffer
                        = param - lr * momentum_buffer_out                   with it
                        = param - lr * (d + momentum * momentum_buffer_out)  with it, if nesterov is 1

Shapes: `param`, `grad`, `momentum_buffer` and the outputs have one shape, of rank 0 to 8. All others have one element,
and shape () or (1).

Dtypes: the tensors have one dtype, float16, bfloat16, float or double; the others have one dtype too, best double.
Elements are computed in double for double, else in float, with the others rounded once.

Edge rules: `weight_decay` and `dampening` are 0 where omitted. `momentum_buffer` and `momentum` are given together,
`dampening` only with them; `momentum_buffer_out` requires them. The first step of PyTorch, whose momentum buffer is d,
is that with a `momentum_buffer` and a `dampening` of 0. NaN and infinities propagate as in the formula. Tensors may be
empty.

Without a kernel: shapes known only at run time broadcast as in ONNX operators. Inputs that only some nodes of a model
have are 0 in the others.
""",
    inputs=(
        Input("param", "The parameter."),
        Input("grad", "Gradient of the loss with respect to `param`.", like="param"),
        Input("lr", "Learning rate."),
        Input(
            "momentum_buffer",
            "Moving sum of the gradients.",
            like="param",
            default=Default(0.0, like="param"),
        ),
        Input(
            "weight_decay",
            "Share of `param` that is added to the gradient.",
            like="lr",
            default=Default(0.0),
        ),
        Input("momentum", "Decay rate of `momentum_buffer`.", like="lr", default=Default(0.0)),
        Input(
            "dampening",
            "Share of the gradient that `momentum_buffer_out` lacks.",
            like="lr",
            default=Default(0.0),
        ),
    ),
    outputs=(
        Output("param_out", "The parameter after the step.", "param"),
        Output(
            "momentum_buffer_out",
            "`momentum_buffer` after the step.",
            "param",
            optional=True,
            requires="momentum_buffer",
        ),
    ),
    attributes=(
        attribute("nesterov", 0, "1: Nesterov momentum."),
        attribute("maximize", 0, "1: maximize instead of minimize."),
    ),
)


def reference(
    param: np.ndarray,
    grad: np.ndarray,
    lr: np.ndarray,
    momentum_buffer: np.ndarray | None,
    weight_decay: np.ndarray | None,
    momentum: np.ndarray | None,
    dampening: np.ndarray | None,
    *,
    nesterov: int = 0,
    maximize: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """NumPy definition, in float64.

    Args:
        param, grad, momentum_buffer: floating arrays of one dtype and shape; momentum_buffer may be None.
        lr, weight_decay, momentum, dampening: arrays of one element; None for 0, except for lr.
        nesterov: whether the momentum is that of Nesterov.
        maximize: whether to negate grad.
        dtype: dtype of the results instead of that of param.

    Returns:
        param_out, and momentum_buffer_out or None, of the shape of param.
    """
    rate, kept, lacking = (
        np.float64(0 if number is None else number.reshape(())) for number in (lr, momentum, dampening)
    )
    with np.errstate(all="ignore"):
        parameter, direction = param.astype(np.float64), grad.astype(np.float64)
        direction = -direction if maximize else direction
        if weight_decay is not None:
            direction = direction + np.float64(weight_decay.reshape(())) * parameter
        if momentum_buffer is None:
            return rounded(parameter - rate * direction, param.dtype, dtype), None
        buffer = kept * momentum_buffer.astype(np.float64) + (1 - lacking) * direction
        direction = direction + kept * buffer if nesterov else buffer
        return rounded(parameter - rate * direction, param.dtype, dtype), rounded(buffer, param.dtype, dtype)


# --- the kernel: one task per block of elements -----------------------------------------------------------------------

PARAM, GRAD, RATE, BUFFER, DECAY, MOMENTUM, DAMPENING = range(7)
PARAM_OUT, BUFFER_OUT = range(2)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


@helper
def step(
    param: Array, grad: Array, new_param: Array | None, factors: Sequence[Number], decays: bool, count: int
) -> None:
    """`count` elements in the dtype of the arrays.

    With explicit `fma`, as LLVM may choose either product of a sum of two, in place another one than out of place.

    Args:
        new_param: None: in place. LLVM vectorizes a loop that reads and writes one array, but no loop over two arrays
            that overlap at run time.
        factors: in the order of `task`.
        decays: whether there is a weight decay.
    """
    out = param if new_param is None else new_param
    sign, rate, decay = factors[0], factors[1], factors[2]
    for i in range(count):
        g = sign * grad[i]
        d = choose(decays, fma(decay, param[i], g), g)
        out[i] = fma(-rate, d, param[i])


@helper
def step_with_momentum(
    param: Array,
    grad: Array,
    buffer: Array,
    outs: tuple[Array, Array] | None,
    factors: Sequence[Number],
    decays: bool,
    nesterov: bool,
    count: int,
) -> None:
    """`step` with momentum; outs: new param and buffer, None: in place."""
    new_param, new_buffer = (param, buffer) if outs is None else outs
    sign, rate, decay, momentum, entering = factors
    for i in range(count):
        g = sign * grad[i]
        d = choose(decays, fma(decay, param[i], g), g)
        b = fma(momentum, buffer[i], entering * d)
        new_buffer[i] = b
        new_param[i] = fma(-rate, choose(nesterov, fma(momentum, b, d), b), param[i])


@helper
def step_at(
    places: tuple[int, ...],
    factors: Sequence[Number],
    with_momentum: bool,
    decays: bool,
    nesterov: bool,
    count: int,
    numbers_at: Callable[..., Any],
) -> None:
    """A step of the elements at the addresses of inputs and outputs, viewed by numbers_at."""
    param, grad, new_param = numbers_at(places[0], count), numbers_at(places[1], count), numbers_at(places[3], count)
    if with_momentum:
        buffer, new_buffer = numbers_at(places[2], count), numbers_at(places[4], count)
        if places[0] == places[3] and places[2] == places[4]:
            step_with_momentum(param, grad, buffer, None, factors, decays, nesterov, count)
        else:
            step_with_momentum(param, grad, buffer, (new_param, new_buffer), factors, decays, nesterov, count)
    elif places[0] == places[3]:
        step(param, grad, None, factors, decays, count)
    else:
        step(param, grad, new_param, factors, decays, count)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes; one task per block of elements."""
    return plan_blocks(kernel, job, (GRAD, BUFFER), (RATE, DECAY, MOMENTUM, DAMPENING), 2)


def task(job: Job, number: int) -> None:
    """The elements of a block."""
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    element_type = kernel.element_type[PARAM]
    with_momentum, decays = kernel.element_type[BUFFER] != 0, kernel.element_type[DECAY] != 0
    nesterov = attributes.nesterov != 0
    block = block_of(size_of(job, PARAM))
    start = number * block
    count = min(block, size_of(job, PARAM) - start)
    offset = start * item_size(element_type)
    unwanted = with_momentum and kernel.output_type[BUFFER_OUT] == 0
    memory, unread = allocate((count * item_size(element_type) if unwanted else 0, np.uint8))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    sign = -1.0 if attributes.maximize != 0 else 1.0
    rate, decay = scalar(kernel, job, RATE), scalar(kernel, job, DECAY)
    momentum, entering = scalar(kernel, job, MOMENTUM), 1.0 - scalar(kernel, job, DAMPENING)
    factors = (sign, rate, decay, momentum, entering)
    short = (np.float32(sign), np.float32(rate), np.float32(decay), np.float32(momentum), np.float32(entering))
    places = (
        job.data[PARAM] + offset,
        job.data[GRAD] + offset,
        job.data[BUFFER] + offset,
        job.output[PARAM_OUT] + offset,
        address_of(unread) if unwanted else job.output[BUFFER_OUT] + offset,
    )
    if element_type == DOUBLE:
        step_at(places, factors, with_momentum, decays, nesterov, count, doubles_at)
    elif element_type == FLOAT:
        step_at(places, short, with_momentum, decays, nesterov, count, floats_at)
    elif element_type == FLOAT16:
        step_at(places, short, with_momentum, decays, nesterov, count, halves_at)
    else:
        step_at(places, short, with_momentum, decays, nesterov, count, bfloats_at)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, in_place=(("param", "param_out"), ("momentum_buffer", "momentum_buffer_out")))


def body(b: Body) -> None:
    """Factors in double; tensors in float, or in double if one of them is or may be double."""
    kinds = {call.dtype("param") for call in b.calls}
    elements = TensorProto.DOUBLE if kinds & {None, TensorProto.DOUBLE} else TensorProto.FLOAT
    b.widen()

    def factor(value: Value) -> Value:
        return value if elements == TensorProto.DOUBLE else value.cast(elements)

    rate = factor(scalar_value(b, "lr"))
    decay = factor(scalar_value(b, "weight_decay")) if b.has("weight_decay") else None
    momentum = factor(scalar_value(b, "momentum")) if b.has("momentum") else None
    entering = factor(1.0 - scalar_value(b, "dampening")) if b.has("dampening") else None
    b.float_dtype = elements

    param, d = b.load_as("param", elements), b.load_as("grad", elements)
    maximize = b.attribute("maximize")
    if maximize != 0:
        sign = -1.0 if maximize else 1.0 - b.value_of("maximize").cast(elements) * 2.0
        d = (d * sign).named("upward")
    if decay is not None:
        d = (d + (param * decay).named("decay")).named("decayed")
    if momentum is not None:
        entered = d if entering is None else (d * entering).named("dampened")
        buffer = (b.load_as("momentum_buffer", elements) * momentum + entered).named("buffer")
        b.store("momentum_buffer_out", buffer, "param")
        nesterov = b.attribute("nesterov")
        ahead = buffer if nesterov == 0 else (d + (buffer * momentum).named("kept")).named("ahead")
        if nesterov is None:
            ahead = b.op("Where", b.value_of("nesterov").equal(1), ahead, buffer, name="direction")
        d = ahead
    b.store("param_out", (param - (d * rate).named("change")).named("stepped"), "param")


def infer(call: Call) -> tuple[TensorType, ...]:
    call.check_choice("nesterov", {0: "no", 1: "yes"})
    call.check_choice("maximize", {0: "no", 1: "yes"})
    for name, needed in (
        ("momentum_buffer", "momentum"),
        ("momentum", "momentum_buffer"),
        ("dampening", "momentum_buffer"),
    ):
        if call.present(name) and not call.present(needed):
            problem = f"input '{name}' is given, but input '{needed}' is missing"
            raise call.error(problem, Status.ACLNN_ERR_PARAM_NULLPTR)
    check_shapes(call, TENSORS, SCALARS)
    return (TensorType(call.dtype("param"), call.shape("param")),) * 2


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "param": [1.0, 8.0],
            "grad": [0.5, -4.0],
            "lr": 0.5,
            "momentum_buffer": [2.0, 16.0],
            "weight_decay": 0.5,
            "momentum": 0.25,
            "dampening": 0.5,
        },
        {"param_out": [0.5, 6.0], "momentum_buffer_out": [1.0, 4.0]},
    ),
)
