"""Compiles a `Loop`."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from numba import njit, types

from onnx_ops.core.space import Role
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.memory import LINE, channel_type, whole_lines
from onnx_ops.loops.records import MAX_INPUTS, NO_MEMORY
from onnx_ops.runtime.compiler import compile_native
from onnx_ops.runtime.loops.maps import DIRECT_BYTES, MAP_BYTES, map_task
from onnx_ops.runtime.loops.numbers import LOAD, NUMBERS, STORE, load, store
from onnx_ops.runtime.loops.plan import begin, plan
from onnx_ops.runtime.loops.sums import SUM_BYTES, finish, sum_task
from onnx_ops.runtime.memory import free, kernel_at, layout_at, loop_at, malloc, stack
from onnx_ops.runtime.native import DOUBLE, FLOAT, OPTIONS
from onnx_ops.runtime.signatures import ALONE, PLAN, TASK

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
F8 = types.CPointer(types.float64)
PREPARE = types.void(types.CPointer(F8), types.int64, F8)
FINISH = types.void(*[types.CPointer(F8)] * 3, types.int64, types.int64, F8)


def _core(dtype: int, out: types.Type) -> types.Type:
    parameters = NUMBERS[DOUBLE if dtype == DOUBLE else FLOAT]
    return types.void(types.CPointer(NUMBERS[dtype]), out, types.int64, parameters)


CORE = {dtype: _core(dtype, numbers) for dtype, numbers in NUMBERS.items()}
"""Signature of a core by computing dtype: (operands, out, count, parameters)."""
CORE_OF_SEVERAL = {dtype: _core(dtype, types.CPointer(numbers)) for dtype, numbers in NUMBERS.items()}
"""The same of an op with several outputs."""
CORE_OF_SUMS = {dtype: _core(dtype, F8) for dtype in NUMBERS}
"""The same of the terms of sums."""


def task_of_terms(job, number):
    """A block of elements, for a loop without sums."""
    kernel = kernel_at(job.kernel)
    run_map(kernel, loop_at(kernel.loop), job, layout_at(job.layout), number)


def task_of_sums(job, number):
    """A block of sums, or of elements where there is nothing to sum."""
    kernel = kernel_at(job.kernel)
    loop, layout = loop_at(kernel.loop), layout_at(job.layout)
    if not layout.summed:
        run_map(kernel, loop, job, layout, number)
        return
    memory = malloc(SUM_BYTES + LINE)
    if memory == 0:
        job.failed = NO_MEMORY
        return
    sum_task(kernel, loop, job, layout, number, whole_lines(memory))
    free(memory)


@njit(**OPTIONS)
def run_map(kernel, loop, job, layout, number):
    if layout.direct and not layout.past_caches and not job.in_place:
        map_task(kernel, loop, job, layout, number, stack(DIRECT_BYTES))
        return
    memory = malloc(MAP_BYTES + LINE)
    if memory == 0:
        job.failed = NO_MEMORY
        return
    map_task(kernel, loop, job, layout, number, whole_lines(memory))
    free(memory)


def functions(loop: Loop) -> dict[str, int]:
    """Addresses of the native functions of a kernel, by field of `KERNEL`."""
    found = {"plan": compile_native(plan, PLAN)}
    if loop.sums:
        found |= {"task": compile_native(task_of_sums, TASK), "finish": compile_native(finish, ALONE)}
        found |= {"write": compile_native(store, STORE[DOUBLE])}
    else:
        found["task"] = compile_native(task_of_terms, TASK)
    if loop.sums or loop.space.having(Role.CHANNEL):
        found |= {"begin": compile_native(begin, ALONE), "read": compile_native(load, LOAD[DOUBLE])}
    return found


def fields(loop: Loop, outputs: int) -> dict[str, Any]:
    """The fields of the `LOOP` record of an op with `outputs` outputs, but for those that the machine determines."""
    inputs = list(loop.space.roles)
    found: dict[str, Any] = {
        "compute_type": loop.compute,
        "role": padded(list(loop.space.roles.values())),
        "ranks": loop.space.ranks,
        "divisor": loop.divisor,
        "parameters": [*loop.parameters, *[0.0] * (4 - len(loop.parameters))],
        "memory_bound": loop.memory_bound,
        "uniform": padded([name in loop.uniform for name in inputs]),
        "load": compile_native(load, LOAD[loop.compute]),
        "channel_load": compile_native(load, LOAD[channel_type(loop.sums.compute if loop.sums else loop.compute)]),
        "store": compile_native(store, STORE[loop.compute]),
        "pivot": -1,
    }
    core = CORE[loop.compute] if outputs == 1 else CORE_OF_SEVERAL[loop.compute]
    if loop.core:
        found["core"] = compile_native(loop.core, core)
    if loop.core_uniform:
        found["core_uniform"] = compile_native(loop.core_uniform, core)
    if loop.prepare:
        found["prepare"] = compile_native(loop.prepare, PREPARE)
    if sums := loop.sums:
        found |= {
            "sums": 1,
            "sum_type": sums.compute,
            "sum_core": compile_native(sums.core, CORE_OF_SUMS[sums.compute]),
            "sum_load": compile_native(load, LOAD[sums.compute]),
            "kept": sums.kept,
            "like": inputs.index(sums.like) if sums.like else -1,
            "terms": sums.terms,
            "pivot": inputs.index(sums.pivot) if sums.pivot else -1,
        }
        if sums.totals:
            found["sum_totals"] = compile_native(sums.totals, CORE_OF_SUMS[sums.compute])
        if sums.finish:
            found["finish"] = compile_native(sums.finish, FINISH)
    return found


@functools.cache
def cache_bytes() -> int:
    """Size of the last-level cache; a common one if the system does not report it."""
    sizes = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    return max((int(size[:-1]) << 10 for size in sizes if size.endswith("K")), default=32 << 20)


def available_cores() -> int:
    """Number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def padded(values: list[float]) -> list[float]:
    """One value per input, and 0 for those that the op does not have."""
    return values + [0] * (MAX_INPUTS - len(values))
