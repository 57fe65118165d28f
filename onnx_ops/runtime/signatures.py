"""Signatures of the native functions of a kernel."""

from __future__ import annotations

from numba import types

COMPUTE = types.int64(types.int64, types.int64)
"""`launch.compute`: (kernel, context) -> OrtStatus*."""
PLAN = types.int64(types.int64, types.int64)
"""A plan, (kernel, job): from the inputs to what the tasks need. It answers `OK` or `REFUSED`."""
TASK = types.void(types.int64, types.int64)
"""A task: (address of the job, number of the task)."""
ALONE = types.void(types.int64, types.int64)
"""What runs alone, (kernel, job), before the first task (`begin`) or after the last (`finish`)."""
