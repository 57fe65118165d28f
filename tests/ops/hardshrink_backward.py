"""HardshrinkBackward: the gradient of hardshrink."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, masked_gradient, with_torch
from tests.ops._shared.arrays import NAN
from tests.ops._shared.hardshrink import EDGES, LAMBD, around, threshold
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, Input, Record

OP = "HardshrinkBackward"


def oracle(grad_output: ArrayLike, self: ArrayLike, lambd: float = 0.5, *, dtype: Reals = np.float64) -> Array:
    """grad_output where self > lambd or self < -lambd, else +0; shape broadcast(grad_output, self).

    lambd is compared as a float32 value. NaN in self gives 0; NaN in grad_output shows only where the mask is on.
    """
    g, x, limit = real(grad_output, dtype), real(self, dtype), threshold(lambd)
    with np.errstate(all="ignore"):
        return np.where((x > limit) | (x < -limit), g, np.zeros((), dtype))


MASKS = {"off": (0.0, 0.5, -0.5, 0.1, -0.1, NAN, NAN, -NAN), "on": (-1.0,) * 8}


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    arguments = with_torch.tensors(torch, call)
    lambd = float(threshold(call.attributes.get("lambd", 0.5)))
    return functools.partial(torch.ops.aten.hardshrink_backward, *arguments, lambd)


WORKED = (1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 9.0)
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input()},
    outputs=masked_gradient.OUTPUTS,
    attributes={"lambd": LAMBD},
    oracle=oracle,
    make=masked_gradient.make,
    forms=masked_gradient.FORMS,
    calls=lambda: masked_gradient.calls(OP, "lambd", EDGES, around, MASKS),
    worked=lambda dtype: masked_gradient.worked(OP, dtype, WORKED),
    refusals=masked_gradient.refusals,
    large=lambda dtype: masked_gradient.large(OP, {"lambd": 0.3}, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "self > lambd or self < -lambd", "boundary", "NaN", "below 0 counts as 0", "+0"),
    benchmarks=(Benchmark(masked_gradient.benchmark(OP)),),
    accuracies=(
        accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "self": accuracy.HARDSHRINK_INPUT}, loss=False),
    ),
)
