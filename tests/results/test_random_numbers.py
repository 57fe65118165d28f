"""InplaceUniform and InplaceNormal: the distributions of their numbers, and what these depend on.

Seeds are fixed, so that nothing here fails by chance; the bounds are 5 standard deviations of what is estimated.
"""

from __future__ import annotations

import math
from typing import Any

import backends
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from backends import FLOATS, KERNEL, Array, Call

import onnx_ops
from tests.ops import inplace_normal, inplace_uniform
from tests.ops._shared.draws import inputs
from tests.ops._shared.philox import DIGITS

COUNT = 1 << 20
DEVIATIONS = 5.0
OPS = (inplace_uniform.OP, inplace_normal.OP)


def drawn(
    op: str, shape: tuple[int, ...] = (COUNT,), seed: int = 0, dtype: npt.DTypeLike = np.float32, **attributes: Any
) -> Array:
    (out,) = KERNEL.run(Call(op, inputs(shape, np.dtype(dtype), seed), attributes)).values()
    return out


def normal_distribution(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_numbers_are_multiples_below_1(dtype: np.dtype) -> None:
    numbers = drawn(OPS[0], seed=3, dtype=dtype).astype(np.float64)
    multiples = np.ldexp(numbers, DIGITS[dtype.name])
    assert np.array_equal(multiples, np.floor(multiples))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    # Chi-squared of 256 equal parts: 255 degrees of freedom.
    statistic = float(
        ((np.bincount((numbers * 256).astype(int), minlength=256) - COUNT / 256) ** 2).sum() / (COUNT / 256)
    )
    assert abs(statistic - 255) < DEVIATIONS * math.sqrt(2 * 255)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**40])
def test_moments_of_normal_numbers(seed: int) -> None:
    x = drawn(OPS[1], seed=seed, dtype=np.float64)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs((x**power).mean() - moment) < DEVIATIONS * math.sqrt(variance / COUNT), power


@pytest.mark.parametrize("op", OPS)
def test_distribution(op: str) -> None:
    """The largest distance of the distribution function (Kolmogorov and Smirnov)."""
    x = np.sort(drawn(op, seed=11, dtype=np.float64))
    expected = x if op == OPS[0] else normal_distribution(x)
    ranks = np.arange(COUNT + 1) / COUNT
    distance = max(np.abs(expected - ranks[1:]).max(), np.abs(expected - ranks[:-1]).max())
    assert distance < 2.2 / math.sqrt(COUNT)  # exceeded with a probability of 1e-4


def test_tails_of_normal_numbers() -> None:
    x = np.abs(drawn(OPS[1], seed=5))
    for bound in (3.0, 4.0):
        chance = math.erfc(bound / math.sqrt(2))
        assert abs((x > bound).sum() - COUNT * chance) < DEVIATIONS * math.sqrt(COUNT * chance)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("apart", [1, 2, 3, 4, 1024])
def test_neighbours_are_independent(op: str, apart: int) -> None:
    """By the correlation of numbers, and of their squares, which the two of a pair of normal numbers would show."""
    x = drawn(op, seed=7, dtype=np.float64)
    for values in (x, x**2):
        centred = (values - values.mean()) / values.std()
        assert abs((centred[apart:] * centred[:-apart]).mean()) < DEVIATIONS / math.sqrt(COUNT)


@pytest.mark.parametrize("op", OPS)
def test_seeds_and_offsets_are_independent(op: str) -> None:
    draws = [{"seed": 0}, {"seed": 1}, {"seed": 2**32}, {"offset": 1}, {"offset": 2**32}]
    numbers = [drawn(op, dtype=np.float64, **given) for given in draws]
    correlations = np.corrcoef(numbers) - np.eye(len(draws))
    assert np.abs(correlations).max() < DEVIATIONS / math.sqrt(COUNT)


@pytest.mark.parametrize("op", OPS)
def test_shapes_and_dtypes_begin_alike(op: str) -> None:
    whole = drawn(op, (3000,), dtype=np.float64)
    for shape in ((1,), (7,), (1025,), (2, 3, 5), (10, 299)):
        own = drawn(op, shape, dtype=np.float64).reshape(-1)
        assert np.array_equal(own, whole[: own.size])
    for dtype in FLOATS:
        unit = 2.0 ** -DIGITS[np.dtype(dtype).name]
        narrow = drawn(op, (3000,), dtype=dtype).astype(np.float64)
        assert np.abs(narrow - whole).max() <= unit * (1 if op == OPS[0] else 4)


STEP = """<ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
step (float[N] x, float16[N] h, double[N] d, int64 seed) => (float[N] a, float16[N] b, double[N] c) {
    a = aclnn.OP <offset = 1> (x, seed)
    b = aclnn.OP (h, seed)
    c = aclnn.OP <offset = 2> (d, seed)
}"""


@pytest.mark.parametrize("op", OPS)
def test_one_body_serves_all_dtypes(op: str) -> None:
    """It finds out at run time how many digits the dtype of a call has."""
    model = onnx.parser.parse_model(STEP.replace("OP", op))
    feeds = {"x": np.empty(4001, np.float32), "h": np.empty(4001, np.float16), "d": np.empty(4001)}
    sessions = (
        backends.kernel_session(model),
        ort.InferenceSession(onnx_ops.link(model).SerializeToString(), backends.options()),
        ort.InferenceSession(onnx_ops.inline(model).SerializeToString(), backends.options()),
    )
    expected, *others = (session.run(None, feeds | {"seed": np.array(9)}) for session in sessions)
    for outputs in others:
        for got, wanted in zip(outputs, expected, strict=True):
            if op == OPS[0]:
                backends.assert_same_bits(got, wanted)
            else:  # the last bits of logarithm and cosine
                backends.assert_close(got, wanted, rtol=4 * float(np.finfo(wanted.dtype).eps), atol=1e-15)
