"""Random calls of the ops whose records make the inputs: shapes and attributes are drawn here, and all numbers anew.

As in `fuzzing`, a call is made from seed and number alone, and what needs a session of its own lasts for some numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

from tests.ops import (
    RECORDS,
    apply_adam_w,
    digamma,
    dropout_backward,
    dropout_v3,
    dynamic_rnn,
    dynamic_rnn_grad,
    embedding_dense_backward,
    gelu_backward_v2,
    hardsigmoid_backward,
    hardswish_backward_v2,
    hardtanh_backward,
    inplace_cos,
    inplace_log,
    inplace_normal,
    inplace_sin,
    inplace_uniform,
    lgamma,
    max_pool2d_with_indices,
    max_pool2d_with_indices_backward,
    s_where,
    scatter_max,
    silu,
    silu_backward,
    softmax_backward,
    softmax_v2,
    thnn_fused_lstm_cell,
    thnn_fused_lstm_cell_backward,
    threshold_backward,
)
from tests.ops._shared import draws, lstm_sequences, masked_gradient, max_pool
from tests.ops._shared.arrays import Shape, other_numbers
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import Call

CALLS_PER_SIGNATURE = 6

Inputs = dict[str, Array | None]
Taken = Mapping[str, Any]
"""By name: the dtype of an input, None if it is left out, or the value of an attribute."""


def call(seed: int, number: int) -> Call:
    """The call of a number: its op and signature last for some numbers, its values are its own."""
    turn = number // CALLS_PER_SIGNATURE
    signature, values = np.random.default_rng([seed, 5, turn]), np.random.default_rng([seed, 6, number])
    op = OP_NAMES[turn % len(OP_NAMES)]
    record = RECORDS[op]
    taken: dict[str, Any] = {}
    for names, rows in record.parameters.items():
        taken |= zip(names, rows[signature.integers(len(rows))], strict=True)
    with other_numbers("random", seed, number):
        inputs, attributes = DRAWN[op](signature, values, taken)
    if values.random() < 0.2:
        _put_something_special(values, op, inputs)
    settled = {name: taken[name] for name in record.attributes} | attributes
    return record.call_of(inputs, settled, f"seed {seed}, number {number}")


def _put_something_special(values: Generator, op: str, inputs: Inputs) -> None:
    names = [name for name in SPREADS_NOTHING.get(op, ()) if (array := inputs[name]) is not None and array.size]
    if names:
        array = inputs[names[values.integers(len(names))]]
        assert array is not None
        array[np.unravel_index(values.integers(array.size), array.shape)] = values.choice([np.nan, np.inf, -np.inf])


def shape_of(rank: int, values: Generator) -> Shape:
    return tuple(
        int(size) for size in values.choice([0, 1, 2, 3, 4, 7, 33], rank, p=[0.03, 0.2, 0.2, 0.2, 0.2, 0.15, 0.02])
    )


def into(shape: Shape, rank: int, values: Generator) -> Shape:
    """A shape of at most a rank that broadcasts to another."""
    kept = shape[len(shape) - min(rank, len(shape)) :]
    return tuple(1 if values.random() < 0.3 else size for size in kept)


# --- the ops ---------------------------------------------------------------------------------------------------------


def _embedding(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    rows = int(signature.integers(1, 9))
    shape, width = shape_of(int(signature.integers(5)), values), int(values.integers(0, 9))
    inputs = embedding_dense_backward.inputs(shape, taken["grad"], taken["indices"], rows, width)
    return inputs, {"num_weights": rows, "padding_idx": int(signature.integers(-1, rows))}


def _scatter_max(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    form = scatter_max.Form(*(shape_of(int(signature.integers(3)), values) for _ in range(2)))
    rows = int(values.integers(0 if 0 in form.indices else 1, 9))
    return scatter_max.inputs(form, taken["var"], taken["indices"], rows), {}


def _dropout(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    shape, kind = shape_of(int(signature.integers(6)), values), np.iinfo(taken["seed"])
    x = dropout_v3.normal(shape, taken["input"], "x")
    seed = values.integers(kind.min, kind.max, endpoint=True)
    attributes = {"p": float(np.float32(signature.random())), "offset": int(signature.integers(2**63))}
    return {"input": x, "seed": np.array(seed, taken["seed"])}, attributes


def _draw(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    shape, kind = shape_of(int(signature.integers(6)), values), np.iinfo(taken["seed"])
    seed = int(values.integers(kind.min, kind.max, endpoint=True))
    inputs = draws.inputs(shape, taken["self"], seed, taken["seed"])
    return inputs, {"offset": int(signature.integers(2**63))}


def _uniform(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    inputs, attributes = _draw(signature, values, taken)
    low, high = np.sort(signature.normal(0, 10, 2).astype(np.float32))
    return inputs, {"low": float(low), "high": float(high)} | attributes


def _normal(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    inputs, attributes = _draw(signature, values, taken)
    mean, std = signature.normal(0, 10, 2).astype(np.float32)
    return inputs, {"mean": float(mean), "std": float(abs(std))} | attributes


def _dropout_backward(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    rank, own = (int(n) for n in signature.integers(0, 6, 2))
    shape = shape_of(rank, values)
    inputs = dropout_backward.operands((shape, into(shape, own, values)), taken["grad_output"])
    return inputs, {"scale": float(np.float32(1 / (1 - 0.9 * signature.random())))}


def _setting(signature: Generator) -> max_pool.Setting:
    """Windows over lines, planes and volumes."""
    spatial = int(signature.choice([1, 2, 2, 2, 3]))
    kernel = signature.integers(1, 5, spatial)
    padding = [int(signature.integers(0, size // 2 + 1)) for size in kernel]
    stride, dilation = signature.integers(1, 5, spatial), signature.integers(1, 3, spatial)
    given = (tuple(int(n) for n in numbers) for numbers in (kernel, stride, padding, dilation))
    return max_pool.Setting(*given, ceil_mode=int(signature.integers(2)))


def _pooled(signature: Generator, values: Generator, setting: max_pool.Setting) -> tuple[Shape, int]:
    """The axes before the spatial ones, and the first spatial size: there are windows, and all have an element."""
    lead = shape_of(1 + int(signature.integers(2)), values)
    size = int(values.integers(1, 7))
    while not _windows_have_elements(setting, size):
        size += 1
    return (*lead[:-1], max(1, lead[-1])), size


def _windows_have_elements(setting: max_pool.Setting, size: int) -> bool:
    sizes = range(size, size + len(setting.kernel_size))
    return all(
        starts and all(any(0 <= start + j * dilation < n for j in range(kernel)) for start in starts)
        for n, (starts, kernel, dilation) in zip(sizes, max_pool.axes_of(setting, tuple(sizes)), strict=True)
    )


def _max_pool(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    setting = _setting(signature)
    lead, size = _pooled(signature, values, setting)
    return {"self": max_pool.input_of(lead, size, len(setting.kernel_size), taken["self"])}, setting.attributes


def _max_pool_backward(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    setting = _setting(signature)
    lead, size = _pooled(signature, values, setting)
    form = max_pool2d_with_indices_backward.Form(lead, size, bool(signature.integers(2)))
    kinds = (taken[name] for name in ("grad_output", "self", "indices"))
    return max_pool2d_with_indices_backward.operands(form, setting, *kinds), setting.attributes


def _lstm(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    return thnn_fused_lstm_cell.inputs(shape_of(1 + int(signature.integers(4)), values), taken["cx"]), {}


def _lstm_backward(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    left_out = tuple(name for name in thnn_fused_lstm_cell_backward.NAMES if taken[name] is None)
    shape = shape_of(1 + int(signature.integers(4)), values)
    return thnn_fused_lstm_cell_backward.inputs(shape, taken["cx"], left_out), {}


def _steps(signature: Generator, values: Generator, taken: Taken) -> tuple[lstm_sequences.Form, Inputs]:
    """Sizes, and a mask."""
    steps, samples, units = (int(n) for n in values.integers([0, 0, 1], [6, 20, 40]))
    mask = into((steps, samples), int(signature.integers(3)), values)
    form = lstm_sequences.Form(steps, samples, units, mask)
    return form, {"mask": None if taken["mask"] is None else form.masks()}


def _dynamic_rnn(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    form, mask = _steps(signature, values, taken)
    return dynamic_rnn.inputs(form, taken["init_c"]) | mask, {}


def _dynamic_rnn_grad(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    form, mask = _steps(signature, values, taken)
    left_out = tuple(name for name in dynamic_rnn_grad.NAMES if taken[name] is None)
    return dynamic_rnn_grad.inputs(form, taken["init_c"], left_out) | mask, {}


def _adam_w(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    steps, rates = int(values.integers(1, 1000)), values.uniform([0.5, 0.9], [0.95, 0.9999])
    settings = {"beta1": rates[0], "beta2": rates[1], "lr": 10 ** values.uniform(-5, -1)}
    powers = {"beta1_power": rates[0] ** steps, "beta2_power": rates[1] ** steps}
    shape, largest = shape_of(int(signature.integers(5)), values), taken["max_grad_norm"] is not None
    wide = taken["lr"].itemsize > 2  # a beta of 16 bits may be 1, which no average has
    return apply_adam_w.inputs(
        shape, taken["var"], taken["lr"], largest=largest, **(settings | powers if wide else {})
    ), {}


def _pointwise(signature: Generator, values: Generator, taken: Taken) -> Inputs:
    """`grad_output` and `self`, whose shapes broadcast."""
    first, second = (int(n) for n in signature.integers(0, 5, 2))
    space = shape_of(max(first, second), values)
    shapes = into(space, first, values), into(space, second, values)
    return masked_gradient.operands(shapes, taken["grad_output"], taken["self"])


def _gelu(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    return _pointwise(signature, values, taken), {"approximate": int(signature.integers(2))}


def _without_attributes(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    return _pointwise(signature, values, taken), {}


def _hardtanh(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    bounds = {"min": signature.choice([0.0, -0.5, -2.5]), "max": signature.choice([0.0, 0.123456789, 1.5, 6.0])}
    return _pointwise(signature, values, taken), {name: float(np.float32(bound)) for name, bound in bounds.items()}


def _one_number(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    return {"self": silu.normal(shape_of(int(signature.integers(6)), values), taken["self"], "x")}, {}


def _axis(signature: Generator, values: Generator) -> tuple[Shape, int]:
    """A shape, and one of its axes."""
    rank = int(signature.integers(1, 6))
    return shape_of(rank, values), int(signature.integers(-rank, rank))


def _softmax(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    shape, dim = _axis(signature, values)
    return {"self": softmax_v2.normal(shape, taken["self"], "x")}, {"dim": dim}


def _softmax_backward(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    shape, dim = _axis(signature, values)
    return softmax_backward.operands(shape, dim, taken["grad_output"]), {"dim": dim}


def _threshold(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    inputs = _pointwise(signature, values, taken)
    return inputs, {"threshold": float(np.float32(signature.choice([0.0, -0.5, 0.123456789])))}


def _where(signature: Generator, values: Generator, taken: Taken) -> tuple[Inputs, Taken]:
    ranks = [int(n) for n in signature.integers(0, 5, 3)]
    space = shape_of(max(ranks), values)
    condition, own, other = (into(space, rank, values) for rank in ranks)
    return s_where.operands((condition, own, other), taken["self"], taken["other"]), {}


DRAWN: dict[str, Callable[[Generator, Generator, Taken], tuple[Inputs, Taken]]] = {
    embedding_dense_backward.OP: _embedding,
    dropout_v3.OP: _dropout,
    dropout_backward.OP: _dropout_backward,
    inplace_normal.OP: _normal,
    inplace_uniform.OP: _uniform,
    max_pool2d_with_indices.OP: _max_pool,
    max_pool2d_with_indices_backward.OP: _max_pool_backward,
    thnn_fused_lstm_cell.OP: _lstm,
    thnn_fused_lstm_cell_backward.OP: _lstm_backward,
    dynamic_rnn.OP: _dynamic_rnn,
    dynamic_rnn_grad.OP: _dynamic_rnn_grad,
    apply_adam_w.OP: _adam_w,
    gelu_backward_v2.OP: _gelu,
    hardsigmoid_backward.OP: _without_attributes,
    hardswish_backward_v2.OP: _without_attributes,
    hardtanh_backward.OP: _hardtanh,
    s_where.OP: _where,
    scatter_max.OP: _scatter_max,
    lgamma.OP: _one_number,
    digamma.OP: _one_number,
    inplace_log.OP: _one_number,
    inplace_sin.OP: _one_number,
    inplace_cos.OP: _one_number,
    silu.OP: _one_number,
    silu_backward.OP: _without_attributes,
    softmax_v2.OP: _softmax,
    softmax_backward.OP: _softmax_backward,
    threshold_backward.OP: _threshold,
}
OP_NAMES = tuple(DRAWN)
SPREADS_NOTHING = {
    embedding_dense_backward.OP: ("grad",),
    dropout_v3.OP: ("input",),
    dropout_backward.OP: ("grad_output",),
    inplace_normal.OP: ("self",),
    inplace_uniform.OP: ("self",),
    max_pool2d_with_indices.OP: ("self",),
    max_pool2d_with_indices_backward.OP: ("grad_output",),
    thnn_fused_lstm_cell.OP: thnn_fused_lstm_cell.NAMES,
    hardsigmoid_backward.OP: ("grad_output", "self"),
    hardswish_backward_v2.OP: ("grad_output", "self"),
    hardtanh_backward.OP: ("grad_output", "self"),
    s_where.OP: ("self", "other"),
    threshold_backward.OP: ("grad_output", "self"),
}
"""Inputs in which a NaN or an infinity has a result that follows from the formula, however it is written."""
