"""DynamicRNN: the steps of an LSTM."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOATS, INF, NAN, normal
from tests.ops._shared.lstm import GATES, LIMITS, epsilon, finite, same_dtypes, wrong
from tests.ops._shared.lstm_sequences import DIRECTION, FORMS, PLAIN, SIZES, Form, order, present, scale, wrong_masks
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import TRUTH, Benchmark, Call, Choice, DType, Input, Record, Refusal, Worked, like
from tests.ops._shared.record import with_value as changed

OP = "DynamicRNN"
NAMES = ("input_gates", "weight", "init_h", "init_c")


def oracle(
    input_gates: ArrayLike,
    weight: ArrayLike,
    init_h: ArrayLike,
    init_c: ArrayLike,
    mask: ArrayLike | None = None,
    direction: int = 0,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, ...]:
    """output, c and storage, unit by unit."""
    given, w, h, c = (real(array, dtype) for array in (input_gates, weight, init_h, init_c))
    steps, samples, wide = given.shape
    units = wide // GATES
    output, cells, storage = (np.zeros((steps, samples, size), dtype) for size in (units, units, wide))
    there = present(mask, steps, samples)[..., 0]
    with np.errstate(all="ignore"):
        for t in order(steps, direction):
            sums = given[t] + (h[:, None, :] * w[None]).sum(-1)
            i, f, o = (1 / (1 + np.exp(-sums[:, k * units : (k + 1) * units])) for k in (0, 1, 3))
            g = np.tanh(sums[:, 2 * units : 3 * units])
            after = f * c + i * g
            shown = o * np.tanh(after)
            for n in range(samples):
                if there[t, n]:
                    h[n], c[n], storage[t, n] = shown[n], after[n], np.concatenate([i[n], f[n], g[n], o[n]])
            output[t], cells[t] = h, c
    return output, cells, storage


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """The roundings of sums of products, and what the errors of the states before make of them.

    Sigmoid and tanh are off by at most what their argument is off by, and 4 roundings.
    """
    given, w, init_h, init_c = (real(call.given[name]) for name in NAMES)
    mask, direction = call.given.get("mask"), call.attributes.get("direction", 0)
    found = oracle(given, w, init_h, init_c, mask, direction)
    steps, samples, wide = given.shape
    units, eps = wide // GATES, epsilon(dtype)
    there = present(mask, steps, samples)
    error_h, error_c = np.zeros_like(init_h), np.zeros_like(init_c)
    errors = {name: np.zeros_like(array) for name, array in zip(("output", "c", "storage"), found, strict=True)}
    h, c = init_h, init_c
    with np.errstate(all="ignore"):
        for t in order(steps, direction):
            sizes = np.abs(given[t]) + np.abs(h) @ np.abs(w).T
            error = finite(error_h @ np.abs(w).T + (units + 3) * eps * sizes + 4 * eps)
            i, f, g, o = (found[2][t][:, k * units : (k + 1) * units] for k in range(GATES))
            off_i, off_f, off_g, off_o = (error[:, k * units : (k + 1) * units] for k in range(GATES))
            terms = np.abs(f * c) + np.abs(i * g)
            own_c = f * error_c + np.abs(c) * off_f + i * off_g + np.abs(g) * off_i + 3 * eps * terms
            own_h = o * finite(own_c) + off_o + 6 * eps  # tanh of an infinite state is exact
            error_c = finite(np.where(there[t], own_c, error_c))
            error_h = finite(np.where(there[t], own_h, error_h))
            errors["storage"][t] = np.where(there[t], error, 0)
            errors["output"][t], errors["c"][t] = error_h, error_c
            h, c = found[0][t], found[1][t]
    return errors[output]


def inputs(form: Form, dtype: DType) -> dict[str, Array | None]:
    return {
        "input_gates": normal(form.gates, dtype, "input"),
        "weight": normal(form.weight, dtype, "weight", scale=scale(form)),
        "init_h": normal(form.state, dtype, "hidden"),
        "init_c": normal(form.state, dtype, "cell"),
    }


def make(choice: Choice) -> dict[str, Array | None]:
    mask = None if choice.dtypes["mask"] is None else choice.form.masks()
    return inputs(choice.form, choice.dtype("input_gates")) | {"mask": mask}


def calls() -> Iterator[Call]:
    for dtype in FLOATS:
        yield Call(OP, inputs(Form(2, 3, 0, ()), dtype), label=f"no_units-{dtype.name}")
    few, half = inputs(PLAIN, FLOAT32), np.array([[True, True], [False, True], [True, False]])
    for value in (NAN, INF, -INF):
        for name, place in (("input_gates", (1, 0, 2)), ("init_h", (0, 1)), ("init_c", (0, 1)), ("weight", (4, 1))):
            for direction in (0, 1):
                special = changed(few, name, place, value)
                label = f"{value}_in_{name}_{direction}"
                yield Call(OP, special, {"direction": direction}, label=label)
                yield Call(OP, special | {"mask": half}, {"direction": direction}, label=f"{label}_masked")
    far = few | {"input_gates": np.full(PLAIN.gates, 1e4, FLOAT32)}
    yield Call(OP, far, label="saturated")
    yield Call(OP, few, outputs=("output", "c", "storage"), label="known_shapes", static=True)
    yield Call(OP, few | {"mask": np.zeros((), TRUTH)}, label="no_step_at_all")


def worked(dtype: DType) -> Iterator[Worked]:
    """Gates of 0 let half through; sigmoid(log 3) = 3/4, tanh(log 3) = 4/5. The hidden state opens the output gate."""
    log3 = math.log(3)
    arrays: dict[str, Array | None] = {
        "input_gates": np.array([[[0, 0, 0, 0]], [[log3, log3, log3, 0]]], dtype),
        "weight": np.array([[0], [0], [0], [log3 / (0.5 * math.tanh(1))]], dtype),
        "init_h": np.array([[0.0]], dtype),
        "init_c": np.array([[2.0]], dtype),
    }
    last = 0.75 + 0.75 * 0.8
    expected = {
        "output": [[[0.5 * math.tanh(1)]], [[0.75 * math.tanh(last)]]],
        "c": [[[1.0]], [[last]]],
        "storage": [[[0.5, 0.5, 0.0, 0.5]], [[0.75, 0.75, 0.8, 0.75]]],
    }
    small = {2: 2e-2, 4: 1e-6, 8: 1e-14}[dtype.itemsize]
    yield Worked(Call(OP, arrays, label="by_hand"), expected, rtol=small, atol=small)
    first = arrays | {"mask": np.array([[True], [False]])}
    kept = {
        "output": [[[0.5 * math.tanh(1)]]] * 2,
        "c": [[[1.0]]] * 2,
        "storage": [[[0.5, 0.5, 0.0, 0.5]], [[0.0] * 4]],
    }
    yield Worked(Call(OP, first, label="masked"), kept, rtol=small, atol=small)
    turned = arrays | {"input_gates": np.array(arrays["input_gates"])[::-1].copy()}
    back = {name: rows[::-1] for name, rows in expected.items()}
    yield Worked(Call(OP, turned, {"direction": 1}, label="backwards"), back, rtol=small, atol=small)


def refusals(plain: Call) -> Iterator[Refusal]:
    yield wrong("input_gates", (3, 2, 11), "(3, 2, 12)", "(T, N, 4*H)")
    yield wrong("input_gates", (3, 12), "(T, N, 4*H)", by_rank=True)
    yield wrong("weight", (12, 4), "(16, 4)", "(4*H, H)")
    yield wrong("weight", (12,), "(4*H, H)", by_rank=True)
    for name in ("init_h", "init_c"):
        yield wrong(name, (2, 4), "(2, 3)", "(N, H)")
        yield wrong(name, (1, 3), "(2, 3)")
        yield wrong(name, (1, 2, 3), "(2, 3)", by_rank=True)
    yield from wrong_masks()


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    tensors = {name: with_torch.tensor(torch, array) for name, array in call.given.items()}
    given, weight, init_h, init_c = (tensors[name] for name in NAMES)
    mask, places = tensors.get("mask"), order(len(given), call.attributes.get("direction", 0))
    steps, samples = given.shape[:2]

    def run() -> Any:
        h, c, rows = init_h, init_c, {}
        there = None if mask is None else mask.expand(steps, samples).unsqueeze(-1)
        for t in places:
            i, f, g, o = (given[t] + h @ weight.t()).chunk(GATES, -1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            after = f * c + i * g
            shown, gates = o * after.tanh(), torch.cat([i, f, g, o], -1)
            if there is not None:
                after, shown = torch.where(there[t], after, c), torch.where(there[t], shown, h)
                gates = torch.where(there[t], gates, 0.0)
            h, c, rows[t] = shown, after, (shown, after, gates)
        if not rows:
            return given.new_empty(0, *h.shape), given.new_empty(0, *h.shape), given.clone()
        return tuple(torch.stack([rows[t][k] for t in range(steps)]) for k in range(3))

    return run


def benchmark(form: Form, dtype: DType) -> Call:
    return Call(OP, inputs(form, dtype))


RECORD = Record(
    OP,
    inputs={**{name: Input(variable="T") for name in NAMES}, "mask": Input((TRUTH,), optional=True)},
    outputs={name: like("input_gates", limits=LIMITS, portable_limits=LIMITS) for name in ("output", "c", "storage")},
    attributes={"direction": DIRECTION},
    joint={NAMES: same_dtypes(len(NAMES))},
    oracle=oracle,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=lambda dtype: (Call(OP, inputs(Form(3, 40, 70, ()), dtype), label="tasks"),),
    torch=torch_call,
    documented=("DynamicRNN", "Hochreiter", "(T, N, 4*H)", "mask[t, n]", "REDIRECTIONAL"),
    benchmarks=(Benchmark(benchmark, SIZES),),
    accuracies=(accuracy.of_calls(benchmark, Form(16, 16, 64, ())),),
)
