"""Forward ops and their gradients together: what a backward op gives is the derivative of its forward op.

Derivatives are differences of float64 results, taken through real sessions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import backends
import numpy as np
import pytest
from backends import KERNEL, PORTABLE, Array, Backend

from tests.ops import ctc_loss_backward
from tests.ops._shared import arrays, ctc
from tests.ops._shared.numbers import finite_difference
from tests.ops._shared.record import Call

INF = math.inf
NONE, MEAN, SUM, BATCHMEAN = range(4)
in_sessions = pytest.mark.parametrize("backend", [KERNEL, PORTABLE], ids=str)
Inputs = Mapping[str, Array | None]


def outputs(backend: Backend, op: str, inputs: Inputs, **attributes: Any) -> dict[str, Array]:
    return backend.run(Call(op, inputs, attributes))


def assert_derivative(actual: Array, function: Callable[[Array], Any], at: Array) -> None:
    """The differences have about nine digits."""
    expected = finite_difference(function, at, 1e-5)
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-8)


# --- losses --------------------------------------------------------------------------------------------------------


@in_sessions
@pytest.mark.parametrize("reduction", range(4))
@pytest.mark.parametrize("log_target", [0, 1])
@pytest.mark.parametrize(("own", "target"), [((3, 4), (3, 4)), ((4,), (3, 4)), ((3, 1), (4,)), ((), (3,)), ((3,), ())])
def test_kl_div(backend: Backend, own: arrays.Shape, target: arrays.Shape, log_target: int, reduction: int) -> None:
    settings = {"reduction": reduction, "log_target": log_target}
    x = arrays.normal(own, np.float64, "self")
    t = arrays.uniform(target, np.float64, "target", low=-2.0 if log_target else 0.2, high=1.0)
    space = np.broadcast_shapes(own, target)
    grad = arrays.normal(space if reduction == NONE else (), np.float64, "grad")

    def loss(**changed: Array) -> float:
        (out,) = outputs(backend, "KlDiv", {"self": x, "target": t, **changed}, **settings).values()
        return float((grad * out).sum())

    inputs = {"grad_output": grad, "self": x, "target": t}
    (by_self,) = outputs(backend, "KlDivBackward", inputs, **settings).values()
    assert_derivative(by_self, lambda a: loss(self=a), x)
    (by_target,) = outputs(backend, "KlDivTargetBackward", inputs, **settings).values()
    assert_derivative(by_target, lambda a: loss(target=a), t)


@in_sessions
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("weights", [(), ("weight",), ("pos_weight",), ("weight", "pos_weight")], ids="+".join)
def test_binary_cross_entropy(backend: Backend, weights: tuple[str, ...], reduction: int) -> None:
    shape = (3, 4)
    given = {name: arrays.uniform((4,), np.float64, name, low=0.5, high=3.0) for name in weights}
    x = arrays.normal(shape, np.float64, "self", scale=3.0)
    y = arrays.uniform(shape, np.float64, "target")
    grad = arrays.normal(shape if reduction == NONE else (), np.float64, "grad")
    op = "BinaryCrossEntropyWithLogits"

    def loss(**changed: Array) -> float:
        (out,) = outputs(backend, op, {"self": x, "target": y, **given, **changed}, reduction=reduction).values()
        return float((grad * out).sum())

    inputs = {"grad_output": grad, "self": x, "target": y, **given}
    (by_self,) = outputs(backend, f"{op}Backward", inputs, reduction=reduction).values()
    assert_derivative(by_self, lambda a: loss(self=a), x)
    (by_target,) = outputs(backend, f"{op}TargetBackward", inputs, reduction=reduction).values()
    assert_derivative(by_target, lambda a: loss(target=a), y)


@in_sessions
@pytest.mark.parametrize("lambd", [0.0, 0.5, 1.25])
def test_hardshrink(backend: Backend, lambd: float) -> None:
    x = arrays.uniform((4, 5), np.float64, low=-2.0, high=2.0)
    x = np.where(np.abs(np.abs(x) - lambd) < 1e-3, 1.7, x)  # not at the jump
    grad = arrays.normal((4, 5), np.float64, "grad")

    def loss(a: Array) -> float:
        (out,) = outputs(backend, "Hardshrink", {"self": a}, lambd=lambd).values()
        return float((grad * out).sum())

    (by_self,) = outputs(backend, "HardshrinkBackward", {"grad_output": grad, "self": x}, lambd=lambd).values()
    assert_derivative(by_self, loss, x)


# --- CTC -----------------------------------------------------------------------------------------------------------


def ctc_chain(
    backend: Backend, inputs: Inputs, grad_out: Array, stash_type: int = 0, **attributes: int
) -> tuple[Array, Array]:
    """The loss, and its gradient by log_probs from the results of the forward op."""
    forward = {name: value for name, value in attributes.items() if name != "through_log_softmax"}
    found = outputs(backend, "CtcLoss", inputs, stash_type=stash_type, **forward)
    loss = found.pop("loss")
    (gradient,) = outputs(backend, "CtcLossBackward", {"grad_out": grad_out, **inputs, **found}, **attributes).values()
    return loss, gradient


@in_sessions
@pytest.mark.parametrize("flat", [False, True], ids=["padded", "concatenated"])
@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("samples", [[[1, 3], [3]], [[1, 1], []], [[3, 1, 3], [1, 3, 3]]], ids=str)
def test_ctc(backend: Backend, samples: list[list[int]], blank: int, flat: bool) -> None:
    """By log_probs on rows that are not normalized, and by the scores under log_softmax; empty targets too."""
    rows = arrays.normal((6, 2, 4), np.float64, "rows")
    inputs = ctc.forward_inputs(samples, [6, 5], flat=flat, log_probs=rows)
    grad = np.array([1.5, -0.5])

    def loss(log_probs: Array) -> float:
        given = {**inputs, "log_probs": log_probs}
        return float(grad @ outputs(backend, "CtcLoss", given, blank=blank)["loss"])

    _, gradient = ctc_chain(backend, inputs, grad, blank=blank, through_log_softmax=0)
    assert_derivative(gradient, loss, rows)
    normalized = {**inputs, "log_probs": ctc.log_softmax(rows)}
    _, gradient = ctc_chain(backend, normalized, grad, blank=blank)
    assert_derivative(gradient, lambda scores: loss(ctc.log_softmax(scores)), rows)


@in_sessions
@pytest.mark.parametrize("zero_infinity", [0, 1])
@pytest.mark.parametrize("dtype", backends.FLOATS, ids=str)
def test_ctc_of_impossible_alignments(backend: Backend, dtype: np.dtype, zero_infinity: int) -> None:
    """A target that is too long, one whose label is masked, and one without time; their neighbours are not touched."""
    inputs = ctc.forward_inputs([[1], [1, 1, 1], [2], [3], [2, 3]], [6, 4, 6, 0, 6], dtype=dtype)
    inputs["log_probs"][:, 2, 2] = -INF
    loss, gradient = ctc_chain(backend, inputs, np.ones(5, dtype), 11, zero_infinity=zero_infinity)
    assert loss.dtype == gradient.dtype == dtype
    loss, gradient = loss.astype(np.float64), gradient.astype(np.float64)
    lost = 0.0 if zero_infinity else INF
    np.testing.assert_array_equal(loss[[1, 2, 3]], lost)
    assert np.isfinite(loss[[0, 4]]).all()
    np.testing.assert_array_equal(gradient[:4, 1], 0.0 if zero_infinity else math.nan)
    np.testing.assert_array_equal(gradient[:, 2], 0.0 if zero_infinity else math.nan)
    np.testing.assert_array_equal(gradient[4:, 1], 0.0)
    np.testing.assert_array_equal(gradient[:, 3], 0.0)
    alone = {"log_probs": inputs["log_probs"][:, [0, 4]], "targets": inputs["targets"][[0, 4]]}
    alone |= {name: inputs[name][[0, 4]] for name in ("input_lengths", "target_lengths")}
    _, expected = ctc_chain(backend, alone, np.ones(2, dtype), 11, zero_infinity=zero_infinity)
    np.testing.assert_array_equal(gradient[:, [0, 4]], expected.astype(np.float64))


@in_sessions
def test_ctc_of_masked_classes(backend: Backend) -> None:
    """A class of probability 0 has gradient 0, and the others their derivatives."""
    rows = arrays.normal((6, 1, 5), np.float64, "rows")
    masked = np.zeros(rows.shape, bool)
    masked[:, 0, 4] = True  # in no target
    masked[0, 0, 2] = True  # the last label, where it cannot be yet
    masked[3, 0, 0] = True  # the blank
    inputs = ctc.forward_inputs([[1, 2]], [6], 5)

    def normalized(scores: Array) -> Array:
        return ctc.log_softmax(np.where(masked, -INF, scores))

    def loss(scores: Array) -> float:
        return float(outputs(backend, "CtcLoss", {**inputs, "log_probs": normalized(scores)})["loss"][0])

    found, gradient = ctc_chain(backend, {**inputs, "log_probs": normalized(rows)}, np.ones(1))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(gradient[masked], 0.0)
    assert_derivative(gradient, loss, rows)


@pytest.mark.parametrize(
    ("classes", "labels", "spread"), [(30, 200, 1.0), pytest.param(5, 1000, 3.0, marks=pytest.mark.full)], ids=str
)
def test_ctc_of_very_long_sequences(classes: int, labels: int, spread: float) -> None:
    """float32 at 10,000 steps, with forward variables in double: within 1e-5 of float64's gradient."""
    steps = 10_000
    log_probs = ctc.log_softmax(arrays.normal((steps, 1, classes), np.float64, "long", scale=spread))
    strides = arrays.rng("labels").integers(1, classes - 1, labels)
    target = (1 + np.cumsum(strides) % (classes - 1)).tolist()  # no repeats
    inputs = ctc.forward_inputs([target], [steps], log_probs=log_probs, dtype=np.float32)
    loss, gradient = ctc_chain(KERNEL, inputs, np.ones(1, np.float32), 11)
    expected_loss, alpha = ctc.forward(*inputs.values())
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    expected = ctc_loss_backward.oracle(np.ones(1), *inputs.values(), expected_loss, alpha)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5)


@in_sessions
@pytest.mark.parametrize("spread", [1.0, 5.0])
def test_ctc_in_float32_is_near_float64(backend: Backend, spread: float) -> None:
    """All results of the forward op within 1e-6 relative at 1000 steps, also where they are stashed in float32."""
    log_probs = ctc.log_softmax(arrays.normal((1000, 2, 20), np.float64, "float32", scale=spread))
    samples = [[1 + (7 * k + n) % 19 for k in range(100)] for n in range(2)]
    inputs = ctc.forward_inputs(samples, [1000, 900], log_probs=log_probs, dtype=np.float32)
    found = outputs(backend, "CtcLoss", inputs)
    loss, alpha = ctc.forward(*inputs.values())
    expected = {"neg_log_likelihood": loss, "log_alpha": alpha, "loss": loss}
    for name, array in found.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected[name], rtol=1e-6, err_msg=name)


# --- batch norm ----------------------------------------------------------------------------------------------------


@in_sessions
@pytest.mark.parametrize("affine", [False, True], ids=["plain", "weight_and_bias"])
@pytest.mark.parametrize("shape", [(6, 2), (3, 2, 4), (2, 2, 2, 3)], ids=str)
def test_batch_norm_over_two_workers(backend: Backend, shape: arrays.Shape, affine: bool) -> None:
    """Each worker holds some of the samples, which are of different numbers; each finishes its own."""
    channels = (shape[1],)
    x, grad = (arrays.normal((shape[0] + 1, *shape[1:]), np.float64, key) for key in ("input", "grad"))
    rows = [slice(0, 2), slice(2, None)]
    weight = arrays.uniform(channels, np.float64, "weight", low=0.5, high=2.0) if affine else None
    bias = arrays.normal(channels, np.float64, "bias") if affine else None
    counts = np.array([x[row].size // shape[1] for row in rows], np.int32)

    def forward(samples: Array, weight: Array | None, bias: Array | None) -> tuple[Array, Array, Array]:
        own = [outputs(backend, "BatchNormStats", {"input": samples[row]}) for row in rows]
        gathered = {name: np.stack([worker[name] for worker in own]) for name in ("mean", "invstd")}
        call = Call(
            "BatchNormGatherStatsWithCounts",
            {"input": samples[rows[0]], **gathered, "counts": counts},
            outputs=("mean_all", "invstd_all"),
        )
        mean, invstd = backend.run(call).values()
        given = {"weight": weight, "bias": bias, "mean": mean, "invstd": invstd}
        out = [outputs(backend, "BatchNormElemt", {"input": samples[row], **given})["out"] for row in rows]
        return np.concatenate(out), mean, invstd

    def loss(**changed: Array) -> float:
        given = {"samples": x, "weight": weight, "bias": bias, **changed}
        return float((grad * forward(**given)[0]).sum())

    _, mean, invstd = forward(x, weight, bias)
    statistics = {"mean": mean, "invstd": invstd, "weight": weight}
    pairs = [{"grad_out": grad[row], "input": x[row]} for row in rows]
    sums = [outputs(backend, "BatchNormReduceBackward", {**pair, **statistics}) for pair in pairs]
    total = {name: sums[0][name] + sums[1][name] for name in sums[0]}
    reduced = {"sum_dy": total["sum_dy"], "sum_dy_xmu": total["sum_dy_xmu"], "counter": counts}
    finished = [outputs(backend, "BatchNormElemtBackward", {**pair, **statistics, **reduced}) for pair in pairs]
    by_input = np.concatenate([worker["grad_input"] for worker in finished])
    assert_derivative(by_input, lambda a: loss(samples=a), x)
    if affine:
        assert weight is not None
        assert bias is not None
        assert_derivative(total["grad_weight"], lambda a: loss(weight=a), weight)
        assert_derivative(total["grad_bias"], lambda a: loss(bias=a), bias)
