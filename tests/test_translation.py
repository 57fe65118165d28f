"""The checks in C, translated from Python: the same outputs and the same messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import extreme_attributes
import numpy as np
import pytest
from native_checks import Checks, answer, built, compiler, stored

from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.library.translation import source
from onnx_ops.ops import ALL_VERSIONS, OPS
from tests.ops import RECORDS
from tests.ops._shared.record import Call

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no compiler of C")
SEED = 0
SIZES = (0, 1, 2, 3, 5, 2**31, 2**48, 2**62, 2**63 - 1)


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Checks:
    return Checks(built(source(ALL_VERSIONS), tmp_path_factory.mktemp("checks")), ALL_VERSIONS)


def test_the_source_is_the_same_each_time() -> None:
    assert source(ALL_VERSIONS) == source(ALL_VERSIONS)


def calls_of(name: str) -> Iterator[Call]:
    """Good and wrong calls of an op."""
    record = RECORDS[name]
    yield record.plain
    yield from record.calls()
    yield from record.combinations()
    yield from (call for _, call in record.wrong_calls())


def types_of(op: Op, call: Call) -> list[TensorType | None]:
    arrays = (call.inputs.get(name) for name in op.input_names)
    return [None if array is None else TensorType.of(array) for array in arrays]


def wanted_of(op: Op, call: Call) -> list[bool]:
    return [call.outputs is None or name in call.outputs for name in op.output_names]


@pytest.mark.parametrize("name", OPS)
def test_types_of_outputs(checks: Checks, name: str) -> None:
    """Calls of the records, and each with other dimensions, dtypes, inputs and outputs."""
    op, rng = OPS[name], np.random.default_rng([SEED, list(OPS).index(name)])
    for call in calls_of(name):
        attributes, types, wanted = stored(op, call.attributes), types_of(op, call), wanted_of(op, call)
        assert_same(checks, op, types, attributes, wanted)
        assert_same(checks, op, changed(rng, types), attributes, wanted)
        assert_same(checks, op, changed(rng, types), attributes, [bool(rng.integers(2)) for _ in wanted])


def changed(rng: np.random.Generator, types: Sequence[TensorType | None]) -> list[TensorType | None]:
    """Types of which less is known, or which are others."""
    own = list(types)
    for _ in range(1 + rng.integers(4)):
        i = int(rng.integers(len(own)))
        tensor = own[i]
        if tensor is None or rng.random() < 0.05:
            own[i] = None if tensor else TensorType()
        elif rng.random() < 0.15:
            own[i] = TensorType(int(rng.integers(25)) or None, tensor.shape)
        elif rng.random() < 0.1:
            own[i] = TensorType(tensor.dtype)
        elif tensor.shape is not None:
            shape: list[Any] = list(tensor.shape)
            place = int(rng.integers(len(shape) + 1))
            size = [None, "N", "Größe 1", "", int(rng.choice(SIZES))][rng.integers(5)] or None
            shape[place : place + int(rng.random() < 0.9)] = [size] if rng.random() < 0.95 else []
            own[i] = TensorType(tensor.dtype, tuple(shape))
    return own


def assert_same(
    checks: Checks, op: Op, types: Sequence[TensorType | None], attributes: dict[str, Any], wanted: Sequence[bool]
) -> None:
    expected = answer(lambda: op.infer(op.call(types, attributes, wanted)))
    assert checks.infer(op, types, attributes, wanted) == expected, (op.name, types, attributes, wanted)


def test_extreme_attributes(checks: Checks) -> None:
    rng = np.random.default_rng(SEED)
    for number in range(2000):
        call = extreme_attributes.case(SEED, number)
        op = OPS[call.op]
        types, attributes = types_of(op, call), stored(op, call.attributes)
        assert_same(checks, op, types, attributes, wanted_of(op, call))
        assert_same(checks, op, changed(rng, types), attributes, wanted_of(op, call))


def numbers() -> Iterator[float]:
    """All powers of 2 in float32 and the numbers next to them, and others."""
    powers = np.float32(2.0) ** np.arange(-149, 128, dtype=np.float32)
    rng = np.random.default_rng(SEED)
    bits = rng.integers(2**32, size=5000, dtype=np.uint32).view(np.float32)
    decimals = [float(f"{digits}e{e}") for e in range(-44, 38) for digits in (1, 1.5, 3.1234567)]
    for array in (powers, np.nextafter(powers, np.float32(0)), bits, decimals, [0.0, -0.0, np.inf, np.nan]):
        yield from map(float, np.asarray(array, np.float32))


def test_numbers_in_messages(checks: Checks) -> None:
    op = OPS["DropoutV3"]
    types = [TensorType(1, (2,)), TensorType(7, ())]
    for value in numbers():
        for sign in (1, -1):
            if not 0 <= sign * value <= 1:
                assert_same(checks, op, types, {"p": sign * value}, [True, True])
