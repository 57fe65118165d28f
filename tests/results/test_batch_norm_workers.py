"""The steps of synchronized batch norm over several workers equal batch norm of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import backends
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from backends import FLOATS
from onnx import helper
from onnx.reference import ReferenceEvaluator

import onnx_ops
from models.synchronized_batch_norm import backward_model, forward_model

Array = np.ndarray[Any, Any]
Outputs = dict[str, Array]

UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
EPS, MOMENTUM = float(np.float32(1e-3)), float(np.float32(0.3))
CHANNELS = 3

BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((6,), (3, 4)),
    ((4, 0, 7), (5,)),
    ((1, 9, 2), ()),
    ((0, 3, 0, 1, 6, 2, 5, 4), (7,)),
    ((5, 0, 0, 0, 0, 0, 0, 1), ()),
]
"""How many samples each worker has, and the axes after the channels."""


# --- the whole batch, in float64 ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """The inputs of all workers, and what batch norm of the whole batch gives for them."""

    inputs: list[Array]
    grads: list[Array]
    parameters: Outputs
    forward: Outputs
    backward: Outputs


def batch(counts: tuple[int, ...], later: tuple[int, ...], dtype: np.dtype, affine: bool = True) -> Batch:
    rng = np.random.default_rng(len(counts) + 10 * len(later))

    def numbers(*shape: int, scale: float = 1.0, offset: float = 0.0, kind: np.dtype = dtype) -> Array:
        return (rng.normal(size=shape) * scale + offset).astype(kind)

    statistics = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    inputs = [numbers(n, CHANNELS, *later, scale=2.0, offset=1.5) for n in counts]
    grads = [numbers(n, CHANNELS, *later) for n in counts]
    parameters = {
        name: numbers(CHANNELS, kind=statistics) for name in ("weight", "bias", "running_mean", "running_var")
    }
    weight, bias, running_mean, running_var = (a.astype(np.float64) for a in parameters.values())
    if not affine:
        weight, bias = np.ones(CHANNELS), np.zeros(CHANNELS)
    forward, backward = {}, {}
    x, g = (np.concatenate([a.astype(np.float64) for a in arrays]) for arrays in (inputs, grads))
    forward["mean"], variance = (f(x, axis=_axes(x)) for f in (np.mean, np.var))
    n = x.size // CHANNELS
    forward["invstd"] = 1 / np.sqrt(variance + EPS)
    forward["running_mean_out"] = (1 - MOMENTUM) * running_mean + MOMENTUM * forward["mean"]
    forward["running_var_out"] = (1 - MOMENTUM) * running_var + MOMENTUM * variance * n / (n - 1)
    normal = (x - _column(forward["mean"], x)) * _column(forward["invstd"], x)
    backward["grad_weight"], backward["grad_bias"] = (g * normal).sum(axis=_axes(x)), g.sum(axis=_axes(x))
    projected = g - _column(backward["grad_bias"] / n, x) - normal * _column(backward["grad_weight"] / n, x)
    ends = np.cumsum(counts)[:-1]
    for w, own in enumerate(np.split(normal * _column(weight, x) + _column(bias, x), ends)):
        forward[f"out_{w}"] = own
    for w, own in enumerate(np.split(projected * _column(weight * forward["invstd"], x), ends)):
        backward[f"grad_input_{w}"] = own
    if not affine:
        del parameters["weight"], parameters["bias"], backward["grad_weight"], backward["grad_bias"]
    return Batch(inputs, grads, parameters, forward, backward)


def _axes(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _column(numbers: Array, x: Array) -> Array:
    return numbers.reshape(-1, *[1] * (x.ndim - 2))


@pytest.mark.parametrize(("counts", "later"), BATCHES)
def test_expected_values_are_those_of_torch(counts: tuple[int, ...], later: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    case = batch(counts, later, np.dtype(np.float64))
    x = torch.from_numpy(np.concatenate(case.inputs)).requires_grad_()
    weight, bias = (torch.from_numpy(case.parameters[name]).requires_grad_() for name in ("weight", "bias"))
    running = {name: torch.from_numpy(case.parameters[name].copy()) for name in ("running_mean", "running_var")}
    out = torch.nn.functional.batch_norm(
        x, **running, weight=weight, bias=bias, training=True, momentum=MOMENTUM, eps=EPS
    )
    out.backward(torch.from_numpy(np.concatenate(case.grads)))

    def joined(outputs: Outputs, name: str) -> Array:
        return np.concatenate([outputs[f"{name}_{w}"] for w in range(len(counts))])

    pairs = [
        (joined(case.forward, "out"), out.detach()),
        (joined(case.backward, "grad_input"), x.grad),
        (case.backward["grad_weight"], weight.grad),
        (case.backward["grad_bias"], bias.grad),
        *((case.forward[f"{name}_out"], value) for name, value in running.items()),
    ]
    for expected, torchs in pairs:
        np.testing.assert_allclose(expected, torchs.numpy(), rtol=1e-10, atol=1e-12)


# --- the ways to run a model ----------------------------------------------------------------------------------------


def with_kernels(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Outputs:
    session = backends.kernel_session(model)
    return backends.run_outputs(session, feeds)


def on_bodies(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Outputs:
    linked = onnx_ops.link(model).SerializeToString()
    session = ort.InferenceSession(linked, backends.options(), providers=["CPUExecutionProvider"])
    return backends.run_outputs(session, feeds)


def in_evaluator(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Outputs:
    evaluator = ReferenceEvaluator(model, new_ops=onnx_ops.reference_ops())
    return dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))


def inlined_in_evaluator(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Outputs:
    evaluator = ReferenceEvaluator(onnx_ops.inline(model))
    with np.errstate(all="ignore"):
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))


BACKENDS: dict[str, Callable[[onnx.ModelProto, Mapping[str, Array]], Outputs]] = {
    "kernels": with_kernels,
    "portable": on_bodies,
    "references": in_evaluator,
    "inlined_evaluator": inlined_in_evaluator,
}


# --- the steps ------------------------------------------------------------------------------------------------------


def assert_close(actual: Outputs, expected: Outputs, dtype: np.dtype) -> None:
    for name, value in expected.items():
        array = actual[name]
        statistics = np.float64 if dtype == np.float64 else np.float32
        assert array.dtype == (dtype if name.startswith(("out", "grad_input")) else statistics)
        assert array.shape == value.shape
        # Outputs that are small are differences of numbers of the size of the largest; statistics and sums, rounded to
        # their dtype before they are merged, add some units to that.
        unit = UNITS[array.dtype.name]
        largest = max([1.0, *np.abs(value).flat])
        np.testing.assert_allclose(array.astype(np.float64), value, rtol=0, atol=8 * unit * largest, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("counts", "later"), BATCHES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_workers_equal_the_whole_batch(
    dtype: np.dtype, counts: tuple[int, ...], later: tuple[int, ...], backend: str
) -> None:
    check(batch(counts, later, dtype), dtype, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_weight_and_bias(backend: str) -> None:
    dtype = np.dtype(np.float32)
    check(batch((4, 0, 7), (5,), dtype, affine=False), dtype, backend, affine=False)


def check(case: Batch, dtype: np.dtype, backend: str, affine: bool = True) -> None:
    run, workers = BACKENDS[backend], len(case.inputs)
    kind, rank = helper.np_dtype_to_tensor_dtype(dtype), case.inputs[0].ndim
    inputs = {f"input_{w}": x for w, x in enumerate(case.inputs)}
    grads = {f"grad_out_{w}": g for w, g in enumerate(case.grads)}
    forward = run(
        forward_model(workers, kind, rank, affine=affine, eps=EPS, momentum=MOMENTUM), {**inputs, **case.parameters}
    )
    np.testing.assert_array_equal(forward["counts"], [x.size // CHANNELS for x in case.inputs])
    assert_close(forward, case.forward, dtype)
    weight = {"weight": case.parameters["weight"]} if affine else {}
    kept = {name: forward[name] for name in ("mean", "invstd", "counts")}
    backward = run(backward_model(workers, kind, rank, affine=affine), {**grads, **inputs, **weight, **kept})
    assert_close(backward, case.backward, dtype)


def test_statistics_alone() -> None:
    """Nothing but the output is asked for: neither running statistics nor a weight."""
    case = batch((4, 0, 7), (5,), np.dtype(np.float32), affine=False)
    model = forward_model(3, rank=3, affine=False, running=False, eps=EPS)
    outputs = BACKENDS["kernels"](model, {f"input_{w}": x for w, x in enumerate(case.inputs)})
    assert not any(name.startswith("running") for name in outputs)
    assert_close(
        outputs, {name: value for name, value in case.forward.items() if name in outputs}, np.dtype(np.float32)
    )
