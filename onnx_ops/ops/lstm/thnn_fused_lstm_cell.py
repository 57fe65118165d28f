"""ThnnFusedLstmCell: one time step of an LSTM, from its gates to its states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import (
    DOUBLE,
    address_of,
    allocate,
    array_at,
    copy_bytes,
    free,
    item_size,
    read_floats,
    record_at,
    write_floats,
)
from onnx_ops.loops.primitives import Array, Floating, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel
from onnx_ops.ops.lstm._cell import (
    GATES,
    are_gates,
    check_cell,
    of_gates,
    quarters,
    rows_of,
    rows_per_task,
    set_shapes,
    sigmoid,
    tanh_of_float,
    tasks_of,
    widths_of,
)
from onnx_ops.ops.references import computing_dtype, rounded

SIGNATURE = Signature(
    "ThnnFusedLstmCell",
    """
One time step of a long short-term memory (LSTM; Hochreiter and Schmidhuber, 1997) after its matrix products
(aclnnThnnFusedLstmCell; its biases can be added to the gates).

    i, f, g, o = the four quarters of input_gates + hidden_gates
    storage    = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    cy         = sigmoid(f) * cx + sigmoid(i) * tanh(g)
    hy         = sigmoid(o) * tanh(cy)

Shapes: `input_gates`, `hidden_gates` and `storage` (..., 4*H); `cx`, `hy` and `cy` (..., H).

Dtypes: all inputs and outputs have one dtype, float16, bfloat16, float or double. double is computed in double, the
others in float; every output is rounded once.

Edge rules: sigmoid saturates at 0 and 1, tanh at -1 and 1. NaN and infinities propagate as in the formula. Any size
may be 0.

Without a kernel: shapes known only at run time broadcast as in ONNX operators.
""",
    inputs=(
        Input("input_gates", "Product of the step's input and its weights, (..., 4*H).", like="cx"),
        Input("hidden_gates", "Product of the hidden state and its weights, (..., 4*H).", like="cx"),
        Input("cx", "Cell state before the step, (..., H)."),
    ),
    outputs=(
        Output("hy", "Hidden state after the step, (..., H).", "cx"),
        Output("cy", "Cell state after the step, (..., H).", "cx"),
        Output("storage", "Activated gates, for ThnnFusedLstmCellBackward, (..., 4*H).", "cx"),
    ),
)


def reference(
    input_gates: np.ndarray, hidden_gates: np.ndarray, cx: np.ndarray, *, dtype: npt.DTypeLike | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition.

    Args:
        input_gates, hidden_gates: floating arrays (..., 4*H).
        cx: (..., H), of the same dtype.
        dtype: dtype to compute in and of the results instead of that of the inputs.

    Returns:
        hy (..., H), cy (..., H) and storage (..., 4*H).
    """
    compute = computing_dtype((cx,), dtype)
    with np.errstate(all="ignore"):
        results = stepped(input_gates.astype(compute) + hidden_gates.astype(compute), cx.astype(compute))
    hy, cy, storage = (rounded(result, cx.dtype, dtype) for result in results)
    return hy, cy, storage


def stepped(gates: np.ndarray, cx: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """hy, cy and storage of arrays in the computing dtype."""
    i, f, g, o = np.split(gates, GATES, axis=-1)
    i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
    g = np.tanh(g)
    cy = f * cx + i * g
    return o * np.tanh(cy), cy, np.concatenate([i, f, g, o], axis=-1)


# --- the kernel: one task per block of rows ---------------------------------------------------------------------------

INPUT_GATES, HIDDEN_GATES, CX = range(3)
HY, CY, STORAGE = range(3)


@helper
def step_of_floats(given: Array, hidden: Array, cx: Array, hy: Array, cy: Array, gates: Array, width: int) -> None:
    """A row of float32."""
    for j in range(2 * width):
        gates[j] = sigmoid(given[j] + hidden[j])
    for j in range(2 * width, 3 * width):
        gates[j] = tanh_of_float(given[j] + hidden[j])
    for j in range(3 * width, 4 * width):
        gates[j] = sigmoid(given[j] + hidden[j])
    for j in range(width):
        cell = gates[width + j] * cx[j] + gates[j] * gates[2 * width + j]
        cy[j] = cell
        hy[j] = gates[3 * width + j] * tanh_of_float(cell)


@helper
def step_of_doubles(given: Array, hidden: Array, cx: Array, hy: Array, cy: Array, gates: Array, width: int) -> None:
    """A row of float64."""
    for j in range(4 * width):
        gate = given[j] + hidden[j]
        gates[j] = np.tanh(gate) if 2 * width <= j < 3 * width else sigmoid(gate)
    for j in range(width):
        cell = gates[width + j] * cx[j] + gates[j] * gates[2 * width + j]
        cy[j] = cell
        hy[j] = gates[3 * width + j] * np.tanh(cell)


@helper
def step_at(step: Callable[..., Any], dtype: Floating, addresses: tuple[int, ...], width: int) -> None:
    """A step with the arrays of its arguments at these addresses."""
    given, hidden = array_at(addresses[0], GATES * width, dtype), array_at(addresses[1], GATES * width, dtype)
    cx, hy, cy = (
        array_at(addresses[2], width, dtype),
        array_at(addresses[3], width, dtype),
        array_at(addresses[4], width, dtype),
    )
    step(given, hidden, cx, hy, cy, array_at(addresses[5], GATES * width, dtype), width)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes; one task per block of rows."""
    if job.rank[CX] == 0 or not are_gates(job, INPUT_GATES, CX) or not are_gates(job, HIDDEN_GATES, CX):
        return REFUSED
    set_shapes(job, CX, STORAGE)
    job.tasks = tasks_of(job, CX)
    return OK


def task(job: Job, number: int) -> None:
    """The rows of a block."""
    kernel = record_at(job.kernel, KERNEL)
    rows, width = rows_of(job, CX), job.dims[CX, job.rank[CX] - 1]
    element_type = kernel.element_type[CX]
    size = item_size(element_type)
    step = rows_per_task(width)
    narrow, wide = width * size, GATES * width * size
    is_narrow, row = size == 2, width * (8 if element_type == DOUBLE else 4)
    buffered = is_narrow or job.in_place != 0
    # Rows in the computing dtype, of 16-bit ones; in place, of the results.
    gates_bytes, state_bytes = (GATES * row, np.uint8), (row, np.uint8)
    memory, own_given, own_hidden, own_gates, own_cx, own_hy, own_cy = allocate(
        gates_bytes, gates_bytes, gates_bytes, state_bytes, state_bytes, state_bytes
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    for n in range(number * step, min((number + 1) * step, rows)):
        given, hidden = job.data[INPUT_GATES] + n * wide, job.data[HIDDEN_GATES] + n * wide
        before, hy, cy = job.data[CX] + n * narrow, job.output[HY] + n * narrow, job.output[CY] + n * narrow
        storage = job.output[STORAGE] + n * wide
        given_at, hidden_at, cx_at, gates_at, hy_at, cy_at = (
            address_of(own_given) if is_narrow else given,
            address_of(own_hidden) if is_narrow else hidden,
            address_of(own_cx) if is_narrow else before,
            address_of(own_gates) if buffered else storage,
            address_of(own_hy) if buffered else hy,
            address_of(own_cy) if buffered else cy,
        )
        if is_narrow:
            read_floats(given, element_type, GATES * width, given_at)
            read_floats(hidden, element_type, GATES * width, hidden_at)
            read_floats(before, element_type, width, cx_at)
        addresses = (given_at, hidden_at, cx_at, hy_at, cy_at, gates_at)
        if element_type == DOUBLE:
            step_at(step_of_doubles, np.float64, addresses, width)
        else:
            step_at(step_of_floats, np.float32, addresses, width)
        if is_narrow:
            write_floats(hy_at, element_type, width, hy)
            write_floats(cy_at, element_type, width, cy)
            write_floats(gates_at, element_type, GATES * width, storage)
        elif buffered:
            copy_bytes(hy_at, hy, narrow)
            copy_bytes(cy_at, cy, narrow)
            copy_bytes(gates_at, storage, wide)
    free(memory)


def kernel(call: Call) -> Tasks:
    pairs = (("input_gates", "storage"), ("hidden_gates", "storage"), ("cx", "cy"))
    return Tasks(plan, task, in_place=pairs)


def written(b: Body, gates: Value, cx: Value, widths: Value) -> tuple[Value, Value, Value]:
    """hy, cy and storage, in a function body."""
    i, f, g, o = quarters(b, gates, widths, ("i", "f", "g", "o"))

    def acting(gate: Value) -> Value:
        return (1.0 / (b.op("Exp", -gate) + 1.0)).named("acting")

    i, f, o = acting(i), acting(f), acting(o)
    g = b.op("Tanh", g, name="candidate")
    cy = ((f * cx).named("remembered") + (i * g).named("entering")).named("cell")
    hy = (o * b.op("Tanh", cy)).named("hidden")
    return hy, cy, b.op("Concat", i, f, g, o, name="gates", axis=-1)


def body(b: Body) -> None:
    cx = b.load("cx")
    gates = (b.load("input_gates") + b.load("hidden_gates")).named("sums")
    for output, value in zip(("hy", "cy", "storage"), written(b, gates, cx, widths_of(b, b.inputs["cx"])), strict=True):
        b.store(output, value, "cx")


def infer(call: Call) -> tuple[TensorType, ...]:
    state = check_cell(call, "cx", (), ("input_gates", "hidden_gates"))
    dtype = call.dtype("cx")
    return TensorType(dtype, state), TensorType(dtype, state), TensorType(dtype, of_gates(state))


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Saturated gates: open or closed; the candidate is 1.
        {
            "input_gates": [[0.0, 100.0, 0.0, 0.0], [200.0, -100.0, 200.0, -100.0]],
            "hidden_gates": [[0.0, 100.0, 0.0, -200.0], [0.0, -100.0, 0.0, -100.0]],
            "cx": [[3.0], [7.0]],
        },
        {
            "hy": [[0.0], [0.0]],
            "cy": [[3.0], [1.0]],
            "storage": [[0.5, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]],
        },
    ),
)
