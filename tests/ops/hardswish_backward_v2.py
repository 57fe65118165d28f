"""HardswishBackwardV2: the gradient of hardswish."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, masked_gradient, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN
from tests.ops._shared.hardshrink import around
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Output, Record, Worked, limits, promoted

OP = "HardswishBackwardV2"
WIDE = np.longdouble


def oracle(grad_output: ArrayLike, self: ArrayLike, *, dtype: Reals = np.float64) -> Array:
    """grad_output times (2 * self + 3) / 6, clipped to 0 up to -3 and to 1 from 3 on; a factor of 0 gives +0."""
    g, x = np.broadcast_arrays(real(grad_output, WIDE), real(self, WIDE))
    with np.errstate(all="ignore"):
        factor = np.select([x <= -3, x >= 3], [WIDE(0), WIDE(1)], (2 * x + 3) / 6)
        return np.where(x <= -3, WIDE(0), g * factor).astype(dtype)


MASKS = {
    "off": (-3.0, -3.5, -4.0, -INF, -3e4, -INF, -3.0, -INF),
    "on": (3.0, 3.5, 4.0, INF, 3e4, INF, 3.0, INF),
    "between": (0.0, 1.0, -1.0, -2.0, -1.5, -2.0, -1.5, -1.5),
    "unknown": (NAN,) * 8,
}


def calls() -> Iterator[Call]:
    yield from masked_gradient.broadcast_calls(OP, lambda number: {})
    for dtype in FLOATS:
        yield from masked_gradient.mask_calls(OP, MASKS, dtype)
        for edge in (3.0, 1.5):
            yield masked_gradient.edge_call(OP, around(edge, dtype), {}, f"edge_{edge}")
        x = np.linspace(-3.25, 3.25, 1001).astype(dtype)
        yield Call(OP, {"grad_output": np.ones_like(x), "self": x}, label=f"slopes-{dtype.name}")


def worked(dtype: DType) -> Iterator[Worked]:
    g = np.array([2, 6, -6, 4, 8, INF, NAN, NAN, INF], dtype)
    x = np.array([0, 1.5, -2, -1.5, 3, -3, -4, 4, -2], dtype)
    call = Call(OP, {"grad_output": g, "self": x}, label="by_hand")
    yield Worked(call, {"grad_input": [1, 6, 1, 0, 8, 0, 0, NAN, -INF]}, rtol=2 * float(np.finfo(np.float32).eps))


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    arguments = torch.broadcast_tensors(*with_torch.tensors(torch, call))
    return functools.partial(torch.ops.aten.hardswish_backward, *arguments)


# A sum, two products and a third: each half a unit of its own, which is up to a unit of the result.
ROUNDED = limits(single=4, double=4)
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input()},
    outputs={"grad_input": Output(promoted, limits=ROUNDED, portable_limits=ROUNDED)},
    oracle=oracle,
    make=masked_gradient.make,
    forms=masked_gradient.FORMS,
    calls=calls,
    worked=worked,
    refusals=masked_gradient.refusals,
    large=lambda dtype: masked_gradient.large(OP, {}, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "self / 3 + 1/2", "do not cancel", "NaN", "+0"),
    benchmarks=(Benchmark(masked_gradient.benchmark(OP)),),
    accuracies=(accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "self": accuracy.FACTOR}, loss=False),),
)
