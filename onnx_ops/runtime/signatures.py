"""Signatures of the native functions of a kernel."""

from __future__ import annotations

from numba import types
from numba.core.typing import Signature
from numba.np.numpy_support import from_dtype

from onnx_ops.loops.memory import DOUBLE, FLOAT
from onnx_ops.loops.records import JOB, KERNEL

JOB_RECORD, KERNEL_RECORD = map(from_dtype, (JOB, KERNEL))
"""C functions take their addresses."""
COMPUTE = types.int64(types.int64, types.int64)
"""`launch.compute`: (kernel, context) -> OrtStatus*."""
PLAN = types.int64(KERNEL_RECORD, JOB_RECORD)
"""`plan` of a kernel: (kernel, job) -> OK or REFUSED."""
WRITE_LAYOUT = types.int64(types.int64, KERNEL_RECORD, JOB_RECORD)
"""`write` of a `Layout`: (address, kernel, job) -> whether the shapes of the inputs fit."""
TASK = types.void(JOB_RECORD, types.int64)
"""`task` and `prepare` of a kernel: (job, number)."""
TASK_IN: dict[int | None, Signature] = {
    None: TASK,
    FLOAT: types.void(JOB_RECORD, types.int64, types.NumberClass(types.float32)),
    DOUBLE: types.void(JOB_RECORD, types.int64, types.NumberClass(types.float64)),
}
"""The same by the computing dtype that they take as their last argument: (job, number, dtype)."""
ALONE = types.void(KERNEL_RECORD, JOB_RECORD)
"""`begin` and `finish` of a kernel: (kernel, job), called before the first task and after the last one."""
