"""Signatures of the native functions of a kernel."""

from __future__ import annotations

from numba import types

COMPUTE = types.int64(types.int64, types.int64)
"""`launch.compute`: (kernel, context) -> OrtStatus*."""
PLAN = types.int64(types.int64, types.int64)
"""`plan` of a kernel: (kernel, job) -> OK or REFUSED."""
TASK = types.void(types.int64, types.int64)
"""`task` of a kernel: (job, number)."""
ALONE = types.void(types.int64, types.int64)
"""`begin` and `finish` of a kernel: (kernel, job), called before the first task and after the last one."""
