"""The checks in C, translated from Python: the same outputs and the same messages."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import extreme_attributes
import numpy as np
import pytest
from native_checks import Checks, answer, built, compiler, stored
from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.core.op import Op
from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.integrations import precompile
from onnx_ops.integrations.precompile import all_functions
from onnx_ops.library.translation import source
from onnx_ops.ops import ALL_VERSIONS, OPS
from onnx_ops.runtime import kernels
from onnx_ops.runtime.loops import compilation
from tests.ops import RECORDS
from tests.ops._shared.record import Call

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no compiler of C")
SEED = 0
functions = functools.cache(all_functions)
SIZES = (0, 1, 2, 3, 5, 2**31, 2**48, 2**62, 2**63 - 1)


@pytest.fixture(scope="module")
def translated() -> str:
    return source(ALL_VERSIONS, functions())


@pytest.fixture(scope="module")
def checks(translated: str, tmp_path_factory: pytest.TempPathFactory) -> Checks:
    return Checks(built(translated, tmp_path_factory.mktemp("checks")), ALL_VERSIONS)


def test_the_source_is_the_same_each_time(translated: str) -> None:
    assert source(ALL_VERSIONS, functions()) == translated


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


def test_sizes_whose_product_python_alone_holds(checks: Checks) -> None:
    """Up to 2^504 elements, and padded planes of up to 2^99."""
    for size in (2**47, 2**48, 2**48 + 1, 2**62, 2**63 - 1):
        for rank in range(1, 9):
            assert_same(checks, OPS["Hardshrink"], [TensorType(1, (size,) * rank)], {}, [True])
    most = 2**31 - 1
    op = OPS["DepthwiseConv2DBackpropInput"]
    types = [TensorType(1, (1, 1, 1, 1, 1)), TensorType(1)]
    for pad in (0, 1, most):
        assert_same(checks, op, types, {"input_size": [1, most, most, most], "pads": [pad] * 6}, [True])
    op = OPS["Convolution"]
    for length in (1, 2**16, 2**46, 2**48):
        types = [TensorType(1, (1, 1, length, 1, 1)), TensorType(1, (1, 1, 1, 1, 1)), None]
        assert_same(checks, op, types, {"padding": [most] * 3}, [True])


def spoilt(rng: np.random.Generator, array: Any) -> Any:
    """A copy of an array of which some numbers are others."""
    if array is None or array.size == 0 or rng.random() < 0.5:
        return array
    other = array.copy()
    limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
    values = [-1, 0, 1, 2, 7, 100, *((limits.min, limits.max) if limits else (0.5, np.nan, -np.inf, 65504.0))]
    for _ in range(1 + rng.integers(3)):
        place = np.unravel_index(rng.integers(array.size), array.shape)
        value = values[rng.integers(len(values))]
        other[place] = value if limits is None or value >= limits.min else 3
    return other


@pytest.mark.parametrize(
    "name", [op.name for op in OPS.values() if op.check_values is not OPS["Hardshrink"].check_values]
)
def test_values(checks: Checks, name: str) -> None:
    """Calls of the records, and each with other numbers in its tensors."""
    op, rng, refused = OPS[name], np.random.default_rng(SEED), 0
    for call in calls_of(name):
        arrays, attributes = [call.inputs.get(name) for name in op.input_names], stored(op, call.attributes)
        for own in (arrays, *([spoilt(rng, array) for array in arrays] for _ in range(3))):
            found = answer(functools.partial(op.check_arrays, own, attributes, wanted_of(op, call)))
            expected = found if isinstance(found, str) else None
            assert checks.check_arrays(op, own, attributes, wanted_of(op, call)) == expected, (call, own)
            refused += expected is not None and " at " in expected
    assert refused > 20


@pytest.fixture
def by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a native function is its number plus 1; the machine has neither caches nor cores."""
    numbers = {function: number for number, function in enumerate(functions(), 1)}
    for module in (kernels, compilation):
        monkeypatch.setattr(module, "compile_native", lambda *function: numbers[function])
    for name in ("cache_bytes", "available_cores"):
        monkeypatch.setattr(compilation, name, lambda: 0)


def drawn(rng: np.random.Generator, op: Op) -> dict[str, Any]:
    """Values of the attributes that are no integers, which select no kernel; lower bounds stand before upper ones."""
    kinds = {attribute.name: attribute.type for attribute in op.signature.attributes}
    single = [name for name, kind in kinds.items() if kind == OpSchema.AttrType.FLOAT]
    lists = [name for name in ("kernel_size", "stride", "strides", "dilation", "dilations") if name in kinds]
    numbers = np.sort(rng.uniform(0.1, 0.9, len(single))).astype(np.float32)
    found: dict[str, Any] = dict(zip(single, numbers.tolist(), strict=True))
    return found | {name: rng.integers(1, 9, 2).tolist() for name in lists}


def mixtures(op: Op) -> Iterator[tuple[list[TensorType | None], list[bool]]]:
    """Inputs of two dtypes, as far as they take these, with all or none of the optional ones, and the outputs."""
    optional = [parameter.optional for parameter in op.inputs]
    allowed = [parameter.dtypes for parameter in op.inputs]
    numbers = [[TensorProto.DataType.Value(name.upper()) for name in names] for names in allowed]
    count = len(optional)
    for first, second in itertools.permutations(FLOATS, 2):
        for turn in (1, max(count // 2, 1)):
            chosen = [(first, second)[i // turn % 2] for i in range(count)]
            dtypes = [own if own in possible else possible[0] for own, possible in zip(chosen, numbers, strict=True)]
            for present in (True, False):
                there = [present or not own for own in optional]
                types = [TensorType(dtype) if own else None for dtype, own in zip(dtypes, there, strict=True)]
                yield types, [present or not parameter.optional for parameter in op.outputs]


@pytest.mark.parametrize("op", ALL_VERSIONS, ids=lambda op: op.kernel_name)
@pytest.mark.usefixtures("by_number")
def test_kernels(checks: Checks, op: Op) -> None:
    """Of all combinations of dtypes, attributes and outputs that have kernels of their own, and of others."""
    rng = np.random.default_rng(SEED)
    for call in precompile._calls(op):
        wanted = [call.wants(name) for name in op.output_names]
        attributes = stored(op, call.attributes) | drawn(rng, op)
        assert_same_kernel(checks, op, list(call.inputs.values()), attributes, wanted)
    for types, wanted in mixtures(op):
        attributes = stored(op, op.required_attributes) | drawn(rng, op)
        if any(wanted) and not isinstance(answer(lambda: op.infer(op.call(types, attributes, wanted))), str):  # noqa: B023
            assert_same_kernel(checks, op, types, attributes, wanted)


def assert_same_kernel(
    checks: Checks, op: Op, types: Sequence[TensorType | None], attributes: dict[str, Any], wanted: Sequence[bool]
) -> None:
    expected = kernels.compile_kernel(op, op.call(types, attributes, wanted))
    expected.kernel["op"] = ALL_VERSIONS.index(op)
    found = checks.kernel(op, types, attributes, wanted)
    for record in ("kernel", "loop", "attributes"):
        own, other = getattr(found, record), getattr(expected, record)
        assert (own is None) == (other is None)
        if own is not None:
            assert own.dtype == other.dtype
            differing = [n for n in own.dtype.names or () if not np.array_equal(own[n], other[n])]
            assert not differing, (types, attributes, wanted, {n: (own[n], other[n]) for n in differing})
    assert found.lists == expected.lists


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
