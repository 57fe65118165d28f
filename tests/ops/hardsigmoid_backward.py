"""HardsigmoidBackward: the gradient of hardsigmoid."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, masked_gradient, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN
from tests.ops._shared.hardshrink import around
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Output, Record, Worked, limits, promoted

OP = "HardsigmoidBackward"


def oracle(grad_output: ArrayLike, self: ArrayLike, *, dtype: Reals = np.float64) -> Array:
    """+0 but where self is above -3 and below 3: there a sixth of grad_output; shape broadcast(grad_output, self)."""
    g, x = np.broadcast_arrays(real(grad_output, dtype), real(self, dtype))
    out, inside = np.zeros(x.shape, dtype), (x > -3) & (x < 3)
    with np.errstate(under="ignore"):
        out[inside] = g[inside] / 6
    return out


MASKS = {
    "off": (3.0, -3.0, INF, -INF, NAN, -NAN, 3e4, -3e4),
    "on": (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -2.5),
}


def calls() -> Iterator[Call]:
    yield from masked_gradient.broadcast_calls(OP, lambda number: {})
    for dtype in FLOATS:
        yield from masked_gradient.mask_calls(OP, MASKS, dtype)
        yield masked_gradient.edge_call(OP, around(3.0, dtype), {}, "edges")
        small = np.array([1, -2, 3, 4, 9, -15, 21, 1024]).astype(dtype) * ml_dtypes.finfo(dtype).smallest_subnormal
        yield Call(OP, {"grad_output": small, "self": np.ones(8, dtype)}, label=f"small-{dtype.name}")


def worked(dtype: DType) -> Iterator[Worked]:
    g = np.array([6, -3, 12, 6, 6, NAN, INF, NAN], dtype)
    x = np.array([0, -2, 2.5, 3, -3, 1, -1, 4], dtype)
    call = Call(OP, {"grad_output": g, "self": x}, label="by_hand")
    yield Worked(call, {"grad_input": [1, -0.5, 2, 0, 0, NAN, INF, 0]})


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    arguments = torch.broadcast_tensors(*with_torch.tensors(torch, call))
    if torch.float64 in {tensor.dtype for tensor in arguments}:  # in which PyTorch's sixth is a float32
        return lambda: torch.ops.aten.hardtanh_backward(*arguments, -3, 3) / 6
    return functools.partial(torch.ops.aten.hardsigmoid_backward, *arguments)


ROUNDED = limits(single=0.501, double=0.501)  # rounded once
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
    documented=(f"aclnn{OP}", "grad_output / 6", "boundary", "NaN", "+0"),
    benchmarks=(Benchmark(masked_gradient.benchmark(OP)),),
    accuracies=(accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "self": accuracy.FACTOR}, loss=False),),
)
