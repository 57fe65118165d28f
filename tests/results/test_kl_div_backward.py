"""KlDivBackward: what it computes, on every backend."""

from __future__ import annotations

import math
from typing import Any

import backends
import cases
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from backends import FLOATS, KERNEL, PORTABLE, Array, Backend, check
from hypothesis import given
from hypothesis import strategies as st

import onnx_ops
from models.single_op import single_op_model
from tests.ops import kl_div_backward
from tests.ops._shared import arrays

OP = "KlDivBackward"
INF, NAN = math.inf, math.nan
NONE, MEAN, SUM, BATCHMEAN = range(4)
TARGET = [[1.0, 2.0], [0.0, -4.0], [0.5, 8.0]]


def make(
    grad: arrays.Shape, own: arrays.Shape, target: arrays.Shape, dtypes: Any = np.float32, log_target: int = 0
) -> list[Array]:
    kinds = dtypes if isinstance(dtypes, tuple) else (dtypes,) * 3
    low = -4.0 if log_target else -0.2
    return [
        arrays.normal(grad, kinds[0], "grad"),
        arrays.normal(own, kinds[1], "self"),
        arrays.uniform(target, kinds[2], "target", low=low, high=1.0),
    ]


def exact(*values: object) -> list[Array]:
    return [np.asarray(v, np.float32) for v in values]


# --- hand-made -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [KERNEL, backends.EVALUATOR, backends.REFERENCE], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_over_its_whole_range(backend: Backend, dtype: type) -> None:
    """Also where exp is subnormal, underflows or overflows."""
    edge = 110.0 if dtype == np.float32 else 760.0
    q = np.linspace(-edge, edge, 4001).astype(dtype)
    check(backend, OP, [np.ones((), dtype), q, q], {"reduction": NONE, "log_target": 1})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_subnormal_numbers(dtype: type) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    q = tiny * np.arange(-20, 21).astype(dtype)
    actual = KERNEL(OP, [np.ones((), dtype), q, q], {"reduction": NONE})
    np.testing.assert_array_equal(actual, -q, strict=True)


@backends.on_careful_backends
@pytest.mark.parametrize("log_target", [0, 1])
@pytest.mark.parametrize("reduction", [NONE, MEAN, BATCHMEAN], ids=["none", "mean", "batchmean"])
@pytest.mark.parametrize("grad", [(), (30, 50)], ids=cases.shape_id)
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_products_that_overflow_on_the_way(
    backend: Backend, dtype: np.dtype, grad: arrays.Shape, reduction: int, log_target: int
) -> None:
    """The mean of a product that does not fit, and exponentials that do not, of a gradient that is small or 0."""
    g, q = arrays.extreme(grad, dtype, "grad"), arrays.extreme((30, 50), dtype, "target")
    if log_target:
        edge = 175.0 if dtype == np.float64 else 200.0
        q = arrays.uniform((30, 50), dtype, low=-edge, high=edge)
        # times 1/n a smaller one loses digits
        least = 2.0**60 * float(np.finfo(np.float64 if dtype == np.float64 else np.float32).tiny)
        g = np.where(np.abs(g.astype(np.float64)) < least, np.zeros((), dtype), g)
    check(backend, OP, [g, np.zeros((30, 50), dtype), q], {"reduction": reduction, "log_target": log_target})


# --- dtypes, shapes ------------------------------------------------------------------------------------------------


NAMED = ("N", "C")


@pytest.mark.parametrize("inlined", [False, True], ids=["linked", "inlined"])
@pytest.mark.parametrize("optimise", [False, True], ids=["as_written", "optimised"])
@pytest.mark.parametrize(
    ("own_dims", "target_dims"),
    [(NAMED, NAMED), (NAMED, ("M", "K")), (NAMED, (None, None)), (("N", 3), ("N", 3)), (None, NAMED), (None, None)],
    ids=["same_names", "other_names", "no_names", "same_first_name", "one_rank", "no_ranks"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_names_of_dimensions_prove_nothing(
    own_dims: Any, target_dims: Any, dtype: npt.DTypeLike, optimise: bool, inlined: bool
) -> None:
    """What a graph calls its dimensions leaves open which of them self lacks."""
    model = single_op_model(OP, [(dtype, ()), (dtype, own_dims), (dtype, target_dims)], {"reduction": BATCHMEAN})
    written = onnx_ops.inline(model) if inlined else onnx_ops.link(model)
    session = ort.InferenceSession(written.SerializeToString(), backends.options(optimise=optimise))
    for own, target in (((1, 3), (5, 3)), ((5, 3), (5, 3)), ((5, 3), (1, 3)), ((1, 3), (0, 3)), ((0, 3), (0, 3))):
        inputs = make((), own, target, dtype)
        actual = backends.run_session(session, backends.named(OP, inputs))
        expected = kl_div_backward.oracle(*inputs, reduction=BATCHMEAN)
        assert (actual.dtype, actual.shape) == (np.dtype(dtype), own)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("backend", [KERNEL, PORTABLE], ids=str)
@given(
    shapes=cases.broadcast_pairs(),
    data=st.data(),
    dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 3),
    reduction=st.integers(0, 3),
    log_target=st.integers(0, 1),
)
def test_any_shapes(
    backend: Backend,
    shapes: tuple[arrays.Shape, arrays.Shape],
    data: st.DataObject,
    dtypes: tuple[np.dtype, ...],
    reduction: int,
    log_target: int,
) -> None:
    grad = data.draw(cases.shapes_into(np.broadcast_shapes(*shapes)))
    inputs = make(grad, *shapes, dtypes, log_target)
    check(backend, OP, inputs, {"reduction": reduction, "log_target": log_target})


@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
@pytest.mark.parametrize(
    ("own", "target"),
    [
        ((500, 1), (500, 300)),  # innermost summed
        ((1, 300), (500, 300)),  # innermost kept
        ((3, 1), (3, 50_000)),  # few rows
        ((20_000, 1), (20_000, 7)),  # many rows
        ((1, 3), (50_000, 3)),
        ((7,), (20_000, 7)),
        ((), (150_001,)),
        ((1, 1), (400, 400)),
        ((30, 1, 40), (30, 50, 40)),  # the middle
        ((1, 50, 1), (30, 50, 40)),  # both ends
        ((50, 1), (30, 50, 40)),
    ],
    ids=cases.shape_id,
)
def test_large_sums(dtype: np.dtype, own: arrays.Shape, target: arrays.Shape) -> None:
    """1e5 terms and more, in every layout; float64 inside, so that nothing is lost."""
    for log_target in (0, 1):
        check(KERNEL, OP, make((), own, target, dtype, log_target), {"reduction": SUM, "log_target": log_target})


def test_large_sum_does_not_overflow_on_the_way() -> None:
    """Partial sums beyond float16 and float32, the total within."""
    half = np.where(np.arange(4000) < 2000, 60000.0, -60000.0).astype(np.float16)
    backends.assert_result(KERNEL(OP, [np.float16([1]), np.float16([0]), half], {"reduction": SUM}), [0.0], np.float16)
    single = np.where(np.arange(4000) < 2000, 3e38, -3e38).astype(np.float32)
    backends.assert_result(KERNEL(OP, exact([1], [0], single), {"reduction": SUM}), [0.0], np.float32)


def test_one_more_term_counts() -> None:
    """1 + 2**-24, 100000 times over, which float32 alone would lose."""
    target = np.full(100_001, 2.0**-24, np.float32)
    target[0] = -1.0
    actual = KERNEL(OP, exact(1.0, 0.0, target), {"reduction": SUM})
    backends.assert_result(actual, np.float32(1 - 100_000 * 2.0**-24), np.float32)


# --- against others ------------------------------------------------------------------------------------------------
