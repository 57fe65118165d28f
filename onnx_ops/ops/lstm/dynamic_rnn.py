"""DynamicRNN: the steps of an LSTM, from the products of its inputs to its states."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import (
    DOUBLE,
    LANES,
    address_of,
    allocate,
    copy_bytes,
    free,
    item_size,
    read_floats,
    record_at,
    size_of,
    write_floats,
)
from onnx_ops.loops.primitives import Floating, ceil_divide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape, same_shape
from onnx_ops.loops.tiles import ROWS
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.lstm._cell import GATES, of_gates, widths_of
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
from onnx_ops.ops.lstm.thnn_fused_lstm_cell import step_at, step_of_doubles, step_of_floats, stepped, written
from onnx_ops.ops.references import computing_dtype, rounded

SIGNATURE = Signature(
    "DynamicRNN",
    """
The steps of a layer of a long short-term memory (LSTM; Hochreiter and Schmidhuber, 1997) in one direction, after the
product of its input and its weights, which is one for all steps: what DynamicRNN of CANN computes, with the gates in
the order of ThnnFusedLstmCell. With output[-1] = init_h and c[-1] = init_c, for t = 0, 1, ..., T - 1:

    i, f, g, o = the four quarters of input_gates[t] + output[t-1] @ transposed weight
    storage[t] = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    c[t]       = sigmoid(f) * c[t-1] + sigmoid(i) * tanh(g)
    output[t]  = sigmoid(o) * tanh(c[t])

In direction 1 (REDIRECTIONAL) the steps are t = T - 1, T - 2, ..., 0, and t + 1 takes the place of t - 1. Where
`mask[t, n]` is false, sample n has no such step: its states stay as they are, and `storage[t, n]` is 0.

Shapes: `input_gates` and `storage` (T, N, 4*H); `weight` (4*H, H); `init_h` and `init_c` (N, H); `output` and `c`
(T, N, H). `mask` broadcasts to (T, N).

Dtypes: `mask` bool; all others have one dtype, float16, bfloat16, float or double. Computed in double if that is
double, else in float, in which the states pass from one step to the next; every output is rounded once. The order of
summation is fixed and does not depend on the number of threads.

Edge rules: sigmoid saturates at 0 and 1, tanh at -1 and 1. NaN and infinities propagate as in the formula, within a
sample; those of steps that a sample does not have are not read. Any size may be 0.

Without a kernel: the order of summation is that of the runtime's MatMul. Shapes known only at run time are not checked.
""",
    inputs=(
        Input("input_gates", "Product of the input and its weights, plus the biases, (T, N, 4*H)."),
        Input("weight", "Weights of the hidden state, (4*H, H).", like="input_gates"),
        Input("init_h", "Hidden state before the first step, (N, H).", like="input_gates"),
        Input("init_c", "Cell state before the first step, (N, H).", like="input_gates"),
        mask(),
    ),
    outputs=(
        Output("output", "Hidden states after each step, (T, N, H).", "input_gates"),
        Output("c", "Cell states after each step, (T, N, H).", "input_gates"),
        Output("storage", "Activated gates, for DynamicRNNGrad, (T, N, 4*H).", "input_gates"),
    ),
    attributes=(direction(),),
)


def reference(
    input_gates: np.ndarray,
    weight: np.ndarray,
    init_h: np.ndarray,
    init_c: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    direction: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition.

    Args:
        input_gates: float32 or float64 array (T, N, 4*H).
        weight: (4*H, H), of the same dtype.
        init_h, init_c: (N, H), of the same dtype.
        mask: bool, broadcasts to (T, N).
        direction: as in the schema.
        dtype: dtype to compute in and of the results instead of that of the inputs.

    Returns:
        output (T, N, H), c (T, N, H) and storage (T, N, 4*H).
    """
    compute = computing_dtype((input_gates,), dtype)
    given, matrix = input_gates.astype(compute), weight.astype(compute)
    steps, samples, width = len(given), *init_h.shape
    present = np.broadcast_to(np.True_ if mask is None else mask, (steps, samples))[..., None]
    h, c = init_h.astype(compute), init_c.astype(compute)
    output, cells = (np.zeros((steps, samples, width), compute) for _ in range(2))
    storage = np.zeros((steps, samples, GATES * width), compute)
    for t in reversed(range(steps)) if direction else range(steps):
        with np.errstate(all="ignore"):
            hy, cy, gates = stepped(given[t] + h @ matrix.T, c)
        h, c = np.where(present[t], hy, h), np.where(present[t], cy, c)
        output[t], cells[t], storage[t] = h, c, np.where(present[t], gates, 0)
    output, cells, storage = (rounded(result, input_gates.dtype, dtype) for result in (output, cells, storage))
    return output, cells, storage


# --- the kernel: one task per block of samples ------------------------------------------------------------------------

INPUT_GATES, WEIGHT, INIT_H, INIT_C, MASK = range(5)
OUTPUT, C, STORAGE = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    layout = record_at(address, LAYOUT)
    if not write_sequence(layout, kernel, job, INPUT_GATES, WEIGHT, INIT_H, MASK, False):
        return False
    give_shape(job, STORAGE, INPUT_GATES)
    for output in (OUTPUT, C):
        give_shape(job, output, INPUT_GATES)
        job.output_dims[output, 2] = layout.width
    return same_shape(job, INIT_C, INIT_H)


PLAN = Layout(write_layout, LAYOUT.itemsize)


def prepare(job: Job, number: int, dtype: Floating) -> None:
    element_type = record_at(job.kernel, KERNEL).element_type[WEIGHT]
    if not pack_weights(record_at(job.scratch, LAYOUT), number, job.data[WEIGHT], element_type, False, dtype):
        job.failed = NO_MEMORY


def task(job: Job, number: int, dtype: Floating) -> None:
    """All steps of some samples."""
    layout, kernel = record_at(job.scratch, LAYOUT), record_at(job.kernel, KERNEL)
    reverse = record_at(kernel.attributes, ATTRIBUTES).direction
    element_type, masked = kernel.element_type[INPUT_GATES], kernel.element_type[MASK] != 0
    samples, width, wide = layout.samples, layout.width, GATES * layout.width
    size, own, is_narrow = item_size(element_type), size_of(dtype), item_size(element_type) == 2
    first = number * layout.per_task
    count = min(layout.per_task, samples - first)
    tiles, vectors = ceil_divide(count, ROWS), vectors_of(wide)
    # Rows in the computing dtype, of 16-bit ones; in place, of the gates.
    in_place = job.in_place != 0
    states, row = count * width if is_narrow else 0, width if is_narrow or in_place else 0
    memory, products, rows, places, starts, own_h, own_c, given, gates, cell = allocate(
        (tiles * ROWS * vectors * LANES, dtype), (tiles * ROWS, np.int64), (tiles * ROWS, np.int64), (1, np.int64),
        (states, dtype), (states, dtype), (GATES * row, dtype), (GATES * row, dtype), (row, dtype),
    )  # fmt: skip
    if memory == 0:
        job.failed = NO_MEMORY
        return
    begin = first * width * size
    if is_narrow:
        read_floats(job.data[INIT_H] + begin, element_type, count * width, address_of(own_h))
        read_floats(job.data[INIT_C] + begin, element_type, count * width, address_of(own_c))
        write_rows(0, count, width, vectors, tiles, rows, starts, places)
    else:
        write_rows(first, count, width, vectors, tiles, rows, starts, places)
    h, c = job.data[INIT_H], job.data[INIT_C]
    for n in range(layout.steps):
        t = place_of(layout, n, reverse)
        multiply_rows(layout, address_of(own_h) if is_narrow else h, rows, tiles, starts, products, places, dtype)
        next_h, next_c = job.output[OUTPUT] + t * samples * width * size, job.output[C] + t * samples * width * size
        for r in range(count):
            at, place = (first + r) * width * size, t * samples + first + r
            storage, inputs = job.output[STORAGE] + place * wide * size, job.data[INPUT_GATES] + place * wide * size
            product = address_of(products) + r * vectors * LANES * own
            row_h, row_c = address_of(own_h) + r * width * own, address_of(own_c) + r * width * own
            if not has_step(layout, masked, job.data[MASK], t, first + r):
                if is_narrow:
                    write_floats(row_h, element_type, width, next_h + at)
                    write_floats(row_c, element_type, width, next_c + at)
                else:
                    copy_bytes(h + at, next_h + at, width * size)
                    copy_bytes(c + at, next_c + at, width * size)
                write_zeros(storage, wide * size)
            elif is_narrow:
                read_floats(inputs, element_type, wide, address_of(given))
                addresses = (address_of(given), product, row_c, row_h, address_of(cell), address_of(gates))
                step_at(step_of_floats, np.float32, addresses, width)
                copy_bytes(address_of(cell), row_c, width * own)
                write_floats(row_h, element_type, width, next_h + at)
                write_floats(row_c, element_type, width, next_c + at)
                write_floats(address_of(gates), element_type, wide, storage)
            else:
                target = address_of(gates) if in_place else storage
                addresses = (inputs, product, c + at, next_h + at, next_c + at, target)
                if element_type == DOUBLE:
                    step_at(step_of_doubles, np.float64, addresses, width)
                else:
                    step_at(step_of_floats, np.float32, addresses, width)
                if in_place:
                    copy_bytes(target, storage, wide * size)
        h, c = next_h, next_c
    free(memory)


def kernel(call: Call) -> Tasks:
    pairs = (("input_gates", "storage"),)
    return Tasks(PLAN, task, prepare=prepare, compute=computing_type(call, "mask"), in_place=pairs)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    given, init_h, init_c = b.load("input_gates"), b.load("init_h"), b.load("init_c")
    turned = b.op("Transpose", b.load("weight"), name="turned", perm=[1, 0])
    widths, scanned = widths_of(b, init_h), Scanned(b, given, backward=False)
    states = scanned.state(init_h, "first_h"), scanned.state(init_c, "first_c")
    sequences = {"now": scanned.sequence(given)} | ({"mask": scanned.mask()} if b.has("mask") else {})

    def step(h: Value, c: Value, now: Value, *mask: Value) -> tuple[Value, ...]:
        gates = (now + b.op("MatMul", h, turned, name="recurrent")).named("sums")
        hy, cy, storage = written(b, gates, c, widths)
        if mask:
            has_step = mask[0].cast(TensorProto.BOOL).named("has_step")
            hy, cy = b.op("Where", has_step, hy, h, name="hidden"), b.op("Where", has_step, cy, c, name="cell")
            storage = b.op("Where", has_step, storage, 0.0, name="storage")
        return hy, cy, hy, cy, storage

    kind = TensorType(b.compute, (None, None))
    scope = b.subgraph(step, dict.fromkeys(("h", "c", *sequences), kind), (kind,) * 5)
    names = ("last_h", "last_c", "outputs", "cells", "gates_of_steps")
    _, _, *stacks = b.several(
        "Scan", *states, *sequences.values(), names=names, num_scan_inputs=len(sequences), body=scope
    )
    for output, stack in zip(("output", "c", "storage"), stacks, strict=True):
        b.store(output, scanned.stack(stack, output), "input_gates")


def infer(call: Call) -> tuple[TensorType, ...]:
    sequence, _ = check_sequence(call, "input_gates", ("init_h", "init_c"), ())
    dtype, gates = call.dtype("input_gates"), of_gates(sequence)
    return TensorType(dtype, sequence), TensorType(dtype, sequence), TensorType(dtype, gates)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Two steps with weights of 0, whose gates are half open.
        {
            "input_gates": [[[0.0, 0.0, 0.0, 0.0]], [[0.0, 0.0, 100.0, -200.0]]],
            "weight": [[0.0], [0.0], [0.0], [0.0]],
            "init_h": [[3.0]],
            "init_c": [[0.0]],
        },
        {
            "output": [[[0.0]], [[0.0]]],
            "c": [[[0.0]], [[0.5]]],
            "storage": [[[0.5, 0.5, 0.0, 0.5]], [[0.5, 0.5, 1.0, 0.0]]],
        },
    ),
)
