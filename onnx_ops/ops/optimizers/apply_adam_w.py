"""ApplyAdamW: a step of Adam or AdamW."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
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
from onnx_ops.loops.primitives import Array, Number, choose, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import size_of
from onnx_ops.ops.optimizers._steps import block_of, check_shapes, plan_blocks, scalar, scalar_value
from onnx_ops.ops.references import rounded

TENSORS = ("var", "m", "v", "grad", "max_grad_norm")
SCALARS = ("beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2", "epsilon")
SIGNATURE = Signature(
    "ApplyAdamW",
    """
One step of AdamW (Loshchilov and Hutter, 2019; aclnnApplyAdamW) for one parameter; with `weight_decay` 0 of Adam
(Kingma and Ba, 2015). With g = `grad`, or `-grad` if `maximize` is 1:

    m_out   = m + (1 - beta1) * (g - m)
    v_out   = beta2 * v + (1 - beta2) * g^2
    v_hat   = v_out, or max(max_grad_norm, v_out) if max_grad_norm is given
    var_out = (1 - lr * weight_decay) * var
              - lr / (1 - beta1_power) * m_out / (sqrt(v_hat) / sqrt(1 - beta2_power) + epsilon)
    max_grad_norm_out = v_hat

`beta1_power` and `beta2_power` are `beta1` and `beta2` to the power of the number of steps, including this one.

Shapes: `var`, `m`, `v`, `grad`, `max_grad_norm` and the outputs have one shape, of rank 0 to 8. All others have one
element, and shape () or (1).

Dtypes: the tensors have one dtype, float16, bfloat16, float or double; the others have one dtype too, best double, and
their products are computed in double. Elements are computed in double for double, else in float, with these products
rounded once.

Edge rules: `max_grad_norm` is that of AMSGrad, the largest v so far; `max_grad_norm_out` requires it. NaN and
infinities propagate as in the formula. Tensors may be empty.

Without a kernel: shapes known only at run time broadcast as in ONNX operators.
""",
    inputs=(
        Input("var", "The parameter."),
        Input("m", "Moving average of the gradient.", like="var"),
        Input("v", "Moving average of the squared gradient.", like="var"),
        Input("beta1_power", "`beta1` to the power of the number of steps."),
        Input("beta2_power", "`beta2` to the power of the number of steps.", like="beta1_power"),
        Input("lr", "Learning rate.", like="beta1_power"),
        Input("weight_decay", "Decoupled weight decay, multiplied by `lr`.", like="beta1_power"),
        Input("beta1", "Decay rate of `m`.", like="beta1_power"),
        Input("beta2", "Decay rate of `v`.", like="beta1_power"),
        Input("epsilon", "Added to the denominator.", like="beta1_power"),
        Input("grad", "Gradient of the loss with respect to `var`.", like="var"),
        Input(
            "max_grad_norm",
            "Largest `v` of the previous steps.",
            like="var",
            default=Default(-math.inf, like="var"),
        ),
    ),
    outputs=(
        Output("var_out", "The parameter after the step.", "var"),
        Output("m_out", "`m` after the step.", "var"),
        Output("v_out", "`v` after the step.", "var"),
        Output("max_grad_norm_out", "Largest `v` so far.", "var", optional=True, requires="max_grad_norm"),
    ),
    attributes=(attribute("maximize", 0, "1: maximize instead of minimize."),),
)


def reference(
    var: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    beta1_power: np.ndarray,
    beta2_power: np.ndarray,
    lr: np.ndarray,
    weight_decay: np.ndarray,
    beta1: np.ndarray,
    beta2: np.ndarray,
    epsilon: np.ndarray,
    grad: np.ndarray,
    max_grad_norm: np.ndarray | None,
    *,
    maximize: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """NumPy definition, in float64.

    Args:
        var, m, v, grad, max_grad_norm: floating arrays of one dtype and shape; max_grad_norm may be None.
        beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon: arrays of one element.
        maximize: whether to negate grad.
        dtype: dtype of the results instead of that of var.

    Returns:
        var_out, m_out, v_out, and max_grad_norm_out or None, all of the shape of var.
    """
    power1, power2, rate, decay, one, two, least = (
        np.float64(number.reshape(())) for number in (beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon)
    )
    with np.errstate(all="ignore"):
        parameter, average, square, g = (a.astype(np.float64) for a in (var, m, v, grad))
        g = -g if maximize else g
        average = average + (1 - one) * (g - average)
        square = two * square + (1 - two) * g * g
        largest = square if max_grad_norm is None else np.maximum(max_grad_norm.astype(np.float64), square)
        divisor = np.sqrt(largest) / np.sqrt(1 - power2) + least
        parameter = parameter * (1 - rate * decay) - rate / (1 - power1) * (average / divisor)
    results = [rounded(a, var.dtype, dtype) for a in (parameter, average, square)]
    return results[0], results[1], results[2], None if max_grad_norm is None else rounded(largest, var.dtype, dtype)


# --- the kernel: one task per block of elements -----------------------------------------------------------------------

VAR, M, V, POWER1, POWER2, RATE, DECAY, BETA1, BETA2, EPSILON, GRAD, LARGEST = range(12)
VAR_OUT, M_OUT, V_OUT, LARGEST_OUT = range(4)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


@helper
def step(
    var: Array, m: Array, v: Array, grad: Array, largest: Any, outs: Any, factors: Sequence[Number], count: int
) -> None:
    """`count` elements in the dtype of the arrays.

    Args:
        largest: the largest v so far, which is used in place of v (AMSGrad); None: v itself is.
        outs: new var, m, v and largest; None: in place. LLVM vectorizes a loop that reads and writes one array, but no
            loop over two arrays that overlap at run time.
        factors: in the order of `task`.
    """
    new_var, new_m, new_v, new_largest = (var, m, v, largest) if outs is None else outs
    kept, size, entering, remembered, square_entering, epsilon, sign = (
        factors[0], factors[1], factors[2], factors[3], factors[4], factors[5], factors[6],
    )  # fmt: skip
    for i in range(count):
        g = sign * grad[i]
        average = m[i] + entering * (g - m[i])
        square = remembered * v[i] + square_entering * (g * g)
        new_m[i] = average
        new_v[i] = square
        if largest is not None:
            square = choose(largest[i] >= square, largest[i], choose(largest[i] != largest[i], largest[i], square))
            new_largest[i] = square
        new_var[i] = kept * var[i] - size * average / (np.sqrt(square) + epsilon)


@helper
def step_at(
    places: tuple[int, ...], factors: Sequence[Number], by_largest: bool, count: int, numbers_at: Callable[..., Any]
) -> None:
    """A step of the elements at the addresses of inputs and outputs, viewed by numbers_at."""
    var, m, v = numbers_at(places[0], count), numbers_at(places[1], count), numbers_at(places[2], count)
    grad, new_var = numbers_at(places[3], count), numbers_at(places[5], count)
    new_m, new_v = numbers_at(places[6], count), numbers_at(places[7], count)
    in_place = places[0] == places[5] and places[1] == places[6] and places[2] == places[7]
    if by_largest:
        largest, new_largest = numbers_at(places[4], count), numbers_at(places[8], count)
        if in_place and places[4] == places[8]:
            step(var, m, v, grad, largest, None, factors, count)
        else:
            step(var, m, v, grad, largest, (new_var, new_m, new_v, new_largest), factors, count)
    elif in_place:
        step(var, m, v, grad, None, None, factors, count)
    else:
        step(var, m, v, grad, None, (new_var, new_m, new_v, None), factors, count)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes; one task per block of elements."""
    scalars = (POWER1, POWER2, RATE, DECAY, BETA1, BETA2, EPSILON)
    return plan_blocks(kernel, job, (M, V, GRAD, LARGEST), scalars, 4)


def task(job: Job, number: int) -> None:
    """The elements of a block."""
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    element_type, by_largest = kernel.element_type[VAR], kernel.element_type[LARGEST] != 0
    block = block_of(size_of(job, VAR))
    start = number * block
    count = min(block, size_of(job, VAR) - start)
    offset = start * item_size(element_type)
    unwanted = by_largest and kernel.output_type[LARGEST_OUT] == 0
    unwanted_bytes = count * item_size(element_type) if unwanted else 0
    memory, factors, short, unread = allocate((7, np.float64), (7, np.float32), (unwanted_bytes, np.uint8))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    rate, beta1, beta2 = scalar(kernel, job, RATE), scalar(kernel, job, BETA1), scalar(kernel, job, BETA2)
    root = math.sqrt(1.0 - scalar(kernel, job, POWER2))  # multiplies numerator and denominator of the formula
    factors[0] = 1.0 - rate * scalar(kernel, job, DECAY)
    factors[1] = root * rate / (1.0 - scalar(kernel, job, POWER1))
    factors[2] = 1.0 - beta1
    factors[3] = beta2
    factors[4] = 1.0 - beta2
    factors[5] = root * scalar(kernel, job, EPSILON)
    factors[6] = -1.0 if attributes.maximize != 0 else 1.0
    for k in range(7):
        short[k] = np.float32(factors[k])
    places = (
        job.data[VAR] + offset,
        job.data[M] + offset,
        job.data[V] + offset,
        job.data[GRAD] + offset,
        job.data[LARGEST] + offset,
        job.output[VAR_OUT] + offset,
        job.output[M_OUT] + offset,
        job.output[V_OUT] + offset,
        address_of(unread) if unwanted else job.output[LARGEST_OUT] + offset,
    )
    if element_type == DOUBLE:
        step_at(places, factors, by_largest, count, doubles_at)
    elif element_type == FLOAT:
        step_at(places, short, by_largest, count, floats_at)
    elif element_type == FLOAT16:
        step_at(places, short, by_largest, count, halves_at)
    else:
        step_at(places, short, by_largest, count, bfloats_at)
    free(memory)


def kernel(call: Call) -> Tasks:
    pairs = (("var", "var_out"), ("m", "m_out"), ("v", "v_out"), ("max_grad_norm", "max_grad_norm_out"))
    return Tasks(plan, task, in_place=pairs)


def body(b: Body) -> None:
    """Factors in double; tensors in float, or in double if one of them is or may be double."""
    kinds = {call.dtype("var") for call in b.calls}
    elements = TensorProto.DOUBLE if kinds & {None, TensorProto.DOUBLE} else TensorProto.FLOAT
    b.widen()
    rate = scalar_value(b, "lr")
    kept = (1.0 - (rate * scalar_value(b, "weight_decay")).named("shrinking")).named("kept")
    size = (rate / (1.0 - scalar_value(b, "beta1_power"))).named("size")
    root = b.op("Sqrt", 1.0 - scalar_value(b, "beta2_power"), name="root")
    beta1, beta2 = scalar_value(b, "beta1"), scalar_value(b, "beta2")
    factors: tuple[Value, ...] = (kept, size, root, 1.0 - beta1, beta2, 1.0 - beta2, scalar_value(b, "epsilon"))
    b.float_dtype = elements
    if elements == TensorProto.FLOAT:
        factors = tuple(factor.cast(elements) for factor in factors)
    kept, size, root, entering, beta2, square_entering, epsilon = factors

    var, m, v, g = (b.load_as(name, elements) for name in ("var", "m", "v", "grad"))
    maximize = b.attribute("maximize")
    if maximize != 0:
        sign = -1.0 if maximize else 1.0 - b.value_of("maximize").cast(elements) * 2.0
        g = (g * sign).named("upward")
    average = (m + (g - m).named("change") * entering).named("average")
    square = (v * beta2 + (g * g).named("squared") * square_entering).named("square")
    largest = square
    if b.has("max_grad_norm"):
        largest = b.op("Max", b.load_as("max_grad_norm", elements), square, name="largest")
    divisor = (b.op("Sqrt", largest) / root + epsilon).named("divisor")
    b.store("var_out", (var * kept - (average / divisor).named("direction") * size).named("stepped"), "var")
    b.store("m_out", average, "var")
    b.store("v_out", square, "var")
    b.store("max_grad_norm_out", largest, "var")


def infer(call: Call) -> tuple[TensorType, ...]:
    call.check_choice("maximize", {0: "no", 1: "yes"})
    check_shapes(call, TENSORS, SCALARS)
    return (TensorType(call.dtype("var"), call.shape("var")),) * 4


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "var": [1.0, 8.0],
            "m": [0.0, 22.0],
            "v": [0.0, 16.0],
            "beta1_power": 0.5,
            "beta2_power": 0.75,
            "lr": 0.5,
            "weight_decay": 1.0,
            "beta1": 0.5,
            "beta2": 0.5,
            "epsilon": 1.0,
            "grad": [0.0, -4.0],
            "max_grad_norm": [0.0, 2.25],
        },
        {
            "var_out": [0.5, 3.0],
            "m_out": [0.0, 9.0],
            "v_out": [0.0, 16.0],
            "max_grad_norm_out": [0.0, 16.0],
        },
    ),
)
