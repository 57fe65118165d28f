"""Dropout: its generator, and what masks have in common with random numbers.

Seeds are fixed, so that nothing here fails by chance; the bounds are 5 standard deviations, which a fair generator
keeps in all but one of two million such tests.
"""

from __future__ import annotations

import itertools
import math

import backends
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from backends import FLOATS, KERNEL, Array, Call

import onnx_ops
from onnx_ops.ops import philox as generator
from tests.ops import dropout_v3 as record
from tests.ops._shared import philox

OP = record.OP
COUNT = 1 << 20
DEVIATIONS = 5.0

# Of the file kat_vectors that comes with the authors' Random123: counter, key, words of philox4x32 with 10 rounds.
KNOWN = {
    "zeros": ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}
known = pytest.mark.parametrize(("counter", "key", "expected"), KNOWN.values(), ids=KNOWN)
Words = tuple[int, ...]


@known
def test_oracle_has_the_known_answers(counter: Words, key: Words, expected: Words) -> None:
    assert philox.philox(counter, key) == expected


@known
def test_generator_has_the_known_answers(counter: Words, key: Words, expected: Words) -> None:
    assert tuple(map(int, generator.philox(*map(np.uint64, (*counter, *key))))) == expected


def mask_of(
    shape: tuple[int, ...] = (COUNT,), seed: int = 0, p: float = 0.5, offset: int = 0, dtype: npt.DTypeLike = np.float32
) -> Array:
    inputs: dict[str, Array | None] = {"input": np.ones(shape, dtype), "seed": np.array(seed)}
    return KERNEL.run(Call(OP, inputs, {"p": p, "offset": offset}))["mask"]


def assert_fair(hits: int, trials: int, chance: float) -> None:
    """A number of hits as it is to be expected of independent trials."""
    deviation = math.sqrt(trials * chance * (1 - chance))
    assert abs(hits - trials * chance) < DEVIATIONS * deviation, (hits - trials * chance) / deviation


# --- which word is an element's --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backends.BACKENDS, ids=str)
def test_a_probability_is_kept_to_the_last_bit(backend: backends.Backend) -> None:
    """The first word of seed 0, 0x6627e8d5, lies between two neighbours of float32: p times 2^32 at most is kept."""
    below, above = ((0x6627E8D5 // 2**7 + more) / 2**25 for more in (0, 1))
    assert np.float32(below) == below
    assert np.nextafter(np.float32(below), np.float32(1)) == above
    for p, expected in ((below, True), (above, False)):
        call = Call(OP, {"input": np.ones(1, np.float32), "seed": np.array(0)}, {"p": p})
        assert bool(backend.run(call)["mask"][0]) is expected


def test_shapes_begin_alike() -> None:
    whole = mask_of((3000,))
    for shape in ((1,), (7,), (1025,), (2, 3, 5), (10, 299)):
        own = mask_of(shape).reshape(-1)
        assert np.array_equal(own, whole[: own.size])


def test_dtype_does_not_matter() -> None:
    masks = [mask_of((5001,), seed=4, p=0.3, dtype=dtype) for dtype in FLOATS]
    assert all(np.array_equal(mask, masks[0]) for mask in masks)


def test_words_far_into_a_tensor() -> None:
    """Those of blocks beyond the first chunk, and of a last block that is not full, by the oracle."""
    count = 5 * 1024 + 3
    expected = philox.words(11, 2, count) >= 2**31
    assert np.array_equal(mask_of((count,), seed=11, offset=2), expected)


# --- statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.5, 0.1, 0.9, 1e-3, 1 / 3])
@pytest.mark.parametrize("seed", [0, 1, 2**40, -1])
def test_probability(seed: int, p: float) -> None:
    assert_fair(int(mask_of(seed=seed, p=p).sum()), COUNT, 1 - float(np.float32(p)))


@pytest.mark.parametrize("p", [0.5, 0.1])
@pytest.mark.parametrize("apart", [1, 2, 3, 4, 5, 8, 64, 1024, 4096])
def test_neighbours_are_independent(apart: int, p: float) -> None:
    """Pairs that do not overlap: both are kept with the square of the probability."""
    mask = mask_of(seed=7, p=p)
    pairs = mask[: COUNT // (2 * apart) * 2 * apart].reshape(-1, 2, apart)
    assert_fair(int((pairs[:, 0] & pairs[:, 1]).sum()), COUNT // 2, (1 - float(np.float32(p))) ** 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *(({"seed": a}, {"seed": b}) for a, b in ((0, 1), (1, 2), (0, 2**32), (5, -5), (0, 2**63 - 1))),
        *(({"offset": a}, {"offset": b}) for a, b in ((0, 1), (1, 2), (0, 2**32), (3, 2**62))),
        ({"seed": 1, "offset": 0}, {"seed": 0, "offset": 1}),
    ],
    ids=str,
)
def test_seeds_and_offsets_are_independent(first: dict[str, int], second: dict[str, int]) -> None:
    """Masks agree in half of the elements, also where one is shifted a little against the other."""
    a, b = mask_of(**first), mask_of(**second)  # type: ignore[arg-type]
    for shift in (0, 1, 4):
        agree = a[shift:] == b[: COUNT - shift]
        assert_fair(int(agree.sum()), agree.size, 0.5)


def test_patterns_of_eight() -> None:
    """Chi-squared of the 256 patterns of eight elements, two blocks: 255 degrees of freedom."""
    patterns = np.packbits(mask_of(seed=9)).astype(np.int64)
    expected = patterns.size / 256
    statistic = float(((np.bincount(patterns, minlength=256) - expected) ** 2 / expected).sum())
    assert abs(statistic - 255) < DEVIATIONS * math.sqrt(2 * 255)


def test_columns_of_a_batch_are_independent() -> None:
    """Each column's share: rows of 512 elements end with whole blocks, as layers of a network do."""
    shares = mask_of((2048, 512), seed=3).sum(axis=0)
    for column in shares:
        assert_fair(int(column), 2048, 0.5)


# --- in a model ------------------------------------------------------------------------------------------------------

STEP = """<ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
step (float[N] x, float[N] g, int64 seed) => (float[N] y, float[N] dx, float[N] z) {
    y, mask = aclnn.DropoutV3 <p = 0.2> (x, seed)
    dx = aclnn.DropoutBackward <scale = 1.25> (g, mask)
    z, other = aclnn.DropoutV3 <p = 0.75, offset = 1> (x, seed)
}"""


def test_gradient_passes_where_the_forward_pass_did() -> None:
    """Two dropouts of one seed, of which one function body serves both, have masks of their own."""
    model = onnx.parser.parse_model(STEP)
    sessions = {
        "kernel": backends.kernel_session(model),
        "portable": ort.InferenceSession(onnx_ops.link(model).SerializeToString(), backends.options()),
        "inlined": ort.InferenceSession(onnx_ops.inline(model).SerializeToString(), backends.options()),
    }
    ones = np.ones(4001, np.float32)
    results = []
    for session in sessions.values():
        results.append([session.run(None, {"x": ones, "g": ones, "seed": np.array(seed)}) for seed in (1, 2)])
        for y, dx, z in results[-1]:
            assert np.array_equal(y, dx)
            assert set(y.tolist()) == {0.0, 1.25}
            assert set(z.tolist()) == {0.0, 4.0}
        (first, *_), (second, *_) = results[-1]
        assert not np.array_equal(first, second)
    for other in results[1:]:
        for own, wanted in zip(itertools.chain(*other), itertools.chain(*results[0]), strict=True):
            backends.assert_same_bits(own, wanted)
