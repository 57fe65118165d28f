"""GridSampler3D: samples of a volume at the points of a grid."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.records import Job, Kernel
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.grid_sampling._bodies import store_samples
from onnx_ops.ops.grid_sampling._corners import POINTS
from onnx_ops.ops.grid_sampling._sampler import (
    infer_samples,
    lay_out_samples,
    prepare,
    sampled_in_numpy,
    sampler_signature,
    task,
)

AXES = 3
SIGNATURE = sampler_signature(AXES, "D, H, W", "Dout, Hout, Wout")


def infer(call: Call) -> tuple[TensorType, ...]:
    return infer_samples(call, AXES)


def reference(
    input: np.ndarray,
    grid: np.ndarray,
    *,
    interpolation_mode: int = 0,
    padding_mode: int = 0,
    align_corners: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, with sums in float64.

    Args:
        input: floating array (N, C, D, H, W).
        grid: floating array (N, Dout, Hout, Wout, 3).
        interpolation_mode, padding_mode, align_corners: as in the schema.
        dtype: dtype of the result instead of input's.

    Returns:
        Array (N, C, Dout, Hout, Wout).
    """
    return sampled_in_numpy(input, grid, (interpolation_mode, padding_mode, align_corners), dtype)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    return bool(lay_out_samples(address, kernel, job, AXES))


PLAN = Layout(write_layout, POINTS.itemsize)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, prepare=prepare, compute=computing_type(call))


def body(b: Body) -> None:
    store_samples(b, AXES)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"input": [[[[[1.0, 2.0], [3.0, 4.0]]]]], "grid": [[[[[0.0, 0.0, 0.0], [-0.5, 0.5, 0.0], [1.0, 1.0, 0.0]]]]]},
        {"out": [[[[[2.5, 3.0, 1.0]]]]]},
    ),
)
