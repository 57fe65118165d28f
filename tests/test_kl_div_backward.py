"""KlDivBackward: what it computes, on every engine."""

from __future__ import annotations

import itertools
import math
from typing import Any

import cases
import engines
import golden
import numpy as np
import onnxruntime as ort
import oracles
import pytest
from engines import FLOATS, KERNEL, PORTABLE, Array, Engine, check
from hypothesis import given
from hypothesis import strategies as st

import onnx_ops
from models.single_op import single_op_model

OP = "KlDivBackward"
INF, NAN = math.inf, math.nan
NONE, MEAN, SUM, BATCHMEAN = range(4)
TARGET = [[1.0, 2.0], [0.0, -4.0], [0.5, 8.0]]


def make(
    grad: cases.Shape, own: cases.Shape, target: cases.Shape, dtypes: Any = np.float32, log_target: int = 0
) -> list[Array]:
    kinds = dtypes if isinstance(dtypes, tuple) else (dtypes,) * 3
    low = -4.0 if log_target else -0.2
    return [
        cases.normal(grad, kinds[0], "grad"),
        cases.normal(own, kinds[1], "self"),
        cases.uniform(target, kinds[2], "target", low=low, high=1.0),
    ]


def exact(*values: object) -> list[Array]:
    return [np.asarray(v, np.float32) for v in values]


# --- hand-made -----------------------------------------------------------------------------------------------------


@engines.on_typed_engines
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        (NONE, [[-2.0, -4.0], [-0.0, 8.0], [-1.0, -16.0], [-2.0, -2.0]]),
        (MEAN, [[-0.25, -0.5], [-0.0, 1.0], [-0.125, -2.0], [-0.25, -0.25]]),
        (SUM, [[-2.0, -4.0], [-0.0, 8.0], [-1.0, -16.0], [-2.0, -2.0]]),
        (BATCHMEAN, [[-0.5, -1.0], [-0.0, 2.0], [-0.25, -4.0], [-0.5, -0.5]]),
    ],
    ids=["none", "mean", "sum", "batchmean"],
)
def test_by_hand(engine: Engine, dtype: np.dtype, reduction: int, expected: list[list[float]]) -> None:
    target = np.array([*TARGET, [1.0, 1.0]], dtype)
    actual = engine(OP, [np.array(2.0, dtype), np.full((4, 2), NAN, dtype), target], {"reduction": reduction})
    # NumPy's sum of -0 alone is +0.
    engines.assert_result(actual, expected, dtype, signs=engine is not engines.PORTABLE_EVALUATOR)


@engines.on_typed_engines
@pytest.mark.parametrize(
    ("grad", "own", "reduction", "expected"),
    [
        (1.0, np.zeros((1, 2)), SUM, [[-1.5, -6.0]]),
        (1.0, np.zeros((3, 1)), SUM, [[-3.0], [4.0], [-8.5]]),
        (1.0, np.zeros(2), SUM, [-1.5, -6.0]),
        (6.0, np.zeros(2), MEAN, [-1.5, -6.0]),
        (3.0, 0.0, BATCHMEAN, -7.5),
        (1.0, np.zeros((1, 1, 1)), NONE, [[[-7.5]]]),
        ([[1.0], [2.0], [-1.0]], np.zeros((3, 1)), NONE, [[-3.0], [8.0], [8.5]]),
        ([[1.0], [2.0], [-1.0]], np.zeros(()), NONE, 13.5),
    ],
    ids=["rows", "columns", "leading", "mean", "scalar-batchmean", "rank_3", "grad_column", "scalar-grad_column"],
)
def test_sums_over_what_self_was_broadcast_along(
    engine: Engine, grad: object, own: object, reduction: int, expected: object
) -> None:
    actual = engine(OP, exact(grad, own, TARGET), {"reduction": reduction})
    engines.assert_result(actual, expected, np.float32)


@engines.on_typed_engines
@pytest.mark.parametrize("reduction", range(4))
def test_scalars(engine: Engine, reduction: int) -> None:
    """A scalar counts as a batch of 1."""
    engines.assert_result(engine(OP, exact(3.0, 0.0, 2.0), {"reduction": reduction}), -6.0, np.float32)


@engines.on_typed_engines
def test_default_reduction_is_mean(engine: Engine) -> None:
    engines.assert_result(engine(OP, exact(4.0, [0.0, 0.0], [1.0, 3.0])), [-2.0, -6.0], np.float32)


@engines.on_typed_engines
@pytest.mark.parametrize("reduction", range(4))
@pytest.mark.parametrize(
    ("own", "target"),
    [((0, 2), (0, 2)), ((1, 2), (0, 2)), ((2,), (0, 2)), ((), (0,)), ((0,), (1,)), ((0, 1), (3,)), ((3, 1), (3, 0))],
    ids=cases.shape_id,
)
def test_empty(engine: Engine, own: cases.Shape, target: cases.Shape, reduction: int) -> None:
    """A sum of no terms is 0, whatever it would be divided by."""
    inputs = [np.full((), NAN, np.float32), *make((), own, target)[1:]]
    actual = engine(OP, inputs, {"reduction": reduction})
    assert actual.shape == own
    np.testing.assert_array_equal(actual, np.zeros(own, np.float32))


@engines.on_every_engine
@pytest.mark.parametrize("log_target", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_special_values(engine: Engine, dtype: np.dtype, log_target: int) -> None:
    """Every pair of special values goes through the formula; self is not looked at."""
    special = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 6e-8, 3e4]
    g, q = (np.array(v, dtype) for v in zip(*itertools.product(special, repeat=2), strict=True))
    check(engine, OP, [g, np.full(g.shape, NAN, dtype), q], {"reduction": NONE, "log_target": log_target})


@engines.on_every_engine
@pytest.mark.parametrize("value", [NAN, INF])
def test_special_value_in_one_sum(engine: Engine, value: float) -> None:
    """Only the sums that the value enters see it."""
    g, x, q = make((), (40, 1), (40, 70))
    q[7, 69] = value
    actual = check(engine, OP, [g, x, q], {"reduction": SUM})
    assert np.flatnonzero(~np.isfinite(actual)).tolist() == [7]


@pytest.mark.parametrize("engine", [KERNEL, engines.EVALUATOR, engines.REFERENCE], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_over_its_whole_range(engine: Engine, dtype: type) -> None:
    """Also where exp is subnormal, underflows or overflows."""
    edge = 110.0 if dtype == np.float32 else 760.0
    q = np.linspace(-edge, edge, 4001).astype(dtype)
    check(engine, OP, [np.ones((), dtype), q, q], {"reduction": NONE, "log_target": 1})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_subnormal_numbers(dtype: type) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    q = tiny * np.arange(-20, 21).astype(dtype)
    actual = KERNEL(OP, [np.ones((), dtype), q, q], {"reduction": NONE})
    np.testing.assert_array_equal(actual, -q, strict=True)


@engines.on_careful_engines
@pytest.mark.parametrize("log_target", [0, 1])
@pytest.mark.parametrize("reduction", [NONE, MEAN, BATCHMEAN], ids=["none", "mean", "batchmean"])
@pytest.mark.parametrize("grad", [(), (30, 50)], ids=cases.shape_id)
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_products_that_overflow_on_the_way(
    engine: Engine, dtype: np.dtype, grad: cases.Shape, reduction: int, log_target: int
) -> None:
    """The mean of a product that does not fit, and exponentials that do not, of a gradient that is small or 0."""
    g, q = cases.extreme(grad, dtype, "grad"), cases.extreme((30, 50), dtype, "target")
    if log_target:
        edge = 175.0 if dtype == np.float64 else 200.0
        q = cases.uniform((30, 50), dtype, low=-edge, high=edge)
        # times 1/n a smaller one loses digits
        least = 2.0**60 * float(np.finfo(np.float64 if dtype == np.float64 else np.float32).tiny)
        g = np.where(np.abs(g.astype(np.float64)) < least, np.zeros((), dtype), g)
    check(engine, OP, [g, np.zeros((30, 50), dtype), q], {"reduction": reduction, "log_target": log_target})


# --- dtypes, shapes ------------------------------------------------------------------------------------------------


@engines.on_every_engine
@pytest.mark.parametrize(
    "dtypes", list(itertools.product(FLOATS, repeat=3)), ids=lambda kinds: "-".join(d.name for d in kinds)
)
def test_dtypes(engine: Engine, dtypes: tuple[np.dtype, ...]) -> None:
    """Reductions and log_target alternate along the mixtures."""
    place = sum(FLOATS.index(d) * 3**i for i, d in enumerate(dtypes))
    log_target = place % 2
    inputs = make((3, 1), (3, 20), (20,), dtypes, log_target)
    check(engine, OP, inputs, {"reduction": place % 4, "log_target": log_target})


@engines.on_every_engine
@pytest.mark.parametrize("reduction", range(4))
@pytest.mark.parametrize("log_target", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
@pytest.mark.parametrize("own", [(4, 30), (4, 1), (30,), ()], ids=cases.shape_id)
def test_attributes(engine: Engine, dtype: np.dtype, log_target: int, reduction: int, own: cases.Shape) -> None:
    inputs = make((4, 1), own, (4, 30), dtype, log_target)
    check(engine, OP, inputs, {"reduction": reduction, "log_target": log_target})


@engines.on_every_engine
@pytest.mark.parametrize(("own", "target"), cases.BROADCASTS, ids=cases.shape_id)
@pytest.mark.parametrize("static", [False, True], ids=["symbolic", "static"])
def test_broadcasting(engine: Engine, own: cases.Shape, target: cases.Shape, static: bool) -> None:
    check(engine, OP, make((), own, target), {"reduction": SUM}, static=static)


@engines.on_every_engine
@pytest.mark.parametrize(("grad", "space"), cases.INTO, ids=cases.shape_id)
def test_grad_output_broadcasts(engine: Engine, grad: cases.Shape, space: cases.Shape) -> None:
    check(engine, OP, make(grad, space, space), {"reduction": MEAN})


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
    own_dims: Any, target_dims: Any, dtype: Any, optimise: bool, inlined: bool
) -> None:
    """What a graph calls its dimensions leaves open which of them self lacks."""
    model = single_op_model(OP, [(dtype, ()), (dtype, own_dims), (dtype, target_dims)], {"reduction": BATCHMEAN})
    written = onnx_ops.inline(model) if inlined else onnx_ops.link(model)
    session = ort.InferenceSession(written.SerializeToString(), engines.options(optimise=optimise))
    for own, target in (((1, 3), (5, 3)), ((5, 3), (5, 3)), ((5, 3), (1, 3)), ((1, 3), (0, 3)), ((0, 3), (0, 3))):
        inputs = make((), own, target, dtype)
        actual = engines.run_session(session, engines.named(OP, inputs))
        expected = oracles.kl_div_backward(*inputs, reduction=BATCHMEAN)
        assert (actual.dtype, actual.shape) == (np.dtype(dtype), own)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("engine", [KERNEL, PORTABLE], ids=str)
@given(
    shapes=cases.broadcast_pairs(),
    data=st.data(),
    dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 3),
    reduction=st.integers(0, 3),
    log_target=st.integers(0, 1),
)
def test_any_shapes(
    engine: Engine,
    shapes: tuple[cases.Shape, cases.Shape],
    data: st.DataObject,
    dtypes: tuple[np.dtype, ...],
    reduction: int,
    log_target: int,
) -> None:
    grad = data.draw(cases.shapes_into(np.broadcast_shapes(*shapes)))
    inputs = make(grad, *shapes, dtypes, log_target)
    check(engine, OP, inputs, {"reduction": reduction, "log_target": log_target})


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
def test_large_sums(dtype: np.dtype, own: cases.Shape, target: cases.Shape) -> None:
    """1e5 terms and more, in every layout; float64 inside, so that nothing is lost."""
    for log_target in (0, 1):
        check(KERNEL, OP, make((), own, target, dtype, log_target), {"reduction": SUM, "log_target": log_target})


def test_large_sum_does_not_overflow_on_the_way() -> None:
    """Partial sums beyond float16 and float32, the total within."""
    half = np.where(np.arange(4000) < 2000, 60000.0, -60000.0).astype(np.float16)
    engines.assert_result(KERNEL(OP, [np.float16([1]), np.float16([0]), half], {"reduction": SUM}), [0.0], np.float16)
    single = np.where(np.arange(4000) < 2000, 3e38, -3e38).astype(np.float32)
    engines.assert_result(KERNEL(OP, exact([1], [0], single), {"reduction": SUM}), [0.0], np.float32)


def test_one_more_term_counts() -> None:
    """1 + 2**-24, 100000 times over, which float32 alone would lose."""
    target = np.full(100_001, 2.0**-24, np.float32)
    target[0] = -1.0
    actual = KERNEL(OP, exact(1.0, 0.0, target), {"reduction": SUM})
    engines.assert_result(actual, np.float32(1 - 100_000 * 2.0**-24), np.float32)


# --- against others ------------------------------------------------------------------------------------------------


@engines.on_every_engine
@pytest.mark.parametrize("case", cases.golden_cases("kl_div_backward"), ids=str)
def test_golden(engine: Engine, case: golden.Golden) -> None:
    inputs = list(case.inputs.values())
    actual = check(engine, OP, inputs, case.attributes)
    np.testing.assert_allclose(
        actual.astype(np.float64), case.expected.astype(np.float64), rtol=2 * case.rtol, atol=2 * case.atol
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum", "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize(("own", "target"), [((6, 5), (6, 5)), ((6, 1), (6, 5)), ((5,), (6, 5))], ids=cases.shape_id)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # torch advises against what we compare with
def test_against_torch(own: cases.Shape, target: cases.Shape, log_target: bool, reduction: str) -> None:
    torch = pytest.importorskip("torch")
    g, x, q = make((6, 5) if reduction == "none" else (), own, target, np.float64, int(log_target))
    q = q if log_target else np.abs(q)
    leaf = torch.from_numpy(x).requires_grad_()
    wide = torch.broadcast_to(leaf, (6, 5))
    loss = torch.nn.functional.kl_div(wide, torch.from_numpy(q), reduction=reduction, log_target=log_target)
    loss.backward(torch.from_numpy(g))
    settings = {"reduction": ["none", "mean", "sum", "batchmean"].index(reduction), "log_target": int(log_target)}
    np.testing.assert_allclose(KERNEL(OP, [g, x, q], settings), leaf.grad.numpy(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("reduction", range(4))
@pytest.mark.parametrize("log_target", [0, 1])
@pytest.mark.parametrize(("own", "target"), [((3, 4), (3, 4)), ((4,), (3, 4)), ((3, 4), (4,)), ((), (3,))])
def test_is_the_derivative(own: cases.Shape, target: cases.Shape, log_target: int, reduction: int) -> None:
    space = np.broadcast_shapes(own, target)
    g, x, q = make(space if reduction == NONE else (), own, target, np.float64, log_target)
    q = q if log_target else np.abs(q)
    settings = {"reduction": reduction, "log_target": log_target}
    expected = oracles.finite_difference(lambda a: (g * oracles.kl_div(a, q, **settings)).sum(), x)
    np.testing.assert_allclose(KERNEL(OP, [g, x, q], settings), expected, rtol=1e-7, atol=1e-8)
