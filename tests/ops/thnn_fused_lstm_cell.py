"""ThnnFusedLstmCell: from the gates of a step to its states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOATS, INF, NAN, normal
from tests.ops._shared.lstm import FORMS, GATES, LIMITS, SIZES, epsilon, finite, same_dtypes, wrong
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, Choice, DType, Input, Record, Refusal, Worked, like

OP = "ThnnFusedLstmCell"
NAMES = ("input_gates", "hidden_gates", "cx")


def oracle(
    input_gates: ArrayLike, hidden_gates: ArrayLike, cx: ArrayLike, *, dtype: Reals = np.float64
) -> tuple[Array, ...]:
    """hy, cy and storage."""
    gates = real(input_gates, dtype) + real(hidden_gates, dtype)
    width = gates.shape[-1] // GATES
    storage = np.empty_like(gates)
    for k in range(GATES):
        part = slice(k * width, (k + 1) * width)
        storage[..., part] = np.tanh(gates[..., part]) if k == 2 else 1 / (1 + np.exp(-gates[..., part]))
    i, f, g, o = (storage[..., k * width : (k + 1) * width] for k in range(GATES))
    cy = f * real(cx, dtype) + i * g
    return o * np.tanh(cy), cy, storage


def largest_terms(*inputs: ArrayLike, dtype: Reals = np.float64) -> tuple[Array, ...]:
    """The larger of the two terms of cy, and what hy has of it."""
    with np.errstate(all="ignore"):
        hy, cy, storage = oracle(*inputs, dtype=dtype)
        i, f, g, o = np.split(storage, GATES, axis=-1)
        term = np.maximum(np.abs(f * real(inputs[2], dtype)), np.abs(i * g))
        return np.maximum(np.abs(hy), o * term / np.cosh(cy) ** 2), term, storage


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """The sum of two gates is rounded, an exponential is off by as many times as it is large, a few roundings more."""
    given = [real(call.given[name]) for name in NAMES]
    eps = epsilon(dtype)
    with np.errstate(all="ignore"):
        _, cy, storage = oracle(*given)
        off = finite(4 * eps * (1 + np.abs(given[0]) + np.abs(given[1])))  # of an infinite sum all is exact
        if output == "storage":
            return finite(np.abs(storage) * off)
        i, f, g, o = np.split(np.abs(storage), GATES, axis=-1)
        off_i, off_f, off_g, off_o = np.split(off, GATES, axis=-1)
        off_cy = finite(f * np.abs(given[2]) * off_f + i * g * (off_i + off_g))
        if output == "cy":
            return off_cy
        return finite(o * (np.abs(np.tanh(cy)) * (off_o + 4 * eps) + off_cy))


def inputs(shape: tuple[int, ...], dtype: DType) -> dict[str, Array | None]:
    *rows, width = shape
    return {
        "input_gates": normal((*rows, GATES * width), dtype, "input"),
        "hidden_gates": normal((*rows, GATES * width), dtype, "hidden"),
        "cx": normal(shape, dtype, "cell"),
    }


def make(choice: Choice) -> dict[str, Array | None]:
    return inputs(choice.form, choice.dtype("cx"))


def calls() -> Iterator[Call]:
    for dtype in FLOATS:
        yield Call(OP, inputs((3, 0), dtype), label=f"no_columns-{dtype.name}")
        gates = np.array([NAN, INF, -INF, 1e4, -1e4, 80.0, -80.0, 12.0, 1e-6, -0.0]).astype(dtype)
        given = np.repeat(gates[:, None], GATES, axis=-1)  # all four gates of a row alike
        call = Call(OP, {"input_gates": given, "hidden_gates": np.zeros_like(given), "cx": gates[::-1, None].copy()})
        yield call.but({}, f"far-{dtype.name}")
    yield Call(OP, inputs((70, 129), FLOATS[2]), label="tasks")
    yield Call(OP, inputs((2, 3), FLOATS[2]), label="known_shapes", static=True)


def worked(dtype: DType) -> Iterator[Worked]:
    """Gates of 0 let half through; sigmoid(log 3) = 3/4, tanh(log 3) = 4/5."""
    log3 = math.log(3)
    arrays = {
        "input_gates": np.array([[0, 0, 0, 0], [log3, log3, log3, log3]], dtype),
        "hidden_gates": np.zeros((2, 4), dtype),
        "cx": np.array([[2.0], [-0.8]], dtype),
    }
    expected = {
        "hy": [[0.5 * math.tanh(1.0)], [0.0]],
        "cy": [[1.0], [0.0]],
        "storage": [[0.5, 0.5, 0.0, 0.5], [0.75, 0.75, 0.8, 0.75]],
    }
    small = {2: 1e-2, 4: 1e-6, 8: 1e-14}[dtype.itemsize]  # log 3 and 0.8 are rounded too
    yield Worked(Call(OP, arrays, label="by_hand"), expected, rtol=small, atol=small)


def refusals(plain: Call) -> Iterator[Refusal]:
    yield wrong("cx", (), "(..., H)", by_rank=True)
    yield wrong("input_gates", (2, 9), "(2, 12)", "(..., 4*H)")
    yield wrong("input_gates", (3, 12), "(..., 4*H)")
    yield wrong("input_gates", (12,), "(..., 4*H)", by_rank=True)
    yield wrong("hidden_gates", (2, 16), "(2, 12)")
    yield wrong("hidden_gates", (1, 12), "(2, 12)")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    given, hidden, cx = with_torch.tensors(torch, call)

    def run() -> Any:
        i, f, g, o = (given + hidden).chunk(GATES, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        cy = f * cx + i * g
        return o * cy.tanh(), cy, torch.cat([i, f, g, o], -1)

    return run


def benchmark(shape: tuple[int, ...], dtype: DType) -> Call:
    return Call(OP, inputs(shape, dtype))


RECORD = Record(
    OP,
    inputs={name: Input(variable="T") for name in NAMES},
    outputs={
        "hy": like("cx", limits=LIMITS, portable_limits=LIMITS),
        "cy": like("cx", limits=LIMITS, portable_limits=LIMITS),
        "storage": like("cx", limits=LIMITS, portable_limits=LIMITS),
    },
    joint={NAMES: same_dtypes(3)},
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
    documented=(f"aclnn{OP}", "Hochreiter", "(..., 4*H)", "tanh(cy)"),
    benchmarks=(Benchmark(benchmark, SIZES),),
    accuracies=(accuracy.of_calls(benchmark, (64, 256)),),
)
