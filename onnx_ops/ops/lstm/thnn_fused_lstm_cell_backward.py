"""ThnnFusedLstmCellBackward: gradient of a time step of an LSTM with respect to its gates and its cell state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx.defs import OpSchema

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Default, Input, Output, Signature
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
from onnx_ops.loops.primitives import ONE, Array, Floating, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel
from onnx_ops.loops.shapes import same_shape
from onnx_ops.ops.lstm._cell import (
    GATES,
    are_gates,
    check_cell,
    of_gates,
    quarters,
    rows_of,
    rows_per_task,
    set_shapes,
    tanh_of_float,
    tasks_of,
    widths_of,
)
from onnx_ops.ops.references import computing_dtype, rounded

OPTIONAL = OpSchema.FormalParameterOption.Optional
SIGNATURE = Signature(
    "ThnnFusedLstmCellBackward",
    """
Gradient of a time step of a long short-term memory (aclnnThnnFusedLstmCellBackward; the gradient of the biases is the
sum of `grad_gates` over the rows). With the activated gates i, f, g, o = the four quarters of `storage`:

    d         = grad_cy + grad_hy * o * (1 - tanh(cy)^2)
    grad_gates = d * g * i * (1 - i),
                 d * cx * f * (1 - f),
                 d * i * (1 - g^2),
                 grad_hy * tanh(cy) * o * (1 - o)
    grad_cx   = d * f

`grad_gates` is the gradient with respect to `input_gates` and to `hidden_gates` of ThnnFusedLstmCell.

Shapes: `storage` and `grad_gates` (..., 4*H); all others (..., H).

Dtypes: all inputs and outputs have one dtype, float16, bfloat16, float or double. double is computed in double, the
others in float; every output is rounded once.

Edge rules: an omitted `grad_hy` or `grad_cy` is 0. Where `tanh(cy)` is rounded to 1, the gradient through it is 0. NaN
and infinities propagate as in the formula. Any size may be 0.

Without a kernel: shapes known only at run time broadcast as in ONNX operators.
""",
    inputs=(
        Input(
            "grad_hy",
            "Gradient with respect to `hy`, (..., H).",
            like="cx",
            default=Default(0.0, like="cx"),
        ),
        Input(
            "grad_cy",
            "Gradient with respect to `cy`, (..., H).",
            like="cx",
            default=Default(0.0, like="cx"),
        ),
        Input("cx", "Cell state before the step, (..., H)."),
        Input("cy", "Cell state after the step, (..., H).", like="cx"),
        Input("storage", "Activated gates from ThnnFusedLstmCell, (..., 4*H).", like="cx"),
    ),
    outputs=(
        Output("grad_gates", "Gradient with respect to the gates before activation, (..., 4*H).", "cx"),
        Output("grad_cx", "Gradient with respect to `cx`, (..., H).", "cx", optional=True),
    ),
)


def reference(
    grad_hy: np.ndarray | None,
    grad_cy: np.ndarray | None,
    cx: np.ndarray,
    cy: np.ndarray,
    storage: np.ndarray,
    *,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """NumPy definition.

    Args:
        grad_hy, grad_cy: floating arrays (..., H); default 0.
        cx, cy: (..., H), of the same dtype.
        storage: (..., 4*H), of the same dtype.
        dtype: dtype to compute in and of the results instead of that of the inputs.

    Returns:
        grad_gates (..., 4*H) and grad_cx (..., H).
    """
    compute = computing_dtype((cx,), dtype)
    dh, dc = (np.zeros(cx.shape, compute) if d is None else d.astype(compute) for d in (grad_hy, grad_cy))
    with np.errstate(all="ignore"):
        results = stepped_back(dh, dc, cx.astype(compute), cy.astype(compute), storage.astype(compute))
    grad_gates, grad_cx = (rounded(result, cx.dtype, dtype) for result in results)
    return grad_gates, grad_cx


def stepped_back(
    dh: np.ndarray, dc: np.ndarray, cx: np.ndarray, cy: np.ndarray, storage: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """grad_gates and grad_cx of arrays in the computing dtype."""
    i, f, g, o = np.split(storage, GATES, axis=-1)
    shown = np.tanh(cy)
    d = dc + dh * o * ((1 - shown) * (1 + shown))
    gates = [d * g * i * (1 - i), d * cx * f * (1 - f), d * i * ((1 - g) * (1 + g)), dh * shown * o * (1 - o)]
    return np.concatenate(gates, axis=-1), d * f


# --- the kernel: one task per block of rows ---------------------------------------------------------------------------

GRAD_HY, GRAD_CY, CX, CY, STORAGE = range(5)
STATES = STORAGE
"""Number of inputs of the width of a state, which come first."""
GRAD_GATES, GRAD_CX = range(2)


@helper
def gradients(
    dh: Array, dc: Array, cx: Array, gates: Array, shown: Array, d: Array, grad_gates: Array, grad_cx: Array, width: int
) -> None:
    """A row, in the dtype of its arrays, given shown = tanh(cy); d is written too."""
    for j in range(width):
        whole = dc[j] + dh[j] * gates[3 * width + j] * ((ONE - shown[j]) * (ONE + shown[j]))
        d[j] = whole
        grad_cx[j] = whole * gates[width + j]
    for j in range(width):
        acting = gates[j]
        grad_gates[j] = d[j] * gates[2 * width + j] * acting * (ONE - acting)
    for j in range(width):
        acting = gates[width + j]
        grad_gates[width + j] = d[j] * cx[j] * acting * (ONE - acting)
    for j in range(width):
        acting = gates[2 * width + j]
        grad_gates[2 * width + j] = d[j] * gates[j] * ((ONE - acting) * (ONE + acting))
    for j in range(width):
        acting = gates[3 * width + j]
        grad_gates[3 * width + j] = dh[j] * shown[j] * acting * (ONE - acting)


@helper
def gradients_at(addresses: tuple[int, ...], width: int, dtype: Floating) -> None:
    """`gradients` of the arrays at these addresses."""
    dh, dc = array_at(addresses[0], width, dtype), array_at(addresses[1], width, dtype)
    before, gates = array_at(addresses[2], width, dtype), array_at(addresses[3], GATES * width, dtype)
    shown, d = array_at(addresses[4], width, dtype), array_at(addresses[5], width, dtype)
    result, own = array_at(addresses[6], GATES * width, dtype), array_at(addresses[7], width, dtype)
    gradients(dh, dc, before, gates, shown, d, result, own, width)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes; one task per block of rows."""
    if job.rank[CX] == 0 or not are_gates(job, STORAGE, CX):
        return REFUSED
    for i in (GRAD_HY, GRAD_CY, CY):
        if kernel.element_type[i] != 0 and not same_shape(job, i, CX):
            return REFUSED
    set_shapes(job, CX, GRAD_GATES)
    job.tasks = tasks_of(job, CX)
    return OK


def task(job: Job, number: int) -> None:
    """The rows of a block."""
    kernel = record_at(job.kernel, KERNEL)
    rows, width = rows_of(job, CX), job.dims[CX, job.rank[CX] - 1]
    element_type = kernel.element_type[CX]
    size, kept = item_size(element_type), kernel.output_type[GRAD_CX] != 0
    step = rows_per_task(width)
    is_narrow, row = size == 2, width * (8 if element_type == DOUBLE else 4)
    buffered = is_narrow or job.in_place != 0
    narrow, wide = width * size, GATES * width * size
    # Rows in the computing dtype, of 16-bit ones; in place, of the results, until the inputs have been read.
    gates_bytes, state_bytes = (GATES * row, np.uint8), (row, np.uint8)
    memory, own_states, own_gates, own_result, own_grad, d_row, shown_row = allocate(
        (STATES * row, np.uint8), gates_bytes, gates_bytes, state_bytes, state_bytes, state_bytes
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    states_at, d_at, shown_at = address_of(own_states), address_of(d_row), address_of(shown_row)
    for j in range(2 * row):  # of omitted gradients
        own_states[j] = 0
    for n in range(number * step, min((number + 1) * step, rows)):
        if is_narrow:
            for i in range(STATES):
                if kernel.element_type[i] != 0:
                    read_floats(job.data[i] + n * narrow, element_type, width, states_at + i * row)
            read_floats(job.data[STORAGE] + n * wide, element_type, GATES * width, address_of(own_gates))
        dh_at, dc_at, before_at, cell_at, gates_at, result_at, own_at = (
            states_at if is_narrow or kernel.element_type[GRAD_HY] == 0 else job.data[GRAD_HY] + n * narrow,
            states_at + row if is_narrow or kernel.element_type[GRAD_CY] == 0 else job.data[GRAD_CY] + n * narrow,
            states_at + CX * row if is_narrow else job.data[CX] + n * narrow,
            states_at + CY * row if is_narrow else job.data[CY] + n * narrow,
            address_of(own_gates) if is_narrow else job.data[STORAGE] + n * wide,
            address_of(own_result) if buffered else job.output[GRAD_GATES] + n * wide,
            address_of(own_grad) if buffered or not kept else job.output[GRAD_CX] + n * narrow,
        )
        addresses = (dh_at, dc_at, before_at, gates_at, shown_at, d_at, result_at, own_at)
        if element_type == DOUBLE:
            wide_cell, wide_shown = array_at(cell_at, width, np.float64), array_at(shown_at, width, np.float64)
            for j in range(width):
                wide_shown[j] = np.tanh(wide_cell[j])
            gradients_at(addresses, width, np.float64)
        else:
            cell, shown = array_at(cell_at, width, np.float32), array_at(shown_at, width, np.float32)
            for j in range(width):
                shown[j] = tanh_of_float(cell[j])
            gradients_at(addresses, width, np.float32)
        if is_narrow:
            write_floats(result_at, element_type, GATES * width, job.output[GRAD_GATES] + n * wide)
            if kept:
                write_floats(own_at, element_type, width, job.output[GRAD_CX] + n * narrow)
        elif buffered:
            copy_bytes(result_at, job.output[GRAD_GATES] + n * wide, wide)
            if kept:
                copy_bytes(own_at, job.output[GRAD_CX] + n * narrow, narrow)
    free(memory)


def kernel(call: Call) -> Tasks:
    pairs = (("storage", "grad_gates"), ("grad_cy", "grad_cx"), ("grad_hy", "grad_cx"), ("cy", "grad_cx"))
    return Tasks(plan, task, in_place=pairs)


def written_back(
    b: Body, dh: Value, dc: Value, cx: Value, cy: Value, storage: Value, widths: Value
) -> tuple[Value, Value]:
    """grad_gates and grad_cx, in a function body."""
    i, f, g, o = quarters(b, storage, widths, ("i", "f", "g", "o"))
    shown = b.op("Tanh", cy, name="shown")

    def slope(value: Value) -> Value:
        """1 - value^2."""
        return ((1.0 - value).named("below") * (1.0 + value).named("above")).named("slope")

    through = (dh * o * slope(shown)).named("through_hidden")
    d = (dc + through).named("d")
    gates = [
        d * g * i * (1.0 - i),
        d * cx * f * (1.0 - f),
        d * i * slope(g),
        dh * shown * o * (1.0 - o),
    ]
    return b.op("Concat", *gates, name="gradients", axis=-1), (d * f).named("cell_gradient")


def body(b: Body) -> None:
    cx, cy = b.load("cx"), b.load("cy")
    dh, dc = (b.load(name) if b.has(name) else b.constant(0.0) for name in ("grad_hy", "grad_cy"))
    grad_gates, grad_cx = written_back(b, dh, dc, cx, cy, b.load("storage"), widths_of(b, b.inputs["cx"]))
    b.store("grad_gates", grad_gates, "cx")
    b.store("grad_cx", grad_cx, "cx")


def infer(call: Call) -> tuple[TensorType, ...]:
    state = check_cell(call, "cx", ("grad_hy", "grad_cy", "cy"), ("storage",))
    dtype = call.dtype("cx")
    return TensorType(dtype, of_gates(state)), TensorType(dtype, state)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "grad_hy": [[1.0], [8.0]],
            "grad_cy": [[2.0], [0.0]],
            "cx": [[4.0], [1.0]],
            "cy": [[0.0], [0.0]],
            "storage": [[0.5, 0.5, 0.5, 1.0], [0.5, 0.25, 0.0, 0.5]],
        },
        {"grad_gates": [[0.375, 3.0, 1.125, 0.0], [0.0, 0.75, 2.0, 0.0]], "grad_cx": [[1.5], [1.0]]},
    ),
)
