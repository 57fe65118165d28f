"""SoftmaxBackward: the gradient of softmax along an axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, along_axis, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
    SUM_LIMITS,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    like,
    with_value,
)

OP = "SoftmaxBackward"
WIDE = np.longdouble


def oracle(grad_output: ArrayLike, output: ArrayLike, *, dim: int = -1, dtype: Reals = np.float64) -> Array:
    """The product of grad_output and the Jacobian, (diag(output) - output output^T) g = output (g - output^T g)."""
    grad, out = real(grad_output, WIDE), real(output, WIDE)
    with np.errstate(all="ignore"):
        return np.asarray(out * (grad - (out * grad).sum(axis=dim, keepdims=True))).astype(dtype)


def largest_terms(grad_output: ArrayLike, output: ArrayLike, *, dim: int = -1, dtype: Reals = np.float64) -> Array:
    grad, out = np.abs(real(grad_output, WIDE)), np.abs(real(output, WIDE))
    with np.errstate(all="ignore"):
        products = (out * grad).max(axis=dim, keepdims=True, initial=0)
        return np.asarray(np.maximum(out * grad, out * products)).astype(dtype)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """A rounding for each term of the sum, and three more, of a size up to that of all terms."""
    grad, out = (np.nan_to_num(np.abs(real(call.given[n])), posinf=0.0) for n in ("grad_output", "output"))
    dim = call.attributes.get("dim", -1)
    sizes = out * (grad + (grad * out).sum(axis=dim, keepdims=True))
    precision = 2.0 ** (-53 if call.dtype("output") == FLOAT64 else -24)
    return np.asarray(sizes * (grad.shape[dim] + 3) * precision)


def operands(shape: Shape, dim: int, dtype: DType) -> dict[str, Array | None]:
    terms = np.exp(normal(shape, FLOAT64, "x"))
    out = terms / terms.sum(axis=dim, keepdims=True)
    return {"grad_output": normal(shape, dtype, "g"), "output": out.astype(dtype)}


def make(choice: Choice) -> dict[str, Array | None]:
    return operands(choice.form, choice.attributes["dim"], choice.dtype("output"))


def calls() -> Iterator[Call]:
    for label, (shape, dim) in along_axis.SHAPES.items():
        yield Call(OP, operands(shape, dim, FLOAT32), {"dim": dim}, label=label, static=label == "long")
    for dtype in FLOATS:
        for value in (NAN, INF, -INF):
            for name in ("grad_output", "output"):
                for dim in (0, 1):
                    special = with_value(operands((5, 6), dim, dtype), name, (2, 3), value)
                    yield Call(OP, special, {"dim": dim}, label=f"{value}_in_{name}_{dim}-{dtype.name}")


def worked(dtype: DType) -> Iterator[Worked]:
    given: dict[str, Array | None] = {
        "grad_output": np.array([[1, 3], [2, 8]], dtype),
        "output": np.array([[0.5, 0.5], [0.25, 0.75]], dtype),
    }
    rows = Call(OP, given, label="rows")
    yield Worked(rows, {"grad_input": [[-0.5, 0.5], [-1.125, 1.125]]})
    # Sums of 1 and 7.5 along the columns.
    columns = Call(OP, given, {"dim": 0}, label="columns")
    yield Worked(columns, {"grad_input": [[0, -2.25], [0.25, 0.375]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    less = plain.given["output"][:, :1]
    yield Refusal("shapes", ("'output'", "(2, 1, 4)", "'grad_output'"), {"output": less})
    scalars = {name: np.zeros((), np.float32) for name in plain.given}
    yield Refusal("scalars", ("'grad_output'", "()", "at least 1 dimension"), scalars, by_rank=True)
    yield from along_axis.wrong_axes()


def large(dtype: DType) -> Iterator[Call]:
    for label, (shape, dim) in along_axis.LARGE.items():
        yield Call(OP, operands(shape, dim, dtype), {"dim": dim}, label=label)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    grad, out = with_torch.tensors(torch, call)
    dim = call.attributes.get("dim", -1)
    return functools.partial(torch.ops.aten._softmax_backward_data, grad, out, dim, out.dtype)


def benchmark(shape: Shape, dtype: DType) -> Call:
    return Call(OP, operands(shape, -1, dtype))


def columns(shape: Shape, dtype: DType) -> Call:
    return Call(OP, operands(shape, 1, dtype), {"dim": 1})


RECORD = Record(
    OP,
    inputs={"grad_output": Input(variable="T"), "output": Input(variable="T")},
    outputs={"grad_input": like("grad_output", limits=SUM_LIMITS, portable_limits=SUM_LIMITS)},
    attributes={"dim": along_axis.AXES},
    joint={("grad_output", "output"): [(dtype, dtype) for dtype in FLOATS]},
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=along_axis.FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "grad_output * output", "NaN"),
    benchmarks=(
        Benchmark(benchmark, along_axis.SIZES),
        Benchmark(columns, {"4x21x64x64": (4, 21, 64, 64)}, "along axis 1"),
    ),
    accuracies=(accuracy.of_calls(benchmark, (64, 128), (16, 1000)),),
)
