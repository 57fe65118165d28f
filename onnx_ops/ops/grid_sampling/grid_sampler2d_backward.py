"""GridSampler2DBackward: gradients of samples of an image at the points of a grid."""

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
from onnx_ops.ops.grid_sampling._bodies import store_gradients
from onnx_ops.ops.grid_sampling._corners import POINTS
from onnx_ops.ops.grid_sampling._gradients import (
    gradient_signature,
    gradients_in_numpy,
    infer_gradients,
    lay_out_gradients,
    prepare,
    task,
)

AXES = 2
SIGNATURE = gradient_signature(AXES, "H, W", "Hout, Wout")


def infer(call: Call) -> tuple[TensorType, ...]:
    return infer_gradients(call, AXES)


def reference(
    grad_output: np.ndarray,
    input: np.ndarray,
    grid: np.ndarray,
    *,
    interpolation_mode: int = 0,
    padding_mode: int = 0,
    align_corners: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """NumPy definition, with sums in float64.

    Args:
        grad_output: floating array (N, C, Hout, Wout).
        input: floating array (N, C, H, W).
        grid: floating array (N, Hout, Wout, 2).
        interpolation_mode, padding_mode, align_corners: as in the schema.
        dtype: dtype of the results instead of input's.

    Returns:
        input_grad and grid_grad, of the shapes of input and grid.
    """
    return gradients_in_numpy(grad_output, input, grid, (interpolation_mode, padding_mode, align_corners), dtype)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    return bool(lay_out_gradients(address, kernel, job, AXES))


PLAN = Layout(write_layout, POINTS.itemsize)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, prepare=prepare, compute=computing_type(call))


def body(b: Body) -> None:
    store_gradients(b, AXES)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "grad_output": [[[[1.0, 2.0, 4.0]]]],
            "input": [[[[1.0, 2.0], [3.0, 4.0]]]],
            "grid": [[[[0.0, 0.0], [-0.5, 0.5], [1.0, 1.0]]]],
        },
        {"input_grad": [[[[0.25, 0.25], [2.25, 1.25]]]], "grid_grad": [[[[1.0, 2.0], [2.0, -6.0], [-8.0, -8.0]]]]},
    ),
    body_opset=16,  # ScatterElements adds from opset 16 on
)
