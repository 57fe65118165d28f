"""ThresholdBackward: the gradient of threshold, and of ReLU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, masked_gradient, with_torch
from tests.ops._shared.arrays import INF, NAN
from tests.ops._shared.numbers import Array, Reals, attribute, real
from tests.ops._shared.record import Attribute, Benchmark, Call, DType, Input, Record

OP = "ThresholdBackward"
THRESHOLDS = (0.0, -0.0, 0.5, -1.0, -INF, 0.123456789, 1e-45, 3.4e38, INF)


def oracle(grad_output: ArrayLike, self: ArrayLike, threshold: float = 0.0, *, dtype: Reals = np.float64) -> Array:
    """+0 where self <= threshold, else grad_output; shape broadcast(grad_output, self).

    threshold is compared as a float32 value. NaN in self or as the threshold lets the gradient pass.
    """
    g, x, limit = real(grad_output, dtype), real(self, dtype), attribute(threshold, dtype)
    with np.errstate(all="ignore"):
        return np.where(x <= limit, np.zeros((), dtype), g)


def around(threshold: float, dtype: DType) -> Array:
    """The threshold, its neighbours in float32 and in float64, and numbers that are far from it."""
    near = masked_gradient.neighbours(np.float32(threshold))
    with np.errstate(over="ignore", under="ignore"):
        return np.concatenate([near, [0.0, 1.0, -1.0, INF, -INF, NAN]]).astype(dtype)


MASKS = {
    "off": (0.0, -0.5, -0.0, -INF, -0.1, -1.0, -2.0, -3.0),
    "on": (1.0,) * 8,
    "unknown": (NAN,) * 8,
}


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    arguments = with_torch.tensors(torch, call)
    threshold = float(np.float32(call.attributes.get("threshold", 0.0)))
    # PyTorch's own does not broadcast.
    return functools.partial(torch.ops.aten.threshold_backward, *torch.broadcast_tensors(*arguments), threshold)


WORKED = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 8.0, 9.0)
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input()},
    outputs=masked_gradient.OUTPUTS,
    attributes={"threshold": Attribute(0.0, (0.0, 0.5, -1.0, 0.123456789))},
    oracle=oracle,
    make=masked_gradient.make,
    forms=masked_gradient.FORMS,
    calls=lambda: masked_gradient.calls(OP, "threshold", THRESHOLDS, around, MASKS),
    worked=lambda dtype: masked_gradient.worked(OP, dtype, WORKED),
    refusals=masked_gradient.refusals,
    large=lambda dtype: masked_gradient.large(OP, {"threshold": 0.3}, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "self <= threshold", "boundary", "NaN", "ReLU", "+0"),
    benchmarks=(Benchmark(masked_gradient.benchmark(OP)),),
    accuracies=(accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "self": accuracy.FACTOR}, loss=False),),
)
