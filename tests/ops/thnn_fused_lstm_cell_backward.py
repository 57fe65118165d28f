"""ThnnFusedLstmCellBackward: the gradient of a step by its gates and its cell state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN, normal, uniform
from tests.ops._shared.lstm import FORMS, GATES, LIMITS, SIZES, epsilon, finite, same_dtypes, wrong
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, Choice, DType, Input, Record, Refusal, Worked, like

OP = "ThnnFusedLstmCellBackward"
NAMES = ("grad_hy", "grad_cy", "cx", "cy", "storage")


def oracle(
    grad_hy: ArrayLike | None,
    grad_cy: ArrayLike | None,
    cx: ArrayLike,
    cy: ArrayLike,
    storage: ArrayLike,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    """grad_gates and grad_cx; a gradient that is left out is zeros."""
    before, after, gates = real(cx, dtype), real(cy, dtype), real(storage, dtype)
    zeros = np.zeros_like(before)
    dh, dc = (zeros if given is None else real(given, dtype) for given in (grad_hy, grad_cy))
    width = before.shape[-1]
    i, f, g, o = (gates[..., k * width : (k + 1) * width] for k in range(GATES))
    with np.errstate(all="ignore"):
        d = dc + dh * o / np.cosh(after) ** 2
        by_gate = (
            d * g * i * (1 - i),
            d * before * f * (1 - f),
            d * i * (1 - g) * (1 + g),
            dh * np.tanh(after) * o * (1 - o),
        )
        return np.concatenate(by_gate, axis=-1), d * f


def largest_terms(
    grad_hy: ArrayLike | None,
    grad_cy: ArrayLike | None,
    cx: ArrayLike,
    cy: ArrayLike,
    storage: ArrayLike,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    """Of the sum d the larger term, and of the 1 - x^2 the 1."""
    before, after, gates = (np.abs(real(a, dtype)) for a in (cx, cy, storage))
    dh, dc = (np.zeros_like(before) if given is None else np.abs(real(given, dtype)) for given in (grad_hy, grad_cy))
    i, f, g, o = np.split(gates, GATES, axis=-1)
    with np.errstate(all="ignore"):
        d = np.maximum(dc, dh * o)
        by_gate = (d * g * i * (1 - i), d * before * f * (1 - f), d * i, dh * np.tanh(after) * o * (1 - o))
        return np.concatenate(by_gate, axis=-1), d * f


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """1 - tanh^2 is off by as much as tanh, and every product by a few roundings."""
    zeros = np.zeros(call.given["cx"].shape)
    dh, dc, before, after = (np.abs(real(call.given.get(name, zeros))) for name in NAMES[:4])
    i, f, g, o = np.split(np.abs(real(call.given["storage"])), GATES, axis=-1)
    eps = 8 * epsilon(dtype)
    with np.errstate(all="ignore"):
        d = dc + dh * o
        if output == "grad_cx":
            return finite(eps * d * f)
        shown = np.tanh(after)
        parts = (d * g * i * (1 - i), d * before * f * (1 - f), d * i * (1 + g), dh * shown * o * (1 - o))
        return finite(eps * np.abs(np.concatenate(parts, axis=-1)))


def inputs(shape: tuple[int, ...], dtype: DType, left_out: tuple[str, ...] = ()) -> dict[str, Array | None]:
    *rows, width = shape
    made: dict[str, Array | None] = {name: normal(shape, dtype, name) for name in NAMES[:4]}
    gates = uniform((*rows, GATES * width), np.float64, "gates")
    gates[..., 2 * width : 3 * width] = 2 * gates[..., 2 * width : 3 * width] - 1
    return made | {"storage": gates.astype(dtype)} | dict.fromkeys(left_out)


def make(choice: Choice) -> dict[str, Array | None]:
    left_out = tuple(name for name in NAMES if choice.dtypes[name] is None)
    return inputs(choice.form, choice.dtype("cx"), left_out)


def calls() -> Iterator[Call]:
    for dtype in FLOATS:
        yield Call(OP, inputs((3, 0), dtype), label=f"no_columns-{dtype.name}")
        call = Call(OP, inputs((10, 3), dtype), label=f"special-{dtype.name}")
        special = np.array([NAN, INF, -INF, 1e4, -1e4, 80.0, -80.0, 12.0, 1e-6, -0.0]).astype(dtype)[:, None]
        for name in NAMES[:4]:
            yield call.but({name: np.repeat(special, 3, axis=-1)}, f"{name}_special-{dtype.name}")
        shut = call.given["storage"].copy()
        shut[:5], shut[5:] = 0.0, 1.0
        yield call.but({"storage": shut}, f"gates_0_and_1-{dtype.name}")
        yield Call(OP, inputs((2, 3), dtype), outputs=("grad_gates",), label=f"gates_only-{dtype.name}")
    yield Call(OP, inputs((70, 129), FLOATS[2]), label="tasks")
    yield Call(OP, inputs((2, 3), FLOATS[2]), label="known_shapes", static=True)


def worked(dtype: DType) -> Iterator[Worked]:
    arrays: dict[str, Array | None] = {
        "grad_hy": np.array([[1.0], [8.0]], dtype),
        "grad_cy": np.array([[2.0], [0.0]], dtype),
        "cx": np.array([[4.0], [1.0]], dtype),
        "cy": np.array([[0.0], [0.0]], dtype),
        "storage": np.array([[0.5, 0.5, 0.5, 1.0], [0.5, 0.25, 0.0, 0.5]], dtype),
    }
    # d is 2 + 1 and 0 + 8 / 2.
    expected = {"grad_gates": [[0.375, 3.0, 1.125, 0.0], [0.0, 0.75, 2.0, 0.0]], "grad_cx": [[1.5], [1.0]]}
    yield Worked(Call(OP, arrays, label="by_hand"), expected)
    alone = {"grad_gates": [[0.25, 2.0, 0.75, 0.0], [0.0, 0.0, 0.0, 0.0]], "grad_cx": [[1.0], [0.0]]}
    yield Worked(Call(OP, arrays | {"grad_hy": None}, label="no_grad_hy"), alone)


def refusals(plain: Call) -> Iterator[Refusal]:
    yield wrong("cx", (), "(..., H)", by_rank=True)
    for name in ("grad_hy", "grad_cy", "cy"):
        yield wrong(name, (2, 4), "(2, 3)")
        yield wrong(name, (1, 3), "(2, 3)")
        yield wrong(name, (3,), "(2, 3)", by_rank=True)
    yield wrong("storage", (2, 9), "(..., 4*H)")
    yield wrong("storage", (3, 12), "(..., 4*H)")
    yield wrong("storage", (12,), "(..., 4*H)", by_rank=True)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    dh, dc, cx, cy, storage = with_torch.tensors(torch, call)

    def run() -> Any:
        i, f, g, o = storage.chunk(GATES, -1)
        shown = cy.tanh()
        d = 0 if dc is None else dc
        if dh is not None:
            d = d + dh * o * (1 - shown * shown)
        elif dc is None:
            d = torch.zeros_like(cx)
        by_output = torch.zeros_like(cx) if dh is None else dh * shown * o * (1 - o)
        gates = [d * g * i * (1 - i), d * cx * f * (1 - f), d * i * (1 - g * g), by_output]
        return torch.cat(gates, -1), d * f

    return run


def benchmark(shape: tuple[int, ...], dtype: DType) -> Call:
    return Call(OP, inputs(shape, dtype))


RECORD = Record(
    OP,
    inputs={name: Input(variable="T", optional=name.startswith("grad")) for name in NAMES},
    outputs={
        "grad_gates": like("cx", limits=LIMITS, portable_limits=LIMITS),
        "grad_cx": like("cx", optional=True, limits=LIMITS, portable_limits=LIMITS),
    },
    joint={
        NAMES: [(dh, dc, *rest) for _, _, *rest in same_dtypes(5) for dh in (rest[0], None) for dc in (rest[0], None)]
    },
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=lambda dtype: (Call(OP, inputs((64, 500), dtype), label="rows"),),
    torch=torch_call,
    documented=(f"aclnn{OP}", "(..., 4*H)", "tanh(cy)", "storage"),
    benchmarks=(Benchmark(benchmark, SIZES),),
    accuracies=(accuracy.of_calls(benchmark, (64, 256)),),
)
