"""OptimizationBarrier: the identity, computed after another value."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import array_at, item_size, record_at
from onnx_ops.loops.records import KERNEL, OK, Job, Kernel
from onnx_ops.loops.shapes import give_shape, size_of
from onnx_ops.ops.references import rounded

ANY = (
    *FLOATS,
    TensorProto.BOOL,
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8),
)
SIGNATURE = Signature(
    "OptimizationBarrier",
    """
The identity, computed after another value; optimizers neither remove nor move it (StableHLO's optimization_barrier).

    result = operand

It orders nodes between which no data flows: what reads `result` runs after the node that computes `after`. A node that
overwrites memory is made to wait for those that read it, and what is computed a second time to save memory is not
merged with the first time.

Shapes: `result` has the shape of `operand`, rank 0 to 8; `after` has any.

Dtypes: `operand` float16, bfloat16, float or double, `result` the same; `after` float16, bfloat16, float, double, int8,
int16, int32, int64, uint8 or bool.

Edge rules: `result` has the bits of `operand`, those of NaN included. The elements of `after` are not read.

Without a kernel: `result` is the same, but `after` orders nothing.
""",
    inputs=(
        Input("operand", "Any floating tensor."),
        Input("after", "A value that is computed first.", dtypes=ANY),
    ),
    outputs=(Output("result", "`operand`.", "operand"),),
)


def reference(operand: np.ndarray, after: np.ndarray, *, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    """NumPy definition.

    Args:
        operand: floating array.
        after: any array.
        dtype: dtype of the result instead of operand's.

    Returns:
        A copy of operand.
    """
    return rounded(operand.copy(), operand.dtype, dtype)


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.dtype("operand"), call.shape("operand")),)


# --- the kernel: one task per block of elements -----------------------------------------------------------------------

BLOCK = 1 << 16
"""Elements per task."""


def plan(kernel: Kernel, job: Job) -> int:
    give_shape(job, 0, 0)
    job.tasks = (size_of(job, 0) + BLOCK - 1) // BLOCK
    return OK


def task(job: Job, number: int) -> None:
    """Copy a block, as 16-bit words; nothing in place."""
    if job.output[0] == job.data[0]:
        return
    size = item_size(record_at(job.kernel, KERNEL).element_type[0])
    start = number * BLOCK
    count = min(BLOCK, size_of(job, 0) - start) * size // 2
    source = array_at(job.data[0] + start * size, count, np.uint16)
    target = array_at(job.output[0] + start * size, count, np.uint16)
    for i in range(count):
        target[i] = source[i]


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, in_place=(("operand", "result"),))


def body(b: Body) -> None:
    b.store("result", b.op("Identity", b.inputs["operand"], name="same"), "operand")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example({"operand": [1.0, -2.0], "after": [[0.5, 1.5]]}, {"result": [1.0, -2.0]}),
)
