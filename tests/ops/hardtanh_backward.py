"""HardtanhBackward: the gradient of hardtanh, and of ReLU6."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, masked_gradient, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN
from tests.ops._shared.numbers import Array, Reals, attribute, real
from tests.ops._shared.record import Attribute, Benchmark, Call, DType, Input, Record

OP = "HardtanhBackward"
MAXIMA = (6.0, 0.0, -0.0, -1.0, 0.123456789, 1e-45, 3.4e38, INF, NAN)
MINIMA = (0.0, -0.0, -6.0, 1.0, 2.0, -0.123456789, -1e-45, -INF, NAN)


def oracle(
    grad_output: ArrayLike, self: ArrayLike, min: float = -1.0, max: float = 1.0, *, dtype: Reals = np.float64
) -> Array:
    """+0 but where self is above min and below max: there grad_output; shape broadcast(grad_output, self).

    The bounds are compared as float32 values. NaN is neither above nor below anything.
    """
    g, x = np.broadcast_arrays(real(grad_output, dtype), real(self, dtype))
    out = np.zeros(x.shape, dtype)
    above, below = np.greater(x, attribute(min, dtype)), np.less(x, attribute(max, dtype))
    out[above & below] = g[above & below]
    return out


def around(bound: float, dtype: DType) -> Array:
    """A bound, its neighbours in float32 and in float64, and numbers that are far from it."""
    near = masked_gradient.neighbours(np.float32(bound))
    with np.errstate(over="ignore", under="ignore"):
        return np.concatenate([near, [0.0, 1.0, -1.0, 0.5, INF, -INF, NAN]]).astype(dtype)


MASKS = {"off": (1.0, -1.0, -INF, INF, 3.0, -3.0, NAN, -NAN), "on": (0.0, -0.0, 0.5, -0.5, 0.25, 0.1, -0.1, 0.9)}


def calls() -> Iterator[Call]:
    yield from masked_gradient.calls(OP, "max", MAXIMA, around, MASKS)
    for dtype in FLOATS:
        for low in MINIMA:
            yield masked_gradient.edge_call(OP, around(low, dtype), {"min": low}, f"least_{low}")
        bounds = {"min": 0.0, "max": 6.0}
        yield masked_gradient.edge_call(OP, around(6.0, dtype), bounds, "relu6")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    arguments = torch.broadcast_tensors(*with_torch.tensors(torch, call))
    bounds = (float(np.float32(call.attributes.get(*pair))) for pair in (("min", -1.0), ("max", 1.0)))
    return functools.partial(torch.ops.aten.hardtanh_backward, *arguments, *bounds)


WORKED = (0.0, 0.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0)
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input()},
    outputs=masked_gradient.OUTPUTS,
    attributes={"min": Attribute(-1.0, (-1.0, 0.0, -0.123456789)), "max": Attribute(1.0, (1.0, 6.0, 0.123456789))},
    oracle=oracle,
    make=masked_gradient.make,
    forms=masked_gradient.FORMS,
    calls=calls,
    worked=lambda dtype: masked_gradient.worked(OP, dtype, WORKED),
    refusals=masked_gradient.refusals,
    large=lambda dtype: masked_gradient.large(OP, {"min": -0.3, "max": 0.7}, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "min < self < max", "boundary", "NaN", "ReLU6", "+0"),
    benchmarks=(Benchmark(masked_gradient.benchmark(OP, min=0.0, max=6.0)),),
    accuracies=(accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "self": accuracy.FACTOR}, loss=False),),
)
