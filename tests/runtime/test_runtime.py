"""The native code against plain Python: conversions of 16-bit floats, the kernels as they stand, the OrtApi table."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, MutableSequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import ml_dtypes
import numba
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from llvmlite import binding
from native import natively
from numba import types
from numba.core.registry import cpu_target
from numba.extending import register_jitable
from numpy.typing import DTypeLike
from onnx import TensorProto, helper

import onnx_ops
from onnx_ops.core.types import TensorType
from onnx_ops.integrations.sessions import OwnOptions
from onnx_ops.loops.memory import (
    LANES,
    LINE,
    address_of,
    allocate,
    array_at,
    bfloats_at,
    floats_at,
    free,
    halves_at,
    interleave,
    read_floats,
    separate,
    tail,
    write_floats,
)
from onnx_ops.loops.primitives import exp_of_difference
from onnx_ops.loops.records import Numbers, Table, record_of
from onnx_ops.loops.tiles import (
    COLUMNS,
    PANEL,
    ROWS,
    add_dot_products,
    add_outer_products,
    add_products,
    correlate,
    divide_by_lane,
    largest,
    largest_by_lane,
    multiply_tile,
    subtract_by_lane,
    sum_by_lane,
)
from onnx_ops.ops import OPS
from onnx_ops.ops.batch_norm import batch_norm_elemt_backward
from onnx_ops.ops.kl_div import kl_div_backward
from onnx_ops.runtime import abi, code_generation, compiler, native, registration, requests
from onnx_ops.runtime.loops import compilation
from onnx_ops.runtime.loops.plan import BLOCK, LARGEST_BLOCK, block_of_map
from onnx_ops.runtime.memory import copy_past_caches, i8_at, store_fence
from onnx_ops.runtime.process import STATE
from onnx_ops.runtime.records import LAYOUT, LOOP

Array = np.ndarray[Any, Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
PATTERNS = np.arange(2**16, dtype=np.uint16)
of_doubles = functools.partial(pytest.param, marks=pytest.mark.full)
"""Arguments of a test that compiles for seconds what kernels for double, which have tests of their own, are made of."""
ids = {"argvalues": [FLOAT16, BFLOAT16], "ids": ["float16", "bfloat16"]}


def run(op_type: str, inputs: Mapping[str, Array], output_dtype: DTypeLike, **attributes: Any) -> Array:
    """One run of an op's kernel, on any dtype; values go in and come out as they are."""
    schema = OPS[op_type].schema
    out = schema.outputs[0].name
    types = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in inputs.items()}
    graph = helper.make_graph(
        [onnx_ops.make_node(op_type, {name: name for name in inputs}, [out], **attributes)],
        "one",
        [helper.make_tensor_value_info(name, types[name], inputs[name].shape) for name in inputs],
        [helper.make_tensor_value_info(out, helper.np_dtype_to_tensor_dtype(np.dtype(output_dtype)), None)],
    )
    model = helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21), onnx_ops.opset_import()]
    )
    session = onnx_ops.InferenceSession(model)
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, types[name], array.shape, array.ctypes.data)
    result = np.zeros(np.broadcast_shapes(*(a.shape for a in inputs.values())), output_dtype)
    binding.bind_output(out, "cpu", 0, helper.np_dtype_to_tensor_dtype(result.dtype), result.shape, result.ctypes.data)
    session.run_with_iobinding(binding)
    return result


def pass_through(values: Array, other: DTypeLike, output: DTypeLike) -> Array:
    """The values as HardshrinkBackward gives them on where nothing is held back."""
    ones = np.ones(values.shape, other)
    return run("HardshrinkBackward", {"grad_output": values, "self": ones}, output, lambd=0.0)


def assert_bits(actual: Array, expected: Array) -> None:
    """Equal to the bit; a NaN may be any NaN."""
    assert actual.dtype == expected.dtype
    with np.errstate(invalid="ignore"):  # signalling NaNs
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(actual), nan)
    kind = f"u{actual.dtype.itemsize}"
    np.testing.assert_array_equal(actual.view(kind)[~nan], expected.view(kind)[~nan])


# --- conversions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", **ids)
def test_every_pattern_survives(dtype: np.dtype) -> None:
    values = PATTERNS.view(dtype)
    assert_bits(pass_through(values, dtype, dtype), values)


@pytest.mark.parametrize("wide", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("dtype", **ids)
def test_every_pattern_widens_exactly(dtype: np.dtype, wide: np.dtype) -> None:
    values = PATTERNS.view(dtype)
    with np.errstate(invalid="ignore"):
        expected = values.astype(wide)
    assert_bits(pass_through(values, wide, wide), expected)


@pytest.mark.parametrize("dtype", **ids)
def test_every_pattern_decides_in_the_comparison(dtype: np.dtype) -> None:
    """self in 16 bits against lambd, a float32 that no 16-bit number is equal to."""
    x = PATTERNS.view(dtype)
    out = run("HardshrinkBackward", {"grad_output": np.ones(x.shape, dtype), "self": x}, dtype, lambd=0.30000001)
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(out.astype(np.float32), (np.abs(wide) > np.float32(0.30000001)).astype(np.float32))


def _finite(patterns: Array, dtype: np.dtype) -> Array:
    """The finite numbers of a 16-bit dtype with the patterns, as float64."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = patterns.view(dtype).astype(np.float64)
    return values[np.isfinite(values)]


def _neighbours(dtype: np.dtype) -> Array:
    """All finite numbers of the dtype and the halves between them, a float32 and a float64 step around each."""
    values = np.sort(_finite(PATTERNS, dtype))
    halves = (values[1:] + values[:-1]) / 2
    largest = values[-1] + (values[-1] - values[-2]) / 2  # from here on it rounds to infinity
    points = np.concatenate([values, halves, [largest, -largest]])
    narrow = points.astype(np.float32)
    steps = [points, np.nextafter(points, np.inf), np.nextafter(points, -np.inf)]
    steps += [np.nextafter(narrow, np.float32(s * np.inf)).astype(np.float64) for s in (1, -1)]
    return np.concatenate([*steps, [np.inf, -np.inf, np.nan, 1e300, -1e300, 5e-324]])


def rounded_once(values: Array, dtype: np.dtype) -> Array:
    """Nearest number of a 16-bit dtype, ties to the even pattern, by search among all of them."""
    table = _finite(PATTERNS[PATTERNS < 0x8000], dtype)
    infinity = table[-1] + (table[-1] - table[-2])
    table = np.append(table, infinity)
    size = np.abs(values)
    size[np.isnan(size)] = 0
    upper = np.clip(np.searchsorted(table, size), 1, table.size - 1)
    below, above = size - table[upper - 1], table[upper] - size  # exact: neighbours of few bits
    up = (above < below) | ((above == below) & (upper % 2 == 0))
    pattern = np.where(up, upper, upper - 1).astype(np.uint16) | (np.signbit(values).astype(np.uint16) << 15)
    out = pattern.view(dtype).copy()
    out[np.isnan(values)] = np.nan
    return out


@pytest.mark.parametrize("dtype", **ids)
def test_float32_is_rounded_to_the_nearest(dtype: np.dtype) -> None:
    """KlDivBackward with target -1: out is the gradient, from float32 into self's dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = _neighbours(dtype).astype(np.float32)
    inputs = {
        "grad_output": values,
        "self": np.zeros(values.shape, dtype),
        "target": np.full(values.shape, -1, np.float32),
    }
    out = run("KlDivBackward", inputs, dtype, reduction="none")
    assert_bits(out, rounded_once(values.astype(np.float64), dtype))


@pytest.mark.parametrize("dtype", **ids)
def test_float64_is_rounded_once(dtype: np.dtype) -> None:
    """By way of float32 a number just beyond a half would become the half, and then go to the wrong side."""
    values = _neighbours(dtype)
    inputs = {"grad_output": values, "self": np.zeros(values.shape, dtype), "target": np.full(values.shape, -1.0)}
    out = run("KlDivBackward", inputs, dtype, reduction="none")
    expected = rounded_once(values, dtype)
    assert_bits(out, expected)
    with np.errstate(over="ignore", invalid="ignore"):
        twice = values.astype(np.float32).astype(dtype)
    assert np.count_nonzero(twice.astype(np.float64) != expected.astype(np.float64)) > 1000  # the trap is there


@pytest.mark.parametrize("dtype", **ids)
def test_reference_rounds_as_the_kernel_does(dtype: np.dtype) -> None:
    values = _neighbours(dtype)
    reference = kl_div_backward.reference(
        values, np.zeros(values.shape, dtype), np.full(values.shape, -1.0), reduction=0
    )
    assert_bits(reference, rounded_once(values, dtype))


def test_float64_to_float32_is_rounded_to_the_nearest() -> None:
    rng = np.random.default_rng(23)
    values = np.concatenate(
        [rng.normal(size=5000) * 2.0 ** rng.integers(-160, 130, 5000), [np.inf, -np.inf, np.nan, -0.0]]
    )
    inputs = {"grad_output": values, "self": np.zeros(values.shape, np.float32), "target": np.full(values.shape, -1.0)}
    with np.errstate(over="ignore"):
        expected = values.astype(np.float32)
    assert_bits(run("KlDivBackward", inputs, np.float32, reduction="none"), expected)


# --- records -------------------------------------------------------------------------------------------------------


def test_record_of_a_class() -> None:
    class Fields(Protocol):
        number: int
        row: Annotated[Numbers, 3]
        reals: Annotated[MutableSequence[float], 2]
        table: Annotated[Table, 2, 4]

    fields = [("number", np.int64), ("row", np.int64, (3,)), ("reals", np.float64, (2,)), ("table", np.int64, (2, 4))]
    assert record_of(Fields) == np.dtype(fields, align=True)


# --- kernels as plain Python -----------------------------------------------------------------------------------------

N = 17


def _operands(seed: int, count: int, dtype: DTypeLike) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=N).astype(dtype) for _ in range(count)]


def _loop_of(op_type: str, attributes: Mapping[str, Any], dtype: DTypeLike) -> tuple[Any, Array]:
    """What the op declares for inputs of a dtype, and the parameters its core is given with a divisor of 1."""
    op = OPS[op_type]
    kind = TensorType(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    loop: Any = op.kernel(op.call([kind] * len(op.input_names), attributes))
    parameters = np.zeros(LAYOUT["parameters"].shape)
    parameters[0] = 1.0
    parameters[1 : 1 + len(loop.parameters)] = loop.parameters
    return loop, parameters


PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "hardshrink": ("HardshrinkBackward", {"lambd": 0.3}),
    "hardshrink-below-0": ("HardshrinkBackward", {"lambd": -1.0}),
    "kl-div": ("KlDivBackward", {"reduction": 0, "log_target": 0}),
    "kl-div-of-logarithms": ("KlDivBackward", {"reduction": 2, "log_target": 1}),
    "bce": ("BinaryCrossEntropyWithLogitsBackward", {"reduction": 0}),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PLAIN)
def test_kernel_runs_as_plain_python(name: str, dtype: DTypeLike) -> None:
    op_type, attributes = PLAIN[name]
    op = OPS[op_type]
    operands = _operands(24, len(op.input_names), dtype)
    loop, parameters = _loop_of(op_type, attributes, dtype)
    out = np.full(N, np.nan, dtype)
    loop.core(operands, out, N, parameters.astype(dtype))
    expected = op.reference(*operands, **attributes)
    np.testing.assert_allclose(out, expected, rtol=0, atol=4 * np.finfo(dtype).eps * np.abs(expected).max())


SUMS: dict[str, tuple[str, dict[str, Any], int]] = {
    "kl-div": ("KlDiv", {"reduction": 2}, 2),
    "kl-div-of-logarithms": ("KlDiv", {"reduction": 2, "log_target": 1}, 2),
    "bce": ("BinaryCrossEntropyWithLogits", {"reduction": 2}, 2),
    "bce-weighted": ("BinaryCrossEntropyWithLogits", {"reduction": 2}, 4),
}


@pytest.mark.parametrize(("dtype", "near"), [(FLOAT16, 1e-4), (FLOAT32, 1e-7)], ids=["float16", "float32"])
@pytest.mark.parametrize("name", SUMS)
def test_sum_runs_as_plain_python(name: str, dtype: np.dtype, near: float) -> None:
    """Before its result is rounded."""
    op_type, attributes, count = SUMS[name]
    op, rng = OPS[op_type], np.random.default_rng(26)
    operands = [rng.normal(size=100).astype(dtype), *(rng.uniform(size=100).astype(dtype) for _ in range(count - 1))]
    expected = op.reference(*operands, **attributes, dtype=np.float64)
    kind = TensorType(helper.np_dtype_to_tensor_dtype(dtype))
    loop: Any = op.kernel(op.call([kind] * count, attributes))
    out = np.full(1, np.nan)
    ones = [np.ones(100, dtype)] * (len(op.input_names) - count)
    loop.sums.totals([operand.astype(np.float32) for operand in operands + ones], out, 100, np.ones(8, np.float32))
    np.testing.assert_allclose(out, expected, rtol=near)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_norm_kernels_run_as_plain_python(dtype: DTypeLike) -> None:
    """`prepare` works on the channels, the kernel on an operand per element, the other on elements of one channel."""
    channels, rng = 3, np.random.default_rng(25)
    grad, x = (rng.normal(size=(N, channels)).astype(dtype) for _ in range(2))
    mean, invstd, weight, sum_dy, sum_dy_xmu = (rng.uniform(0.5, 2, channels).astype(dtype) for _ in range(5))
    expected = batch_norm_elemt_backward.reference(
        grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu, np.array([2.0, 3.0], np.float32)
    )
    prepared = [a.astype(np.float64) for a in (mean, invstd, weight, sum_dy, sum_dy_xmu)]
    batch_norm_elemt_backward.prepare(prepared, channels, np.array([5.0]))
    near = 8 * np.finfo(dtype).eps * np.abs(expected).max()
    for c in range(channels):
        out = np.full(N, np.nan, dtype)
        each = [np.full(N, p[c], dtype) for p in prepared]
        batch_norm_elemt_backward.gradient([grad[:, c], x[:, c], *each], out, N, None)
        np.testing.assert_allclose(out, expected[:, c], rtol=0, atol=near)
        out[:] = np.nan
        one = [p[c : c + 1].astype(dtype) for p in prepared]
        batch_norm_elemt_backward.gradient_of_channel([grad[:, c], x[:, c], *one], out, N, None)
        np.testing.assert_allclose(out, expected[:, c], rtol=0, atol=near)


# --- results past the caches --------------------------------------------------------------------------------------


def copy(source: int, target: int, size: int, ahead: int, count: int) -> None:
    copy_past_caches(source, target, size, i8_at(ahead), count)
    store_fence()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 200, 1000])
def test_bytes_are_copied_past_the_caches(size: int) -> None:
    """From and to any address, all of them and nothing beside them; what lies ahead need not be there."""
    run = natively(copy)
    source = np.random.default_rng(28).integers(256, size=2048, dtype=np.uint8)
    ahead = np.array([source.ctypes.data, 0])
    for begin, end in ((0, 0), (1, 5), (17, 63), (64, 31)):
        target = np.zeros(2048, np.uint8)
        expected = target.copy()
        expected[end : end + size] = source[begin : begin + size]
        run(source.ctypes.data + begin, target.ctypes.data + end, size, ahead.ctypes.data, len(ahead))
        np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("shape", [(100, 401), (401,), (1,)], ids=str)
@pytest.mark.parametrize(
    ("grad", "this"), [(FLOAT32, FLOAT32), (FLOAT16, FLOAT16), (FLOAT64, FLOAT64), (FLOAT16, FLOAT32)], ids=str
)
def test_results_past_the_caches_are_the_same(
    monkeypatch: pytest.MonkeyPatch, grad: np.dtype, this: np.dtype, shape: tuple[int, ...]
) -> None:
    """On a machine whose cache holds less than the operands; those that are converted or broadcast go the usual way."""
    monkeypatch.setattr(compilation, "cache_bytes", lambda: 16)
    rng = np.random.default_rng(29)
    grad_output, x = rng.normal(size=(100, 401)).astype(grad), rng.normal(size=shape).astype(this)
    requests._parts.cache_clear()  # a kernel knows the size of the cache
    try:
        out = run("HardshrinkBackward", {"grad_output": grad_output, "self": x}, np.promote_types(grad, this))
    finally:
        requests._parts.cache_clear()
    np.testing.assert_array_equal(out, np.where(np.abs(x.astype(np.float64)) > 0.5, grad_output, 0))


def test_the_last_cache_has_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilation.cache_bytes() >= 1 << 18
    for index, size in enumerate(("32K", "1024K", "16384K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    monkeypatch.setattr(compilation, "CACHES", tmp_path)
    assert compilation.cache_bytes.__wrapped__() == 16 << 20
    monkeypatch.setattr(compilation, "CACHES", tmp_path / "none")
    assert compilation.cache_bytes.__wrapped__() == 32 << 20


# --- loops that wait for memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2, 6])
def test_each_core_has_as_many_tasks(cores: int) -> None:
    block_of = block_of_map.py_func
    loop = np.zeros(1, LOOP).view(np.recarray)
    loop["cores"] = cores
    assert block_of(loop[0], 100_000) == BLOCK
    loop["memory_bound"] = 1
    for size in (100_000, 1_000_000, 16_000_000):
        block = block_of(loop[0], size)
        assert block % LINE == 0
        assert block < LARGEST_BLOCK + LINE
        assert -(-size // block) == cores * -(-size // (cores * LARGEST_BLOCK))
    for size in (0, 1, BLOCK):  # not worth a second task
        assert block_of(loop[0], size) == BLOCK


@pytest.mark.parametrize("cores", [1, 3])
def test_results_do_not_depend_on_the_number_of_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(compilation, "available_cores", lambda: cores)
    x = np.random.default_rng(30).normal(size=100_003).astype(np.float32)
    requests._parts.cache_clear()  # a kernel knows the number of cores
    try:
        out = run("Hardshrink", {"self": x}, np.float32)
    finally:
        requests._parts.cache_clear()
    np.testing.assert_array_equal(out, np.where(np.abs(x) > 0.5, x, 0))


# --- scratch memory, natively and as plain Python ---------------------------------------------------------------------


def fill_buffers(first: int, second: int, third: int, results: int) -> None:
    """Fill three arrays of one block; write their sums and addresses to `results`, int64."""
    memory, masks, numbers, places = allocate((first, np.uint8), (second, np.float32), (third, np.int64))
    out = array_at(results, 7, np.int64)
    for i in range(first):
        masks[i] = 1
    for i in range(second):
        numbers[i] = np.float32(0.5)
    for i in range(third):
        places[i] = -1
    mask_sum, number_sum, place_sum = 0, 0.0, 0
    for i in range(first):
        mask_sum += int(masks[i])
    for i in range(second):
        number_sum += float(numbers[i])
    for i in range(third):
        place_sum += int(places[i])
    out[0], out[1], out[2] = mask_sum, int(number_sum), place_sum
    out[3], out[4], out[5] = address_of(masks), address_of(numbers), address_of(places)
    out[6] = address_of(tail(places, 2))
    free(memory)


def test_arrays_of_a_block_do_not_overlap() -> None:
    for run in (natively(fill_buffers, 4), fill_buffers):
        got = np.zeros(7, np.int64)
        run(9, 20, 3, got.ctypes.data)
        np.testing.assert_array_equal(got[:3], [9, 10, -3])
        assert got[3] % LINE == 0
        np.testing.assert_array_equal(got[3:] - got[3], [0, LINE, 3 * LINE, 3 * LINE + 16])


# --- lanes, natively and as plain Python -----------------------------------------------------------------------------

LENGTH = 37


def interleave_in_float(sources: int, element_type: int, start: int, count: int, out: int) -> None:
    lanes = array_at(sources, LANES, np.int64)
    interleave(lanes, element_type, start, count, array_at(out, LENGTH * LANES, np.float32), 2)


def interleave_in_double(sources: int, element_type: int, start: int, count: int, out: int) -> None:
    lanes = array_at(sources, LANES, np.int64)
    interleave(lanes, element_type, start, count, array_at(out, LENGTH * LANES, np.float64), 2)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 16, 30])
@pytest.mark.parametrize(
    ("given", "out"),
    [
        *((kind, FLOAT32) for kind in (FLOAT16, BFLOAT16, FLOAT32)),
        *(of_doubles(kind, FLOAT64) for kind in (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)),
    ],
    ids=str,
)
def test_rows_are_brought_together(given: Any, out: Any, count: int) -> None:
    """All that is given, and nothing beside it."""
    rows = np.random.default_rng(26).normal(size=(LANES, LENGTH)).astype(given)
    rows[1, 3:5] = np.nan, -np.inf
    addresses = np.array([row.ctypes.data for row in rows])
    expected = np.full((LENGTH, LANES), -7, out)
    expected[2 : 2 + count] = rows.T[3 : 3 + count].astype(out)
    function = interleave_in_float if out == FLOAT32 else interleave_in_double
    for run in (natively(function), function):
        got = np.full((LENGTH, LANES), -7, out)
        run(addresses.ctypes.data, helper.np_dtype_to_tensor_dtype(given), 3, count, got.ctypes.data)
        np.testing.assert_array_equal(got, expected)


def thirds(source: int, element_type: int, count: int, target: int, buffer: int) -> None:
    """Numbers of float32 or 16 bits divided by 3, by way of a float32 buffer."""
    read_floats(source, element_type, count, buffer)
    numbers = floats_at(buffer, count)
    for i in range(count):
        numbers[i] = numbers[i] / np.float32(3)
    write_floats(buffer, element_type, count, target)


def thirds_of_halves(source: int, element_type: int, count: int, target: int, buffer: int) -> None:
    numbers, out = halves_at(source, count), halves_at(target, count)
    for i in range(count):
        out[i] = numbers[i] / np.float32(3)


def thirds_of_bfloats(source: int, element_type: int, count: int, target: int, buffer: int) -> None:
    numbers, out = bfloats_at(source, count), bfloats_at(target, count)
    for i in range(count):
        out[i] = numbers[i] / np.float32(3)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        *[(thirds, dtype) for dtype in (FLOAT16, BFLOAT16, FLOAT32)],
        (thirds_of_halves, FLOAT16),
        (thirds_of_bfloats, BFLOAT16),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 37])
def test_sixteen_bits_are_computed_with_in_float32(function: Any, dtype: npt.DTypeLike, count: int) -> None:
    """All that is given, and nothing beside it; rounded once."""
    given = np.random.default_rng(27).normal(size=40).astype(dtype)
    given[:3] = np.nan, -np.inf, -0.0
    expected = np.full(40, -7, dtype)
    expected[:count] = (given[:count].astype(np.float32) / np.float32(3)).astype(dtype)
    for run in (natively(function), function):
        got, buffer = np.full(40, -7, dtype), np.zeros(40, np.float32)
        element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        run(given.ctypes.data, element_type, count, got.ctypes.data, buffer.ctypes.data)
        # NumPy does not know bfloat16's NaN.
        np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def separate_floats(numbers: int, element_type: int, start: int, count: int, targets: int) -> None:
    lanes = array_at(targets, LANES, np.int64)
    separate(array_at(numbers, LENGTH * LANES, np.float32), 2, count, lanes, element_type, start)


def separate_doubles(numbers: int, element_type: int, start: int, count: int, targets: int) -> None:
    lanes = array_at(targets, LANES, np.int64)
    separate(array_at(numbers, LENGTH * LANES, np.float64), 2, count, lanes, element_type, start)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 16, 30])
@pytest.mark.parametrize("out", [FLOAT16, BFLOAT16, FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("given", [FLOAT32, of_doubles(FLOAT64)], ids=str)
def test_rows_are_taken_apart(given: Any, out: Any, count: int) -> None:
    """All that is given, and nothing beside it."""
    numbers = np.random.default_rng(28).integers(-99, 100, (LENGTH, LANES)).astype(given)
    numbers[3, 1], numbers[4, 2] = np.nan, -np.inf
    expected = np.full((LANES, LENGTH), -7, out)
    expected[:, 3 : 3 + count] = numbers[2 : 2 + count].T.astype(out)
    function = separate_floats if given == FLOAT32 else separate_doubles
    for run in (natively(function), function):
        got = np.full((LANES, LENGTH), -7, out)
        addresses = np.array([row.ctypes.data for row in got])
        run(numbers.ctypes.data, helper.np_dtype_to_tensor_dtype(out), 3, count, addresses.ctypes.data)
        np.testing.assert_array_equal(got.astype(FLOAT64), expected.astype(FLOAT64))


LONG = 160


def correlate_floats(out: int, a: int, b: int, places: int, terms: int, rows: int, columns: int, step: int) -> None:
    x, y = array_at(a, LENGTH * LANES, np.float32), array_at(b, LONG * LANES, np.float32)
    of_x, of_y = array_at(places, terms, np.int64), array_at(places + 8 * terms, terms, np.int64)
    sums = array_at(out, LONG * LANES, np.float32)
    correlate(x, y, of_x, of_y, terms, rows, columns, 23, step, sums, 1, 50, 2)


def correlate_doubles(out: int, a: int, b: int, places: int, terms: int, rows: int, columns: int, step: int) -> None:
    x, y = array_at(a, LENGTH * LANES, np.float64), array_at(b, LONG * LANES, np.float64)
    of_x, of_y = array_at(places, terms, np.int64), array_at(places + 8 * terms, terms, np.int64)
    sums = array_at(out, LONG * LANES, np.float64)
    correlate(x, y, of_x, of_y, terms, rows, columns, 23, step, sums, 1, 50, 2)


RUNS = {
    "apart": [0, 2, 11],
    "one run": [4, 5, 6, 7],
    "runs of three": [3, 4, 5, 10, 11, 12],
    "runs of seven": [*range(2, 9), *range(25, 32)],
    "a run and others": [3, 4, 5, 9, 11, 12],
    "a run and a part of one": [3, 4, 5, 9, 10],
    "descending": [5, 4, 3, 12, 11, 10],
    "none": [],
}


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
@pytest.mark.parametrize("places", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize(("function", "dtype"), [(correlate_floats, FLOAT32), of_doubles(correlate_doubles, FLOAT64)])
def test_places_are_correlated(function: Any, dtype: npt.DTypeLike, places: list[int], rows: int) -> None:
    """Rows of many lengths, of whole numbers, so that no sum is rounded; the results are two places apart."""
    rng = np.random.default_rng(29)
    a, b, start = (rng.integers(-9, 10, (count, LANES)).astype(dtype) for count in (LENGTH, LONG, LONG))
    of_a = rng.permutation(LENGTH)[: len(places)]
    both = np.array([*of_a, *places])
    compiled = natively(function, 8)
    for columns, step in [(n, 1) for n in (0, 1, 3, 4, 6, 7, 8, 13, 14, 20, 23)] + [(1, 2), (6, 2), (9, 2), (4, 3)]:
        expected = start.copy()
        for i, j in np.ndindex(rows, columns):
            terms = (a[x] * b[y + 23 * i + step * j] for x, y in zip(of_a, places, strict=True))
            expected[1 + 50 * i + 2 * j] = sum(terms)
        for run in (compiled, function):
            got = start.copy()
            given = (array.ctypes.data for array in (got, a, b, both))
            run(*given, len(places), rows, columns, step)
            np.testing.assert_array_equal(got, expected)


STARTS = {"apart": (0, 2, 5), "adjacent": (3, 4, 5), "descending": (5, 4, 3)}


def products_in_float(sums: int, a: int, b: int, starts: int, rows: int, columns: int, step: int) -> None:
    x, y = array_at(a, LENGTH * LANES, np.float32), array_at(b, LONG * LANES, np.float32)
    begins = array_at(starts, 3, np.int64)
    of_sums = array_at(sums, LENGTH * LANES, np.float32)
    add_products(of_sums, x, y, 1, (begins[0], begins[1], begins[2]), rows, columns, 6, 17, step)


def products_in_double(sums: int, a: int, b: int, starts: int, rows: int, columns: int, step: int) -> None:
    x, y = array_at(a, LENGTH * LANES, np.float64), array_at(b, LONG * LANES, np.float64)
    begins = array_at(starts, 3, np.int64)
    of_sums = array_at(sums, LENGTH * LANES, np.float64)
    add_products(of_sums, x, y, 1, (begins[0], begins[1], begins[2]), rows, columns, 6, 17, step)


@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize(("function", "dtype"), [(products_in_float, FLOAT32), of_doubles(products_in_double, FLOAT64)])
def test_products_are_added_up(function: Any, dtype: npt.DTypeLike, starts: tuple[int, int, int]) -> None:
    """Of whole numbers, so that no sum is rounded."""
    rng = np.random.default_rng(27)
    start, a, b = (rng.integers(-9, 10, (count, LANES)).astype(dtype) for count in (LENGTH, LENGTH, LONG))
    begins, compiled = np.array(starts), natively(function, 7)
    for rows, columns, step in [(0, 3, 1), (3, 0, 1), (1, 1, 1), (2, 4, 1), (5, 6, 1), (4, 9, 1), (4, 5, 2)]:
        expected = start.copy()
        for t, begin in enumerate(starts):
            for i, j in np.ndindex(rows, columns):
                expected[t] += a[1 + 6 * i + j] * b[begin + 17 * i + step * j]
        for run in (compiled, function):
            got = start.copy()
            run(got.ctypes.data, a.ctypes.data, b.ctypes.data, begins.ctypes.data, rows, columns, step)
            np.testing.assert_array_equal(got, expected)


# --- the OrtApi table ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def api() -> abi.OrtApi:
    onnx_ops.session_options()
    return STATE.shared["api"]


def test_api_answers_at_its_places(api: abi.OrtApi) -> None:
    """Make a shape with the functions that set one, read it back with those that get one."""
    info = api.word(abi.Api.CreateTensorTypeAndShapeInfo)
    assert info
    sizes, names = (abi.I64 * 3)(2, -1, -1), (ctypes.c_char_p * 3)(b"", b"N", b"")
    api(abi.Api.SetTensorElementType, info, TensorProto.FLOAT16)
    api(abi.Api.SetDimensions, info, sizes, 3)
    api(abi.Api.SetSymbolicDimensions, info, names, 3)
    assert api.element_type(info) == TensorProto.FLOAT16
    assert api.word(abi.Api.GetDimensionsCount, info) == 3
    assert api.dimensions(info) == (2, "N", None)
    api(abi.Api.ReleaseTensorTypeAndShapeInfo, info)


def test_api_makes_a_status(api: abi.OrtApi) -> None:
    status = api.status("what went wrong")
    assert status
    api(abi.Api.ReleaseStatus, status)


def test_objects_of_pybind() -> None:
    """In Python's subclasses too, each of its own; none in other objects."""
    options = [ort.SessionOptions(), OwnOptions(), OwnOptions()]
    assert len({abi.object_of_pybind(each) for each in options} - {None}) == 3
    assert [abi.object_of_pybind(other) for other in (object(), 1, options, ort.SessionOptions)] == [None] * 4


def test_api_places_have_signatures() -> None:
    assert not [place for place in abi.SIGNATURES if place not in set(abi.Api)]
    places = [int(p) for p in abi.Api]
    assert len(places) == len(set(places))


def test_custom_op_struct_is_laid_out_as_in_c() -> None:
    """A version, padded to a word, and then words alone: the size of OrtCustomOp up to GetAliasMap's pair in 1.17."""
    names = [name for name, *_ in abi.OrtCustomOp._fields_]
    assert ctypes.sizeof(abi.OrtCustomOp) == ctypes.sizeof(ctypes.c_void_p) * len(names)
    for place, name in enumerate(names):
        assert getattr(abi.OrtCustomOp, name).offset == place * ctypes.sizeof(ctypes.c_void_p)


def test_kernels_are_in_the_sessions_of_this_onnxruntime() -> None:
    """Fails, rather than falling back to function bodies in silence, where the kernels cannot be registered."""
    assert isinstance(registration._library(OPS.values()), str)
    assert registration._failure(onnx_ops.session_options(), registration.PROBE) is None
    assert "Probe" in str(registration._failure(ort.SessionOptions(), registration.PROBE))


# --- tiles of products, natively and as plain Python -----------------------------------------------------------------


def multiply_in_float(image: int, rows: int, weights: int, places: int, out: int) -> None:
    """Two taps of three, of 21 channels: two blocks, which are 80 elements apart."""
    starts = array_at(rows + 8 * 2 * ROWS, 3, np.int64)  # and the number of vectors
    numbers, places_of, outs = array_at(image, 160, np.float32), array_at(places, ROWS, np.int64), 2 * ROWS * LANES
    given = numbers, array_at(rows, 2 * ROWS, np.int64), 0, 2, 21, 80, array_at(weights, 2 * 21 * 3 * LANES, np.float32)
    multiply_tile(*given, starts, 0, 21 * 3 * LANES, 3, array_at(out, outs, np.float32), places_of, 0, ROWS, starts[2])


def multiply_in_double(image: int, rows: int, weights: int, places: int, out: int) -> None:
    starts = array_at(rows + 8 * 2 * ROWS, 3, np.int64)  # and the number of vectors
    numbers, places_of, outs = array_at(image, 160, np.float64), array_at(places, ROWS, np.int64), 2 * ROWS * LANES
    given = numbers, array_at(rows, 2 * ROWS, np.int64), 0, 2, 21, 80, array_at(weights, 2 * 21 * 3 * LANES, np.float64)
    multiply_tile(*given, starts, 0, 21 * 3 * LANES, 3, array_at(out, outs, np.float64), places_of, 0, ROWS, starts[2])


@pytest.mark.parametrize("vectors", [1, PANEL])
@pytest.mark.parametrize("dtype", [FLOAT32, of_doubles(FLOAT64)], ids=str)
def test_tile_of_a_product(dtype: npt.DTypeLike, vectors: int) -> None:
    """Sums of whole numbers, which are exact."""
    rng = np.random.default_rng(28)
    image, weights = rng.integers(-9, 9, 160).astype(dtype), rng.integers(-9, 9, (2, 21, 3, LANES)).astype(dtype)
    rows, starts, places = rng.integers(0, 5, (2, ROWS)) * LANES, np.array([2 * LANES, 5]), rng.permutation(ROWS)
    expected = np.zeros((2, ROWS, LANES), dtype)
    for t, r, k in np.ndindex(2, ROWS, 21):
        seen = weights[:, k].reshape(2, 3 * LANES)[:, starts[t] : starts[t] + LANES]
        expected[:, places[r]] += image[rows[t, r] + k // LANES * 80 + k % LANES] * seen
    expected[vectors:] = 7  # left as they are
    function = multiply_in_float if dtype == FLOAT32 else multiply_in_double
    indices = np.concatenate([rows.reshape(-1), starts, [vectors]])
    for run in (natively(function), function):
        got = np.full((2, ROWS, LANES), 7, dtype)
        run(*(array.ctypes.data for array in (image, indices, weights, places, got)))
        np.testing.assert_array_equal(got, expected)


def add_products_in_float(sums: int, image: int, grad: int, vectors: int) -> None:
    """Sums for the second of three taps, over three samples and two lines of three places."""
    given = array_at(sums, 2 * ROWS * 3 * LANES, np.float32), 1, 3, array_at(image, 2000, np.float32), 16, 900
    steps = (300, 0, 96, 32), (200, 0, 48, 16)
    add_outer_products(*given, array_at(grad, 600, np.float32), 8, (3, 1, 2, 3), *steps, vectors)


def add_products_in_double(sums: int, image: int, grad: int, vectors: int) -> None:
    given = array_at(sums, 2 * ROWS * 3 * LANES, np.float64), 1, 3, array_at(image, 2000, np.float64), 16, 900
    steps = (300, 0, 96, 32), (200, 0, 48, 16)
    add_outer_products(*given, array_at(grad, 600, np.float64), 8, (3, 1, 2, 3), *steps, vectors)


@pytest.mark.parametrize("vectors", [1, PANEL])
@pytest.mark.parametrize("dtype", [FLOAT32, of_doubles(FLOAT64)], ids=str)
def test_sums_of_outer_products(dtype: npt.DTypeLike, vectors: int) -> None:
    """Sums of whole numbers, which are exact."""
    rng = np.random.default_rng(29)
    image, grad = rng.integers(-9, 9, 2000).astype(dtype), rng.integers(-9, 9, 600).astype(dtype)
    expected = np.ones((ROWS, 2, 3, LANES), dtype)
    for n, i, j in np.ndindex(3, 2, 3):
        x, g = 16 + 300 * n + 96 * i + 32 * j, 8 + 200 * n + 48 * i + 16 * j
        for r, v in np.ndindex(ROWS, vectors):
            expected[r, v, 1] += grad[g + r] * image[x + 900 * v : x + 900 * v + LANES]
    function = add_products_in_float if dtype == FLOAT32 else add_products_in_double
    for run in (natively(function, 4), function):
        got = np.ones((ROWS, 2, 3, LANES), dtype)
        run(*(array.ctypes.data for array in (got, image, grad)), vectors)
        np.testing.assert_array_equal(got, expected)


def dot_products_in_float(sums: int, a: int, b: int, starts: int, vectors: int) -> None:
    """Products for the third tile of sums, of rows from the second on."""
    given = array_at(sums, 4 * ROWS * COLUMNS * LANES, np.float32), 2 * ROWS * COLUMNS, array_at(a, 900, np.float32)
    rows, columns = array_at(starts, ROWS + 1, np.int64), array_at(starts + 8 * (ROWS + 1), COLUMNS + 1, np.int64)
    add_dot_products(*given, rows, 1, array_at(b, 900, np.float32), columns, 1, vectors)


def dot_products_in_double(sums: int, a: int, b: int, starts: int, vectors: int) -> None:
    given = array_at(sums, 4 * ROWS * COLUMNS * LANES, np.float64), 2 * ROWS * COLUMNS, array_at(a, 900, np.float64)
    rows, columns = array_at(starts, ROWS + 1, np.int64), array_at(starts + 8 * (ROWS + 1), COLUMNS + 1, np.int64)
    add_dot_products(*given, rows, 1, array_at(b, 900, np.float64), columns, 1, vectors)


@pytest.mark.parametrize("vectors", [0, 1, 5])
@pytest.mark.parametrize("dtype", [FLOAT32, of_doubles(FLOAT64)], ids=str)
def test_tile_of_dot_products(dtype: npt.DTypeLike, vectors: int) -> None:
    """Sums of whole numbers, which are exact."""
    rng = np.random.default_rng(31)
    a, b = rng.integers(-9, 9, 900).astype(dtype), rng.integers(-9, 9, 900).astype(dtype)
    starts = rng.integers(0, 800, ROWS + COLUMNS + 2)
    expected = np.ones((4, ROWS, COLUMNS, LANES), dtype)
    for r, c, t in np.ndindex(ROWS, COLUMNS, vectors):
        x, y = starts[1 + r] + t * LANES, starts[ROWS + 2 + c] + t * LANES
        expected[2, r, c] += a[x : x + LANES] * b[y : y + LANES]
    function = dot_products_in_float if dtype == FLOAT32 else dot_products_in_double
    for run in (natively(function, 5), function):
        got = np.ones((4, ROWS, COLUMNS, LANES), dtype)
        run(*(array.ctypes.data for array in (got, a, b, starts)), vectors)
        np.testing.assert_array_equal(got, expected)


def softmax_terms_in_float(numbers: int, out: int) -> None:
    """The largest of 32 numbers, from the third on, and exponentials of differences."""
    given, found = array_at(numbers, 50, np.float32), array_at(out, 49, np.float32)
    found[48] = largest(given, 2, 32)
    for i in range(48):
        found[i] = exp_of_difference(given[i + 2] - found[48])


def softmax_terms_in_double(numbers: int, out: int) -> None:
    given, found = array_at(numbers, 50, np.float64), array_at(out, 49, np.float64)
    found[48] = largest(given, 2, 32)
    for i in range(48):
        found[i] = exp_of_difference(given[i + 2] - found[48])


@pytest.mark.parametrize("dtype", [FLOAT32, of_doubles(FLOAT64)], ids=str)
def test_terms_of_a_softmax(dtype: np.dtype[Any]) -> None:
    """NaN is not the largest; below exp(-87) or exp(-708) is 0, above exp(87) or exp(708) infinite."""
    numbers = np.random.default_rng(30).uniform(-100, 2, 50).astype(dtype)
    numbers[[1, 7, 20, 21, 40, 41, 42]] = 9, np.nan, 5, -np.inf, -2000, 91, 2000
    function = softmax_terms_in_float if dtype == FLOAT32 else softmax_terms_in_double
    differences = (numbers[2:] - dtype.type(5)).astype(np.longdouble)
    lowest, ulp = (-87, 2.0**-23) if dtype == FLOAT32 else (-708, 2.0**-51)
    for run in (natively(function, 2), function):
        got = np.zeros(49, dtype)
        with np.errstate(all="ignore"):
            run(*(array.ctypes.data for array in (numbers, got)))
        assert got[48] == 5
        expected = np.where(differences < lowest, 0, np.where(differences > -lowest, np.inf, np.exp(differences)))
        np.testing.assert_allclose(got[:48].astype(np.longdouble), expected, rtol=ulp)


def lanes_in_float(numbers: int, other: int, out: int, count: int) -> None:
    """The largest and the sum of each lane, and what is left after a subtraction and a division."""
    a, b = array_at(numbers, 5 * LANES, np.float32), array_at(other, 5 * LANES, np.float32)
    found = array_at(out, 5 * LANES, np.float32)
    largest_by_lane(a, count, found)
    sum_by_lane(a, count, tail(found, LANES))
    subtract_by_lane(b, count, found)
    divide_by_lane(b, count, tail(found, LANES))


def lanes_in_double(numbers: int, other: int, out: int, count: int) -> None:
    a, b = array_at(numbers, 5 * LANES, np.float64), array_at(other, 5 * LANES, np.float64)
    found = array_at(out, 5 * LANES, np.float64)
    largest_by_lane(a, count, found)
    sum_by_lane(a, count, tail(found, LANES))
    subtract_by_lane(b, count, found)
    divide_by_lane(b, count, tail(found, LANES))


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize(("function", "dtype"), [(lanes_in_float, FLOAT32), (lanes_in_double, FLOAT64)])
def test_lanes_are_combined(function: Any, dtype: npt.DTypeLike, count: int) -> None:
    """Whole numbers, so that no sum is rounded; NaN is not the largest; vectors behind the last one are not touched."""
    rng = np.random.default_rng(31)
    given, other = (rng.integers(-9, 10, (5, LANES)).astype(dtype) for _ in range(2))
    given[1, 3], given[0, 4] = np.nan, -np.inf
    a, expected = given[:count], other.copy()
    with np.errstate(all="ignore"):
        most, total = np.fmax.reduce(a, axis=0, initial=-np.inf), a.sum(axis=0)
        expected[:count] = (other[:count] - most) / total
    for run in (natively(function, 4), function):
        numbers, got = other.copy(), np.zeros((5, LANES), dtype)
        with np.errstate(all="ignore"):
            run(*(array.ctypes.data for array in (given, numbers, got)), count)
        np.testing.assert_array_equal(got[:2], [most, total])
        np.testing.assert_array_equal(numbers, expected)


# --- the processor that is compiled for ------------------------------------------------------------------------------


def thirds_in_place(address: int, count: int) -> None:
    numbers = floats_at(address, count)
    for i in range(count):
        numbers[i] = numbers[i] / np.float32(3)


def test_loops_have_the_widest_vectors() -> None:
    if "+avx512f" not in native.FEATURES:
        pytest.skip("this processor has no registers of 512 bits")
    function = thirds_in_place, types.void(types.int64, types.int64)
    compiler.compile_native(*function)
    _, bitcode = compiler.optimized(function)
    assert "fdiv <16 x float>" in str(binding.parse_bitcode(bitcode)).replace("contract ", "")


def test_what_a_program_compiles_itself_is_as_before() -> None:
    """Also what it calls of a function that kernels call, whose code is not in this process."""
    codegen = cpu_target.target_context.codegen()
    with code_generation.selected() as own:
        assert cpu_target.target_context.codegen() is own is not codegen
    assert cpu_target.target_context.codegen() is codegen
    compiler.compile_native(called_by_both, types.void(types.int64, types.int64))
    assert numba.njit(lambda x: third(x) + 1)(np.float32(6)) == 3


@register_jitable(**native.OPTIONS)
def third(x: np.float32) -> np.float32:
    return x / np.float32(3)


def called_by_both(address: int, count: int) -> None:
    numbers = floats_at(address, count)
    for i in range(count):
        numbers[i] = third(numbers[i])
