"""BinaryCrossEntropyWithLogitsBackward: what it computes, on every engine."""

from __future__ import annotations

import itertools
import math
from typing import Any

import cases
import engines
import golden
import numpy as np
import oracles
import pytest
from engines import FLOATS, KERNEL, PORTABLE, Array, Engine, check
from hypothesis import given
from hypothesis import strategies as st

OP = "BinaryCrossEntropyWithLogitsBackward"
INF, NAN = math.inf, math.nan
NONE, MEAN, SUM = range(3)
PRESENCE = [(False, False), (True, False), (False, True), (True, True)]
PRESENCE_IDS = ["neither", "weight", "pos_weight", "both"]


def make(
    shape: cases.Shape,
    grad: cases.Shape = (),
    weight: cases.Shape | None = None,
    pos_weight: cases.Shape | None = None,
    dtypes: Any = np.float32,
) -> list[Array | None]:
    kinds = dtypes if isinstance(dtypes, tuple) else (dtypes,) * 5
    return [
        cases.normal(grad, kinds[0], "grad"),
        cases.normal(shape, kinds[1], "self", scale=3.0),
        cases.uniform(shape, kinds[2], "target"),
        None if weight is None else cases.uniform(weight, kinds[3], "weight", low=0.5, high=2.0),
        None if pos_weight is None else cases.uniform(pos_weight, kinds[4], "pos_weight", low=0.5, high=3.0),
    ]


# --- hand-made -----------------------------------------------------------------------------------------------------


@engines.on_typed_engines
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM], ids=["none", "mean", "sum"])
def test_by_hand(engine: Engine, dtype: np.dtype, weighted: bool, pos_weighted: bool, reduction: int) -> None:
    """Where sigmoid(x) is 0.5, 0 or 1."""
    x = np.array([0.0, 0.0, 0.0, 0.0, INF, INF, -INF, -INF], dtype)
    y = np.array([0.0, 1.0, 0.5, 2.0, 0.0, 1.0, 0.0, 1.0], dtype)
    g, w, p = np.array(8.0, dtype), np.array(4.0, dtype), np.array(2.0, dtype)
    expected = np.array([4.0, -8.0, -2.0, -20.0, 8.0, 0.0, 0.0, -16.0])  # pos_weight 2
    if not pos_weighted:
        expected = np.array([4.0, -4.0, 0.0, -12.0, 8.0, 0.0, 0.0, -8.0])
    expected = expected * (4.0 if weighted else 1.0) / (8.0 if reduction == MEAN else 1.0)
    inputs = [g, x, y, w if weighted else None, p if pos_weighted else None]
    while inputs[-1] is None:
        inputs.pop()
    actual = engine(OP, inputs, {"reduction": reduction})
    engines.assert_result(actual, expected, dtype, signs=False)


@engines.on_typed_engines
def test_default_reduction_is_mean(engine: Engine) -> None:
    inputs = [np.float32([8.0]), np.zeros(2, np.float32), np.float32([0.0, 1.0])]
    engines.assert_result(engine(OP, inputs), [2.0, -2.0], np.float32)


@engines.on_typed_engines
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (1, 0, 1)], ids=cases.shape_id)
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
def test_empty(engine: Engine, shape: cases.Shape, reduction: int, weighted: bool, pos_weighted: bool) -> None:
    inputs = make(shape, (1,), shape if weighted else None, () if pos_weighted else None)
    assert check(engine, OP, inputs, {"reduction": reduction}).shape == shape


@engines.on_every_engine
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_tails_keep_their_digits(engine: Engine, dtype: type, label: float) -> None:
    """The small gradient of a logit that is right by far, in kernels down to where it is subnormal."""
    edge = 103.0 if dtype == np.float32 else 744.0
    if engine.portable:
        edge = 87.0 if dtype == np.float32 else 708.0
    x = np.concatenate([np.linspace(0, edge, 3001), [16.0, 17.0, 33.0, 34.0, 40.0]]).astype(dtype)
    x = x if label else -x
    y = np.full(x.shape, label, dtype)
    g = np.ones((), dtype)
    actual = engine(OP, [g, x, y], {"reduction": NONE})
    reals = np.longdouble if actual.dtype == np.float64 else np.float64
    expected = oracles.binary_cross_entropy_with_logits_backward_split(g, x, y, reduction=NONE, dtype=reals)
    assert np.all(actual[np.abs(x) < edge - 1] != 0)
    assert oracles.ulp_error(actual, expected).max() <= 4


def test_tail_by_hand() -> None:
    x, y = np.float32([40.0, -40.0, 100.0]), np.float32([1.0, 0.0, 1.0])
    actual = KERNEL(OP, [np.ones((), np.float32), x, y], {"reduction": SUM})
    np.testing.assert_allclose(actual, [-math.exp(-40), math.exp(-40), -math.exp(-100)], rtol=3e-7, atol=3e-45)


@engines.on_every_engine
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
def test_extreme_logits(engine: Engine, dtype: np.dtype, weighted: bool, pos_weighted: bool) -> None:
    """As large and as small as the dtype allows: no overflow on the way, NaN only from NaN."""
    large = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028235e38, "float64": 1.7976931348623157e308}
    tiny = {"float16": 6e-8, "bfloat16": 9.2e-41, "float32": 1.5e-45, "float64": 5e-324}
    edges = [0.0, tiny[dtype.name], 1e-7, 1.0, 11.0, 16.6, 17.4, 88.7, 88.8, 103.9, 709.7, 745.0]
    edges += [large[dtype.name], INF]
    pairs = itertools.product([*edges, *(-e for e in edges), NAN], [0, 0.25, 1])
    with np.errstate(over="ignore"):
        x, y = (np.array(v, dtype) for v in zip(*pairs, strict=True))
    w, p = np.array(0.5, dtype), np.array(3.0, dtype)
    inputs = [np.array(1.0, dtype), x, y, w if weighted else None, p if pos_weighted else None]
    check(engine, OP, inputs, {"reduction": NONE})


@engines.on_every_engine
@pytest.mark.parametrize("place", range(5), ids=["grad_output", "self", "target", "weight", "pos_weight"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_special_values(engine: Engine, place: int, value: float) -> None:
    """In one input at a time, against logits on both sides and labels in and outside [0, 1]."""
    pairs = itertools.product([-7.0, -1.0, 0.0, 2.0, 7.0], [0, 0.5, 1, 3])
    x, y = (np.array(v, np.float32) for v in zip(*pairs, strict=True))
    inputs = [np.full(x.shape, 1.5, np.float32), x, y, np.full(x.shape, 2.0, np.float32), np.full(x.shape, 0.75, "f4")]
    inputs[place] = np.full(x.shape, value, np.float32)
    check(engine, OP, inputs, {"reduction": NONE})


@engines.on_careful_engines
@pytest.mark.parametrize("place", [0, 3], ids=["grad_output", "weight"])
def test_infinity_times_a_small_gradient(engine: Engine, place: int) -> None:
    """The difference in the formula is not 0 where float arithmetic would make it 0, so there is no NaN."""
    x, y = np.float32([60.0, -60.0, 60.0, -60.0]), np.float32([1.0, 0.0, 0.0, 1.0])
    inputs = [np.ones(4, np.float32), x, y, np.ones(4, np.float32)]
    inputs[place] = np.full(4, INF, np.float32)
    actual = engine(OP, inputs, {"reduction": NONE})
    np.testing.assert_array_equal(actual, [-INF, INF, INF, -INF])


@engines.on_every_engine
def test_targets_outside_0_and_1_and_negative_weights(engine: Engine) -> None:
    x, y, w, p = cases.normal((4, 500), np.float32, scale=5.0) * np.float32([[1], [1], [1], [3]])
    check(engine, OP, [np.float32([1.5]), x, y, w, p], {"reduction": NONE})


# --- the ends of the range -----------------------------------------------------------------------------------------


def extreme_call(
    dtype: Any, form: str, weighted: bool, pos_weighted: bool, shape: cases.Shape = (30, 100)
) -> list[Array | None]:
    """Factors of all sizes, against logits near 0, far from it and of all sizes; the last in turn along the columns."""
    factor = () if form == "scalars" else shape
    logits = cases.normal(shape, dtype, scale=100.0)
    logits[:, ::3], logits[:, 1::3] = cases.extreme(shape, dtype, "logits")[:, ::3], cases.normal(shape, dtype)[:, 1::3]
    labels = cases.extreme(shape, dtype, "labels")
    labels[::2] = cases.uniform(shape, dtype)[::2]
    return [
        cases.extreme(factor, dtype, "grad", form),
        logits,
        labels,
        cases.extreme(factor, dtype, "weight") if weighted else None,
        cases.extreme(factor, dtype, "pos_weight") if pos_weighted else None,
    ]


@engines.on_careful_engines
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
@pytest.mark.parametrize("form", ["scalars", "arrays"])
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
@pytest.mark.parametrize("reduction", [NONE, MEAN], ids=["none", "mean"])
def test_products_that_overflow_or_vanish_on_the_way(
    engine: Engine, dtype: np.dtype, form: str, weighted: bool, pos_weighted: bool, reduction: int
) -> None:
    """What the formula gives in exact arithmetic: its sign, its digits, and infinity only where it does not fit."""
    inputs = extreme_call(dtype, form, weighted, pos_weighted)
    actual = engine(OP, inputs, {"reduction": reduction})
    reals = np.longdouble if actual.dtype == np.float64 else np.float64
    expected = oracles.binary_cross_entropy_with_logits_backward_split(*inputs, reduction=reduction, dtype=reals)
    assert np.isfinite(expected).all()
    largest = oracles.binary_cross_entropy_with_logits_backward_largest_term(*inputs, reduction=reduction)
    error = oracles.ulp_error(actual, expected, largest)
    place = int(error.argmax())
    assert error.max() <= engines.tolerance(engine, OP, actual.dtype), [
        None if a is None else a.flat[place % a.size] for a in inputs
    ]


@pytest.mark.parametrize("engine", [PORTABLE, engines.PORTABLE_AS_WRITTEN, engines.PORTABLE_EVALUATOR], ids=str)
@pytest.mark.parametrize("dtype", [d for d in FLOATS if d != engines.FLOAT64], ids=cases.shape_id)
@pytest.mark.parametrize("form", ["scalars", "arrays"])
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
def test_bodies_overflow_only_with_the_result(
    engine: Engine, dtype: np.dtype, form: str, weighted: bool, pos_weighted: bool
) -> None:
    """A portable body may lose what is small; it makes no infinity, no NaN and no other sign."""
    inputs = extreme_call(dtype, form, weighted, pos_weighted)
    assert inputs[2] is not None
    inputs[2] = inputs[2] / np.array(2, dtype)  # the largest number itself is a few roundings from overflow
    actual = engine(OP, inputs, {"reduction": MEAN})
    expected = oracles.binary_cross_entropy_with_logits_backward_split(*inputs, reduction=MEAN)
    with np.errstate(over="ignore"):
        fits = np.isfinite((expected * (1 + 2.0**-20)).astype(dtype))
    assert np.isfinite(actual[fits]).all()
    assert not np.isnan(actual).any()
    largest = oracles.binary_cross_entropy_with_logits_backward_largest_term(*inputs, reduction=MEAN)
    clear = (actual != 0) & (np.abs(expected) > 1e-5 * largest)  # else a difference of two terms
    assert np.array_equal(np.signbit(actual)[clear], np.signbit(expected)[clear])


@engines.on_typed_engines
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (([2.0**120], [0.0], [0.0], [2.0**120], None), INF),
        (([2.0**120], [-INF], [-(2.0**-120)], [2.0**-120], [2.0**120]), 1.0),
        (([2.0**-100], [-INF], [2.0**100], [2.0**-100], [2.0**100]), -1.0),
        (([-(2.0**-126)], [-INF], [2.0**120], None, [2.0**120]), 2.0**114),
        (([2.0**-100], [INF], [-(2.0**100)], None, None), 1.0),
        (([2.0**-100], [INF], [-(2.0**100)], [INF], None), INF),
        (([2.0**-100], [INF], [INF], [2.0], None), NAN),
        (([2.0**100], [-INF], [0.0], [2.0**100], None), 0.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 700])
def test_products_by_hand(engine: Engine, inputs: tuple[list[float] | None, ...], expected: float, count: int) -> None:
    """Where sigmoid(x) is 0, 0.5 or 1, alone and among others that are not extreme."""
    others = [1.0, 0.0, 0.0, 1.0, 1.0]
    given = [
        None if a is None else np.array([*a, *[other] * (count - 1)], np.float32)
        for a, other in zip(inputs, others, strict=True)
    ]
    actual = engine(OP, given, {"reduction": SUM})
    engines.assert_result(actual, [expected, *[0.5] * (count - 1)], actual.dtype, signs=False)


# --- dtypes, shapes ------------------------------------------------------------------------------------------------


@engines.on_every_engine
@pytest.mark.parametrize(
    "dtypes", list(itertools.product(FLOATS, repeat=3)), ids=lambda kinds: "-".join(d.name for d in kinds)
)
def test_dtypes(engine: Engine, dtypes: tuple[np.dtype, ...]) -> None:
    """The dtypes of the weights, their presence and the reduction alternate along the mixtures."""
    place = sum(FLOATS.index(d) * 4**i for i, d in enumerate(dtypes))
    weighted, pos_weighted = PRESENCE[place % 4]
    kinds = (*dtypes, FLOATS[(place // 4) % 4], FLOATS[(place // 16 + place) % 4])
    inputs = make((3, 20), (3, 1), (20,) if weighted else None, (3, 1) if pos_weighted else None, kinds)
    check(engine, OP, inputs, {"reduction": place % 3})


@engines.on_every_engine
@pytest.mark.parametrize(
    "dtypes", list(itertools.product(FLOATS, repeat=2)), ids=lambda kinds: "-".join(d.name for d in kinds)
)
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_dtypes_of_weights(engine: Engine, dtype: np.dtype, dtypes: tuple[np.dtype, ...]) -> None:
    check(engine, OP, make((3, 20), (), (20,), (3, 1), (dtype, dtype, dtype, *dtypes)))


@engines.on_every_engine
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM], ids=["none", "mean", "sum"])
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_attributes_and_presence(
    engine: Engine, dtype: np.dtype, weighted: bool, pos_weighted: bool, reduction: int
) -> None:
    inputs = make((7, 90), (7, 1), (90,) if weighted else None, (7, 90) if pos_weighted else None, dtype)
    check(engine, OP, inputs, {"reduction": reduction})


@engines.on_every_engine
@pytest.mark.parametrize("place", [0, 3, 4], ids=["grad_output", "weight", "pos_weight"])
@pytest.mark.parametrize(("own", "shape"), cases.INTO, ids=cases.shape_id)
def test_broadcasting(engine: Engine, own: cases.Shape, shape: cases.Shape, place: int) -> None:
    shapes = {0: (), 3: None, 4: None} | {place: own}
    check(engine, OP, make(shape, shapes[0] or (), shapes[3], shapes[4]), static=place == 3)


@pytest.mark.parametrize("engine", [KERNEL, PORTABLE], ids=str)
@given(
    shape=cases.small_shapes(),
    data=st.data(),
    dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 5),
    presence=st.sampled_from(PRESENCE),
    reduction=st.integers(0, 2),
)
def test_any_shapes(
    engine: Engine,
    shape: cases.Shape,
    data: st.DataObject,
    dtypes: tuple[np.dtype, ...],
    presence: tuple[bool, bool],
    reduction: int,
) -> None:
    grad, weight, pos_weight = (data.draw(cases.shapes_into(shape)) for _ in range(3))
    inputs = make(shape, grad, weight if presence[0] else None, pos_weight if presence[1] else None, dtypes)
    check(engine, OP, inputs, {"reduction": reduction})


@pytest.mark.parametrize("size", [1, 7, 255, 4097, 70_001])
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
def test_long_runs(size: int, dtype: np.dtype) -> None:
    """Whole blocks and what is left over after them, with each operand broadcast and not."""
    check(KERNEL, OP, make((size,), (size,), (size,), (size,), dtype))
    check(KERNEL, OP, make((3, size), (3, 1), (size,), (1, 1), dtype))


# --- against others ------------------------------------------------------------------------------------------------


@engines.on_every_engine
@pytest.mark.parametrize("case", cases.golden_cases("binary_cross_entropy_with_logits_backward"), ids=str)
def test_golden(engine: Engine, case: golden.Golden) -> None:
    actual = check(engine, OP, list(case.inputs.values()), case.attributes)
    np.testing.assert_allclose(
        actual.astype(np.float64), case.expected.astype(np.float64), rtol=2 * case.rtol, atol=2 * case.atol
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
def test_against_torch(weighted: bool, pos_weighted: bool, reduction: str) -> None:
    torch = pytest.importorskip("torch")
    shapes = [(5,) if given else None for given in (weighted, pos_weighted)]
    inputs = make((6, 5), (6, 5) if reduction == "none" else (), *shapes, np.float64)
    g, x, y, w, p = (None if a is None else torch.from_numpy(a) for a in inputs)
    x.requires_grad_()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x, y, w, reduction=reduction, pos_weight=p)
    loss.backward(g)
    actual = KERNEL(OP, inputs, {"reduction": ["none", "mean", "sum"].index(reduction)})
    np.testing.assert_allclose(actual, x.grad.numpy(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize(("weighted", "pos_weighted"), PRESENCE, ids=PRESENCE_IDS)
def test_is_the_derivative(weighted: bool, pos_weighted: bool, reduction: int) -> None:
    shapes = [(4,) if given else None for given in (weighted, pos_weighted)]
    g, x, *rest = make((3, 4), (3, 4) if reduction == NONE else (), *shapes, np.float64)
    assert x is not None

    def loss(logits: Array) -> Array:
        return (g * oracles.binary_cross_entropy_with_logits(logits, *rest, reduction)).sum()

    actual = KERNEL(OP, [g, x, *rest], {"reduction": reduction})
    np.testing.assert_allclose(actual, oracles.finite_difference(loss, x), rtol=1e-6, atol=1e-8)
