"""DynamicRNNGrad: gradient of the steps of an LSTM with respect to its gates and its initial states."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Default, Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import (
    DOUBLE,
    LANES,
    address_of,
    allocate,
    array_at,
    computing_size,
    copy_bytes,
    free,
    item_size,
    read_floats,
    record_at,
    size_of,
    write_floats,
)
from onnx_ops.loops.primitives import Floating, ceil_divide, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape, same_shape, same_sizes
from onnx_ops.loops.tiles import ROWS
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.lstm._cell import GATES, of_gates, tanh_of_float, widths_of
from onnx_ops.ops.lstm._sequence import (
    LAYOUT,
    Scanned,
    check_sequence,
    direction,
    has_step,
    mask,
    multiply_rows,
    pack_weights,
    place_of,
    vectors_of,
    write_rows,
    write_sequence,
    write_zeros,
)
from onnx_ops.ops.lstm.thnn_fused_lstm_cell_backward import gradients, stepped_back, written_back
from onnx_ops.ops.references import computing_dtype, rounded

END = 2**31
"""The end of a slice to the last element."""

SIGNATURE = Signature(
    "DynamicRNNGrad",
    """
Gradient of DynamicRNN with respect to the gates before activation, which has those of the input, of the weights and of
the biases as products and sums of all steps at once. With grad_c = `grad_last_c` and h = `grad_last_h` after the last
step, and the activated gates i, f, g, o = the four quarters of storage[t], for t = T - 1, ..., 1, 0:

    grad_h        = h + grad_output[t]
    d             = grad_c + grad_h * o * (1 - tanh(c[t])^2)
    grad_gates[t] = d * g * i * (1 - i),
                    d * c[t-1] * f * (1 - f),
                    d * i * (1 - g^2),
                    grad_h * tanh(c[t]) * o * (1 - o)
    grad_c        = d * f
    h             = grad_gates[t] @ weight

and at the end `grad_init_h` = h, `grad_init_c` = grad_c; c[-1] = init_c. In direction 1 (REDIRECTIONAL) the steps are
t = 0, 1, ..., T - 1, and t + 1 takes the place of t - 1. Where `mask[t, n]` is false, `grad_gates[t, n]` is 0,
h = grad_h, and grad_c stays as it is.

Shapes: `storage` and `grad_gates` (T, N, 4*H); `weight` (4*H, H); `grad_output` and `c` (T, N, H); `grad_last_h`,
`grad_last_c`, `init_c`, `grad_init_h` and `grad_init_c` (N, H). `mask` broadcasts to (T, N).

Dtypes: `mask` bool; all others have one dtype, float16, bfloat16, float or double. Computed in double if that is
double, else in float, in which gradients pass from one step to the next; every output is rounded once. The order of
summation is fixed and does not depend on the number of threads.

Edge rules: omitted gradients are 0. Where tanh(c[t]) is rounded to 1, the gradient through it is 0. NaN and infinities
propagate as in the formula, within a sample; `c` and `storage` of steps that a sample does not have are not read. Any
size may be 0.

Without a kernel: the order of summation is that of the runtime's MatMul. Shapes known only at run time are not checked.
""",
    inputs=(
        Input(
            "grad_output",
            "Gradient with respect to `output`, (T, N, H).",
            like="storage",
            default=Default(0.0, like="c"),
        ),
        Input(
            "grad_last_h",
            "Gradient with respect to the hidden state after the last step, (N, H).",
            like="storage",
            default=Default(0.0, like="init_c"),
        ),
        Input(
            "grad_last_c",
            "Gradient with respect to the cell state after the last step, (N, H).",
            like="storage",
            default=Default(0.0, like="init_c"),
        ),
        Input("weight", "Weights of the hidden state, (4*H, H).", like="storage"),
        Input("init_c", "Cell state before the first step, (N, H).", like="storage"),
        Input("c", "Cell states from DynamicRNN, (T, N, H).", like="storage"),
        Input("storage", "Activated gates from DynamicRNN, (T, N, 4*H)."),
        mask(),
    ),
    outputs=(
        Output("grad_gates", "Gradient with respect to the gates before activation, (T, N, 4*H).", "storage"),
        Output("grad_init_h", "Gradient with respect to `init_h`, (N, H).", "storage", optional=True),
        Output("grad_init_c", "Gradient with respect to `init_c`, (N, H).", "storage", optional=True),
    ),
    attributes=(direction(),),
)


def reference(
    grad_output: np.ndarray | None,
    grad_last_h: np.ndarray | None,
    grad_last_c: np.ndarray | None,
    weight: np.ndarray,
    init_c: np.ndarray,
    c: np.ndarray,
    storage: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    direction: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition.

    Args:
        grad_output: floating array (T, N, H); default 0.
        grad_last_h, grad_last_c: (N, H), of the same dtype; default 0.
        weight, init_c, c, storage: of the shapes of the schema, of the same dtype.
        mask: bool, broadcasts to (T, N).
        direction: as in the schema.
        dtype: dtype to compute in and of the results instead of that of the inputs.

    Returns:
        grad_gates (T, N, 4*H), grad_init_h and grad_init_c (N, H).
    """
    compute = computing_dtype((storage,), dtype)
    matrix, cells, gates = weight.astype(compute), c.astype(compute), storage.astype(compute)
    h, grad_c = (
        np.zeros(init_c.shape, compute) if d is None else d.astype(compute) for d in (grad_last_h, grad_last_c)
    )
    present = np.broadcast_to(np.True_ if mask is None else mask, c.shape[:2])[..., None]
    grad_gates = np.zeros(storage.shape, compute)
    order = range(len(storage) - 1, -1, -1) if direction else range(len(storage))
    for n, t in reversed(list(enumerate(order))):
        before = init_c.astype(compute) if n == 0 else cells[order[n - 1]]
        grad_h = h if grad_output is None else h + grad_output[t].astype(compute)
        with np.errstate(all="ignore"):
            by_gates, by_cell = stepped_back(grad_h, grad_c, before, cells[t], gates[t])
            grad_gates[t] = np.where(present[t], by_gates, 0)
            h = np.where(present[t], grad_gates[t] @ matrix, grad_h)
        grad_c = np.where(present[t], by_cell, grad_c)
    grad_gates, h, grad_c = (rounded(result, storage.dtype, dtype) for result in (grad_gates, h, grad_c))
    return grad_gates, h, grad_c


# --- the kernel: one task per block of samples ------------------------------------------------------------------------

GRAD_OUTPUT, GRAD_LAST_H, GRAD_LAST_C, WEIGHT, INIT_C, C, STORAGE, MASK = range(8)
GRAD_GATES, GRAD_INIT_H, GRAD_INIT_C = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    layout = record_at(address, LAYOUT)
    if not write_sequence(layout, kernel, job, STORAGE, WEIGHT, INIT_C, MASK, True):
        return False
    if job.rank[C] != 3 or not same_sizes(job, C, STORAGE, 2) or job.dims[C, 2] != layout.width:
        return False
    if kernel.element_type[GRAD_OUTPUT] != 0 and not same_shape(job, GRAD_OUTPUT, C):
        return False
    for i in (GRAD_LAST_H, GRAD_LAST_C):
        if kernel.element_type[i] != 0 and not same_shape(job, i, INIT_C):
            return False
    give_shape(job, GRAD_GATES, STORAGE)
    give_shape(job, GRAD_INIT_H, INIT_C)
    give_shape(job, GRAD_INIT_C, INIT_C)
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


def prepare(job: Job, number: int, dtype: Floating) -> None:
    element_type = record_at(job.kernel, KERNEL).element_type[WEIGHT]
    if not pack_weights(record_at(job.scratch, LAYOUT), number, job.data[WEIGHT], element_type, True, dtype):
        job.failed = NO_MEMORY


@helper
def read_row(source: int, element_type: int, count: int, target: int) -> None:
    """Copy numbers to their computing dtype; zeros if the address `source` is 0."""
    if source == 0:
        write_zeros(target, count * computing_size(element_type))
    elif element_type == DOUBLE:
        copy_bytes(source, target, count * 8)
    else:
        read_floats(source, element_type, count, target)


@helper
def write_row(source: int, element_type: int, count: int, target: int) -> None:
    """Inverse of `read_row`."""
    if element_type == DOUBLE:
        copy_bytes(source, target, count * 8)
    else:
        write_floats(source, element_type, count, target)


@helper
def add_row(source: int, other: int, target: int, count: int, dtype: Floating) -> None:
    """Sums of the numbers at two addresses; those of the first if the second is 0."""
    out, a = array_at(target, count, dtype), array_at(source, count, dtype)
    if other == 0:
        for j in range(count):
            out[j] = a[j]
    else:
        b = array_at(other, count, dtype)
        for j in range(count):
            out[j] = a[j] + b[j]


@helper
def write_tanh(source: int, element_type: int, count: int, target: int) -> None:
    """tanh of numbers of the computing dtype."""
    if element_type == DOUBLE:
        wide, wide_out = array_at(source, count, np.float64), array_at(target, count, np.float64)
        for j in range(count):
            wide_out[j] = np.tanh(wide[j])
    else:
        numbers, out = array_at(source, count, np.float32), array_at(target, count, np.float32)
        for j in range(count):
            out[j] = tanh_of_float(numbers[j])


def task(job: Job, number: int, dtype: Floating) -> None:
    """All steps of some samples."""
    layout, kernel = record_at(job.scratch, LAYOUT), record_at(job.kernel, KERNEL)
    reverse = record_at(kernel.attributes, ATTRIBUTES).direction
    element_type, masked = kernel.element_type[STORAGE], kernel.element_type[MASK] != 0
    samples, width, wide = layout.samples, layout.width, GATES * layout.width
    size, own, is_narrow = item_size(element_type), size_of(dtype), item_size(element_type) == 2
    first = number * layout.per_task
    count = min(layout.per_task, samples - first)
    tiles, vectors = ceil_divide(count, ROWS), vectors_of(width)
    # Rows in the computing dtype, of 16-bit ones; in place, of the gradients.
    in_place, padded = job.in_place != 0, vectors * LANES
    row = width if is_narrow or in_place else 0
    (
        memory, products, rows, places, starts, grad_h, grad_c,
        next_c, d, shown, output, before, cell, gates, own_gates,
    ) = allocate(
        (tiles * ROWS * padded, dtype), (tiles * ROWS, np.int64), (tiles * ROWS, np.int64), (1, np.int64),
        (count * width, dtype), (count * width, dtype), (width, dtype), (width, dtype), (width, dtype), (row, dtype),
        (row, dtype), (row, dtype), (GATES * row, dtype), (count * wide if is_narrow else 0, dtype),
    )  # fmt: skip
    if memory == 0:
        job.failed = NO_MEMORY
        return
    if is_narrow:
        write_rows(0, count, wide, vectors, tiles, rows, starts, places)
    else:
        write_rows(first, count, wide, vectors, tiles, rows, starts, places)
    has_output = kernel.element_type[GRAD_OUTPUT] != 0
    last_h = job.data[GRAD_LAST_H] if kernel.element_type[GRAD_LAST_H] != 0 else 0
    last_c = job.data[GRAD_LAST_C] if kernel.element_type[GRAD_LAST_C] != 0 else 0
    for r in range(count):
        at = (first + r) * width * size
        product, row_c = address_of(products) + r * padded * own, address_of(grad_c) + r * width * own
        read_row(last_h + at if last_h != 0 else 0, element_type, width, product)
        read_row(last_c + at if last_c != 0 else 0, element_type, width, row_c)
    for n in range(layout.steps - 1, -1, -1):
        t = place_of(layout, n, reverse)
        c_before = job.data[INIT_C]
        if n > 0:
            c_before = job.data[C] + place_of(layout, n - 1, reverse) * samples * width * size
        for r in range(count):
            sample, place = first + r, t * samples + first + r
            product = address_of(products) + r * padded * own
            row_h, row_c = address_of(grad_h) + r * width * own, address_of(grad_c) + r * width * own
            result = job.output[GRAD_GATES] + place * wide * size
            by_output = job.data[GRAD_OUTPUT] + place * width * size if has_output else 0
            if is_narrow and has_output:
                read_floats(by_output, element_type, width, address_of(output))
                by_output = address_of(output)
            add_row(product, by_output, row_h, width, dtype)
            if not has_step(layout, masked, job.data[MASK], t, sample):
                write_zeros(result, wide * size)
                if is_narrow:
                    write_zeros(address_of(own_gates) + r * wide * own, wide * own)
                continue
            cx, cy = c_before + sample * width * size, job.data[C] + place * width * size
            storage, target = job.data[STORAGE] + place * wide * size, result
            if is_narrow:
                read_floats(cx, element_type, width, address_of(before))
                read_floats(cy, element_type, width, address_of(cell))
                read_floats(storage, element_type, wide, address_of(gates))
                cx, cy, storage = address_of(before), address_of(cell), address_of(gates)
                target = address_of(own_gates) + r * wide * own
            elif in_place:
                target = address_of(gates)
            write_tanh(cy, element_type, width, address_of(shown))
            gradients(
                array_at(row_h, width, dtype),
                array_at(row_c, width, dtype),
                array_at(cx, width, dtype),
                array_at(storage, wide, dtype),
                shown,
                d,
                array_at(target, wide, dtype),
                next_c,
                width,
            )
            copy_bytes(address_of(next_c), row_c, width * own)
            if is_narrow:
                write_floats(target, element_type, wide, result)
            elif in_place:
                copy_bytes(target, result, wide * size)
        if n > 0 or kernel.output_type[GRAD_INIT_H] != 0:
            source = address_of(own_gates) if is_narrow else job.output[GRAD_GATES] + t * samples * wide * size
            multiply_rows(layout, source, rows, tiles, starts, products, places, dtype)
        for r in range(count):
            if not has_step(layout, masked, job.data[MASK], t, first + r):
                copy_bytes(address_of(grad_h) + r * width * own, address_of(products) + r * padded * own, width * own)
    for r in range(count):
        at = (first + r) * width * size
        if kernel.output_type[GRAD_INIT_H] != 0:
            write_row(address_of(products) + r * padded * own, element_type, width, job.output[GRAD_INIT_H] + at)
        if kernel.output_type[GRAD_INIT_C] != 0:
            write_row(address_of(grad_c) + r * width * own, element_type, width, job.output[GRAD_INIT_C] + at)
    free(memory)


def kernel(call: Call) -> Tasks:
    pairs = (("storage", "grad_gates"),)
    return Tasks(PLAN, task, prepare=prepare, compute=computing_type(call, "mask"), in_place=pairs)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    init_c, c, storage, weight = (b.load(name) for name in ("init_c", "c", "storage", "weight"))
    widths, scanned = widths_of(b, b.inputs["init_c"]), Scanned(b, storage, backward=True)
    first_c = b.op("Unsqueeze", init_c, [0], name="first_c")
    cells = b.op("Concat", scanned.ordered(c, "ordered_c"), first_c, name="cells", axis=0)
    before = b.op("Concat", b.op("Slice", cells, [1], [END], [0]), first_c, name="cells_before", axis=0)
    sequences = {"has": scanned.mask(), "cx": before, "cy": cells, "gates": scanned.sequence(storage)}
    if b.has("grad_output"):
        sequences["by_output"] = scanned.sequence(b.load("grad_output"))

    def last(name: str) -> Value:
        if b.has(name):
            return scanned.state(b.load(name), f"{name}_state")
        return b.op("Expand", 0.0, b.op("Shape", init_c), name="no_gradient")

    def step(h: Value, grad_c: Value, has: Value, cx: Value, cy: Value, gates: Value, *by_output: Value) -> Any:
        has_step = has.cast(TensorProto.BOOL).named("has_step")
        grad_h = (h + by_output[0]).named("grad_h") if by_output else h
        by_gates, by_cell = written_back(b, grad_h, grad_c, cx, cy, gates, widths)
        by_gates = b.op("Where", has_step, by_gates, 0.0, name="by_gates")
        product = b.op("MatMul", by_gates, weight, name="product")
        h = b.op("Where", has_step, product, grad_h, name="by_hidden")
        return h, b.op("Where", has_step, by_cell, grad_c, name="by_cell"), by_gates

    kind = TensorType(b.compute, (None, None))
    scope = b.subgraph(step, dict.fromkeys(("h", "grad_c", *sequences), kind), (kind,) * 3)
    names = ("by_init_h", "by_init_c", "by_gates_of_steps")
    states = last("grad_last_h"), last("grad_last_c")
    by_h, by_c, stack = b.several(
        "Scan", *states, *sequences.values(), names=names, num_scan_inputs=len(sequences), body=scope
    )
    b.store("grad_gates", scanned.stack(stack, "grad_gates"), "storage")
    b.store("grad_init_h", by_h, "storage")
    b.store("grad_init_c", by_c, "storage")


def infer(call: Call) -> tuple[TensorType, ...]:
    states = ("grad_last_h", "grad_last_c", "init_c")
    sequence, state = check_sequence(call, "storage", states, ("grad_output", "c"))
    dtype = call.dtype("storage")
    return TensorType(dtype, of_gates(sequence)), TensorType(dtype, state), TensorType(dtype, state)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Two steps with weights of 0: only the cell state passes from the second to the first.
        {
            "grad_output": [[[0.0]], [[1.0]]],
            "weight": [[0.0], [0.0], [0.0], [0.0]],
            "init_c": [[4.0]],
            "c": [[[2.0]], [[0.0]]],
            "storage": [[[0.5, 0.5, 0.0, 0.5]], [[0.5, 0.25, 0.5, 1.0]]],
        },
        {
            "grad_gates": [[[0.0, 0.25, 0.125, 0.0]], [[0.125, 0.375, 0.375, 0.0]]],
            "grad_init_h": [[0.0]],
            "grad_init_c": [[0.125]],
        },
    ),
)
