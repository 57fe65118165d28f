"""The compute function of a kernel: reads inputs, plans, allocates outputs, and runs the tasks in parallel."""

from __future__ import annotations

from numba import njit

from onnx_ops.core.types import MAX_ELEMENTS, MAX_RANK
from onnx_ops.loops.memory import LINE, whole_lines
from onnx_ops.loops.records import JOB, NO_MEMORY, OK, REFUSED, offset
from onnx_ops.runtime.abi import Api
from onnx_ops.runtime.memory import free, i8_at, job_at, kernel_at, malloc, python_at, stack
from onnx_ops.runtime.native import OPTIONS, call
from onnx_ops.runtime.records import LAYOUT

JOB_BYTES, LAYOUT_BYTES = JOB.itemsize, LAYOUT.itemsize
DIMS, DIMS_STEP = offset(JOB, "dims"), 8 * MAX_RANK
OUTPUT_DIMS = offset(JOB, "output_dims")

# Plain integers, so that they are constants in native code.
GET_INPUT_COUNT, GET_INPUT, GET_OUTPUT = (
    int(Api.KernelContext_GetInputCount), int(Api.KernelContext_GetInput), int(Api.KernelContext_GetOutput),
)  # fmt: skip
GET_TYPE_AND_SHAPE, RELEASE_TYPE_AND_SHAPE = int(Api.GetTensorTypeAndShape), int(Api.ReleaseTensorTypeAndShapeInfo)
GET_RANK, GET_DIMENSIONS, GET_DATA = (
    int(Api.GetDimensionsCount), int(Api.GetDimensions), int(Api.GetTensorMutableData),
)  # fmt: skip
PARALLEL_FOR = int(Api.KernelContext_ParallelFor)


@njit(**OPTIONS)
def too_large(dims_address, rank):
    """As `core.types.too_large`."""
    dims, elements = i8_at(dims_address), 1.0
    for axis in range(rank):
        elements *= max(dims[axis], 1)  # exact in float64 up to MAX_ELEMENTS
    return elements > MAX_ELEMENTS


def compute(kernel_address, context):
    """KernelComputeV2 of a kernel; returns an OrtStatus, 0 on success."""
    job_address, layout_address = stack(JOB_BYTES), stack(LAYOUT_BYTES)
    kernel, job = kernel_at(kernel_address), job_at(job_address)
    api, python = i8_at(kernel.api), python_at(kernel.python)
    job.kernel = kernel_address
    job.layout = layout_address
    job.failed = OK
    job.scratch_bytes = 0
    job.prepare_tasks = 0
    slot_address = stack(8)
    slot = i8_at(slot_address)

    call(api[GET_INPUT_COUNT], (context, slot_address))
    for i in range(min(slot[0], kernel.inputs)):
        if kernel.element_type[i] == 0:
            continue
        call(api[GET_INPUT], (context, i, slot_address))
        value = slot[0]
        call(api[GET_TYPE_AND_SHAPE], (value, slot_address))
        info = slot[0]
        call(api[GET_RANK], (info, slot_address))
        job.rank[i] = slot[0]
        if job.rank[i] <= MAX_RANK:
            call(api[GET_DIMENSIONS], (info, job_address + DIMS + i * DIMS_STEP, job.rank[i]))
        call(api[RELEASE_TYPE_AND_SHAPE], (info,))
        if job.rank[i] > MAX_RANK or too_large(job_address + DIMS + i * DIMS_STEP, job.rank[i]):
            return call(python.fail, (kernel_address, context, REFUSED))
        call(api[GET_DATA], (value, slot_address))
        job.data[i] = slot[0]

    refused = call(kernel.plan, (kernel_address, job_address))
    if refused != OK:
        return call(python.fail, (kernel_address, context, refused))

    job.in_place = 0
    for k in range(kernel.outputs):
        job.output[k] = 0
        if kernel.output_type[k] == 0:
            continue
        dims_address = job_address + OUTPUT_DIMS + k * DIMS_STEP
        if too_large(dims_address, job.output_rank[k]):
            return call(python.fail, (kernel_address, context, REFUSED))
        status = call(api[GET_OUTPUT], (context, k, dims_address, job.output_rank[k], slot_address))
        if status != 0:
            return status
        call(api[GET_DATA], (slot[0], slot_address))
        job.output[k] = slot[0]
        for i in range(kernel.inputs):
            job.in_place |= kernel.element_type[i] != 0 and job.data[i] == job.output[k]

    scratch = 0
    if job.scratch_bytes > 0:
        scratch = malloc(job.scratch_bytes + LINE)
        if scratch == 0:
            return call(python.fail, (kernel_address, context, NO_MEMORY))
        job.scratch = whole_lines(scratch)
    if kernel.begin != 0:
        call(kernel.begin, (kernel_address, job_address))
    if kernel.prepare != 0 and job.prepare_tasks > 0:
        call(api[PARALLEL_FOR], (context, kernel.prepare, job.prepare_tasks, 0, job_address))
    if job.failed != OK:
        job.tasks = 0
    if job.tasks == 1:
        call(kernel.task, (job_address, 0))
    elif job.tasks > 1:
        call(api[PARALLEL_FOR], (context, kernel.task, job.tasks, 0, job_address))
    if kernel.finish != 0 and job.failed == OK:
        call(kernel.finish, (kernel_address, job_address))
    if job.scratch_bytes > 0:
        free(scratch)
    if job.failed != OK:
        return call(python.fail, (kernel_address, context, job.failed))
    return 0
