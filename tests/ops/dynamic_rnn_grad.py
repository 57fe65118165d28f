"""DynamicRNNGrad: the gradient of the steps of an LSTM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOATS, INF, NAN, normal, uniform
from tests.ops._shared.lstm import GATES, LIMITS, epsilon, finite, same_dtypes, wrong
from tests.ops._shared.lstm_sequences import DIRECTION, FORMS, PLAIN, SIZES, Form, order, present, scale, wrong_masks
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import TRUTH, Benchmark, Call, Choice, DType, Input, Record, Refusal, Worked, like
from tests.ops._shared.record import with_value as changed

OP = "DynamicRNNGrad"
GRADIENTS = ("grad_output", "grad_last_h", "grad_last_c")
NAMES = (*GRADIENTS, "weight", "init_c", "c", "storage")


def _steps(
    inputs: tuple[ArrayLike | None, ...], mask: ArrayLike | None, direction: int, dtype: Reals, eps: float
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The three results, and bounds of their errors: each operation is off by some `eps`."""
    by_output, by_h, by_c, *others = inputs
    w, init_c, cells, storage = (real(array, dtype) for array in others if array is not None)
    h, c = (np.zeros_like(init_c) if given is None else real(given, dtype) for given in (by_h, by_c))
    off_h, off_c = np.zeros_like(init_c), np.zeros_like(init_c)
    steps, samples, wide = storage.shape
    gradients, errors = np.zeros_like(storage), np.zeros_like(storage)
    there, places = present(mask, steps, samples), order(steps, direction)
    for n in range(steps - 1, -1, -1):
        t = places[n]
        cx, cy = init_c if n == 0 else cells[places[n - 1]], cells[t]
        i, f, g, o = np.split(storage[t], GATES, axis=-1)
        with np.errstate(all="ignore"):
            dh = h if by_output is None else h + real(by_output, dtype)[t]
            off_dh = off_h + eps * np.abs(dh)
            slope, shown = 1 / np.cosh(cy) ** 2, np.tanh(cy)
            d = c + dh * o * slope
            off_d = off_c + off_dh * np.abs(o) * slope + 8 * eps * (np.abs(c) + np.abs(dh * o))
            factors = g * i * (1 - i), cx * f * (1 - f), i * (1 - g) * (1 + g)
            sizes = factors[0], factors[1], np.abs(i) * (1 + np.abs(g))
            last, size = shown * o * (1 - o), np.abs(o * (1 - o))
            rows = np.concatenate([*(d * factor for factor in factors), dh * last], axis=-1)
            own = [off_d * np.abs(x) + 8 * eps * np.abs(d) * np.abs(y) for x, y in zip(factors, sizes, strict=True)]
            off = np.concatenate([*own, off_dh * np.abs(last) + 8 * eps * np.abs(dh) * size], axis=-1)
            rows, off = np.where(there[t], rows, 0), finite(np.where(there[t], off, 0))
            gradients[t], errors[t] = rows, off
            product = (rows[:, :, None] * w[None]).sum(1)
            off_product = off @ np.abs(w) + (wide + 2) * eps * (np.abs(rows) @ np.abs(w))
            h, off_h = np.where(there[t], product, dh), finite(np.where(there[t], off_product, off_dh))
            off_c = finite(np.where(there[t], off_d * np.abs(f) + 2 * eps * np.abs(d * f), off_c))
            c = np.where(there[t], d * f, c)
    return (gradients, h, c), (errors, off_h, off_c)


def oracle(*inputs: ArrayLike | None, direction: int = 0, dtype: Reals = np.float64) -> tuple[Array, ...]:
    """grad_gates, grad_init_h and grad_init_c; a gradient that is left out is zeros."""
    *arrays, mask = (*inputs, None)[:8]
    return _steps(tuple(arrays), mask, direction, dtype, 0.0)[0]


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """1 - tanh^2 is off by as much as tanh, every product by a few roundings, and a sum by one for each term."""
    arrays = tuple(call.given.get(name) for name in NAMES)
    mask, direction = call.given.get("mask"), call.attributes.get("direction", 0)
    _, errors = _steps(arrays, mask, direction, np.float64, epsilon(dtype))
    return errors[("grad_gates", "grad_init_h", "grad_init_c").index(output)]


def inputs(form: Form, dtype: DType, left_out: tuple[str, ...] = ()) -> dict[str, Array | None]:
    gates = uniform(form.gates, np.float64, "gates")
    gates[..., 2 * form.units : 3 * form.units] = 2 * gates[..., 2 * form.units : 3 * form.units] - 1
    return {
        "grad_output": normal(form.states, dtype, "by_output"),
        "grad_last_h": normal(form.state, dtype, "by_hidden"),
        "grad_last_c": normal(form.state, dtype, "by_cell"),
        "weight": normal(form.weight, dtype, "weight", scale=scale(form)),
        "init_c": normal(form.state, dtype, "cell"),
        "c": normal(form.states, dtype, "cells"),
        "storage": gates.astype(dtype),
    } | dict.fromkeys(left_out)


def make(choice: Choice) -> dict[str, Array | None]:
    left_out = tuple(name for name in NAMES if choice.dtypes[name] is None)
    mask = None if choice.dtypes["mask"] is None else choice.form.masks()
    return inputs(choice.form, choice.dtype("storage"), left_out) | {"mask": mask}


def calls() -> Iterator[Call]:
    for dtype in FLOATS:
        yield Call(OP, inputs(Form(2, 3, 0, ()), dtype), label=f"no_units-{dtype.name}")
        yield Call(OP, inputs(PLAIN, dtype), outputs=("grad_gates",), label=f"gates_only-{dtype.name}")
    few, half = inputs(PLAIN, FLOAT32), np.array([[True, True], [False, True], [True, False]])
    places = {"grad_output": (1, 0, 2), "grad_last_c": (0, 1), "weight": (4, 1), "init_c": (0, 1), "c": (1, 0, 2)}
    places["storage"] = (1, 0, 2)
    for value in (NAN, INF, -INF):
        for name, place in places.items():
            for direction in (0, 1):
                special = changed(few, name, place, value)
                label = f"{value}_in_{name}_{direction}"
                yield Call(OP, special, {"direction": direction}, label=label)
                yield Call(OP, special | {"mask": half}, {"direction": direction}, label=f"{label}_masked")
    yield Call(OP, few, outputs=("grad_gates", "grad_init_h"), label="known_shapes", static=True)
    yield Call(OP, few | {"mask": np.zeros((), TRUTH)}, label="no_step_at_all")


def worked(dtype: DType) -> Iterator[Worked]:
    arrays: dict[str, Array | None] = {
        "grad_output": np.array([[[0.0]], [[1.0]]], dtype),
        "weight": np.array([[8.0], [0.0], [0.0], [0.0]], dtype),
        "init_c": np.array([[4.0]], dtype),
        "c": np.array([[[0.0]], [[0.0]]], dtype),
        "storage": np.array([[[0.5, 0.5, 0.0, 0.5]], [[0.5, 0.25, 0.5, 1.0]]], dtype),
    }
    # Of the second step d = 1, and its input gate's gradient 1/8 makes a gradient of 1 of the hidden state before, half
    # of which reaches the cell state of the first step, with the quarter that comes from that of the second.
    first, second = [0.0, 0.75, 0.375, 0.0], [0.125, 0.0, 0.375, 0.0]
    expected = {"grad_gates": [[first], [second]], "grad_init_h": [[0.0]], "grad_init_c": [[0.375]]}
    yield Worked(Call(OP, arrays, label="by_hand"), expected)
    turned = {name: None if a is None else (a[::-1].copy() if a.ndim == 3 else a) for name, a in arrays.items()}
    back = expected | {"grad_gates": [[second], [first]]}
    yield Worked(Call(OP, turned, {"direction": 1}, label="backwards"), back)
    # Without the second step the gradient of the last output is that of the first one.
    masked = arrays | {"mask": np.array([[True], [False]])}
    first = [0.0, 0.5, 0.25, 0.0]
    alone = {"grad_gates": [[first], [[0.0] * 4]], "grad_init_h": [[0.0]], "grad_init_c": [[0.25]]}
    yield Worked(Call(OP, masked, label="masked"), alone)


def refusals(plain: Call) -> Iterator[Refusal]:
    yield wrong("storage", (3, 2, 11), "(3, 2, 12)", "(T, N, 4*H)")
    yield wrong("storage", (3, 12), "(T, N, 4*H)", by_rank=True)
    yield wrong("weight", (12, 4), "(16, 4)", "(4*H, H)")
    yield wrong("weight", (12,), "(4*H, H)", by_rank=True)
    for name in ("grad_last_h", "grad_last_c", "init_c"):
        yield wrong(name, (2, 4), "(2, 3)", "(N, H)")
        yield wrong(name, (1, 3), "(2, 3)")
        yield wrong(name, (1, 2, 3), "(2, 3)", by_rank=True)
    for name in ("grad_output", "c"):
        yield wrong(name, (3, 2, 4), "(3, 2, 3)", "(T, N, H)")
        yield wrong(name, (1, 2, 3), "(3, 2, 3)")
        yield wrong(name, (2, 3), "(3, 2, 3)", by_rank=True)
    yield from wrong_masks()


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    tensors = {name: with_torch.tensor(torch, array) for name, array in call.given.items()}
    by_output, by_h, by_c = (tensors.get(name) for name in GRADIENTS)
    weight, init_c, cells, storage = (tensors[name] for name in NAMES[3:])
    mask, (steps, samples) = tensors.get("mask"), storage.shape[:2]
    places = order(steps, call.attributes.get("direction", 0))

    def run() -> Any:
        h = torch.zeros_like(init_c) if by_h is None else by_h
        c = torch.zeros_like(init_c) if by_c is None else by_c
        there = None if mask is None else mask.expand(steps, samples).unsqueeze(-1)
        gradients = torch.zeros_like(storage)
        for n in range(steps - 1, -1, -1):
            t = places[n]
            cx = init_c if n == 0 else cells[places[n - 1]]
            i, f, g, o = storage[t].chunk(GATES, -1)
            shown = cells[t].tanh()
            dh = h if by_output is None else h + by_output[t]
            d = c + dh * o * (1 - shown * shown)
            rows = [d * g * i * (1 - i), d * cx * f * (1 - f), d * i * (1 - g * g), dh * shown * o * (1 - o)]
            own = torch.cat(rows, -1)
            if there is not None:
                own = torch.where(there[t], own, 0.0)
            after, before = own @ weight, d * f
            if there is not None:
                after, before = torch.where(there[t], after, dh), torch.where(there[t], before, c)
            gradients[t], h, c = own, after, before
        return (gradients, h.clone(), c.clone())[: len(call.outputs or GRADIENTS)]

    return run


def benchmark(form: Form, dtype: DType) -> Call:
    return Call(OP, inputs(form, dtype, ("grad_last_h", "grad_last_c")))


RECORD = Record(
    OP,
    inputs={
        **{name: Input(variable="T", optional=name in GRADIENTS) for name in NAMES},
        "mask": Input((TRUTH,), optional=True),
    },
    outputs={
        "grad_gates": like("storage", limits=LIMITS, portable_limits=LIMITS),
        "grad_init_h": like("storage", optional=True, limits=LIMITS, portable_limits=LIMITS),
        "grad_init_c": like("storage", optional=True, limits=LIMITS, portable_limits=LIMITS),
    },
    attributes={"direction": DIRECTION},
    joint={
        NAMES: [
            (*(dtype if there else None for there in given), *rest)
            for _, _, _, *rest in same_dtypes(len(NAMES))
            for dtype in rest[:1]
            for given in ((True, True, True), (True, False, False), (False, True, False), (False, False, True))
        ]
    },
    oracle=oracle,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=lambda dtype: (Call(OP, inputs(Form(3, 40, 70, ()), dtype), label="tasks"),),
    torch=torch_call,
    documented=("DynamicRNN", "(T, N, 4*H)", "tanh(c[t])", "mask[t, n]"),
    benchmarks=(Benchmark(benchmark, SIZES),),
    accuracies=(accuracy.of_calls(benchmark, Form(16, 16, 64, ())),),
)
