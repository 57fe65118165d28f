"""Vectors in plain Python and compiled, and tables, on processors that have instructions for them and others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from llvmlite import binding
from native import natively

from onnx_ops.loops.memory import LANES, array_at, bfloats_at, floats_at, halves_at
from onnx_ops.loops.primitives import fma
from onnx_ops.loops.tables import log_parts, softplus_approx, softplus_parts
from onnx_ops.loops.vectors import (
    QUAD,
    Table,
    any_negative,
    as_floats,
    bits,
    by_sign,
    floats,
    greater,
    lesser,
    load,
    load_wide,
    prefetch,
    scratch,
    spread,
    store,
    total,
)

Array = np.ndarray[Any, Any]
ROOM, TWICE = 16, 2 * LANES
THIRD, HALF = np.float32(1 / 3), np.float32(0.5)


def arithmetic(a: int, b: int, out: int) -> None:
    """Each operation once, the results one after the other."""
    x, y = load(floats_at(a, LANES), 0), load(floats_at(b, LANES), 0)
    results = array_at(out, ROOM * LANES, np.float32)
    store(x + y, results, 0)
    store(x - y * HALF, results, LANES)
    store(-x * y, results, 2 * LANES)
    store(fma(x, y, spread(-THIRD)), results, 3 * LANES)
    store(lesser(x, y), results, 4 * LANES)
    store(greater(x, y), results, 5 * LANES)
    store(by_sign(x, abs(x), y), results, 6 * LANES)
    store(as_floats(bits(x) >> 20), results, 7 * LANES)
    store(floats((bits(x) & 0x7FFFFF) | (127 << 23)), results, 8 * LANES)
    store(floats(lesser(bits(x), bits(y)) << 1), results, 9 * LANES)
    store(spread(THIRD), results, 10 * LANES)
    room = scratch(TWICE)
    store(x, room, LANES)
    prefetch(room, LANES)
    prefetch(room, 1 << 50)  # where nothing is
    store(load(room, LANES), results, 11 * LANES)


def test_arithmetic() -> None:
    rng = np.random.default_rng(31)
    x, y = rng.normal(size=(2, LANES)).astype(np.float32)
    x[:5], y[:5] = [np.inf, -0.0, 0.0, np.nan, -3.0], [1.0, 2.0, -0.0, 4.0, np.nan]
    with np.errstate(all="ignore"):
        product = x.astype(np.longdouble) * y
        word = x.view(np.int32)
        expected = [
            x + y,
            x - y / 2,
            -x * y,
            (product - THIRD).astype(np.float32),
            [a if a < b else b for a, b in zip(x, y, strict=True)],
            [a if a > b else b for a, b in zip(x, y, strict=True)],
            [abs(a) if np.signbit(a) else b for a, b in zip(x, y, strict=True)],
            (word // 2**20).astype(np.float32),
            np.where(np.isfinite(x) & (x != 0), np.frexp(abs(x))[0] * 2, (word % 2**23 + 2**23) / 2.0**23),
            (np.minimum(word, y.view(np.int32)) * 2).view(np.float32),
            np.full(LANES, THIRD),
            x,
        ]
    for run in (natively(arithmetic, 3), arithmetic):
        out = np.zeros((ROOM, LANES), np.float32)
        with np.errstate(all="ignore"):
            run(x.ctypes.data, y.ctypes.data, out.ctypes.data)
        np.testing.assert_array_equal(out[: len(expected)], np.asarray(expected, np.float32))
        assert not out[len(expected) :].any()


def wide_sums(a: int, out: int) -> None:
    x, results = floats_at(a, LANES), array_at(out, 4, np.float64)
    sums = spread(0.0)
    for i in range(0, LANES, QUAD):
        sums = fma(load_wide(x, i), load_wide(x, i), sums) - load_wide(x, i)
    results[0] = total(sums)
    results[1] = total(load(x, 0))
    results[2] = 1.0 if any_negative(bits(load(x, 0))) else 0.0
    results[3] = 1.0 if any_negative(bits(abs(load(x, 0)))) else 0.0


def test_sums_in_float64() -> None:
    """Of numbers whose sum and squares are exact in float64, and not in float32."""
    x = (np.arange(LANES) * 2.0**20 - 2.0**-3).astype(np.float32)
    for run in (natively(wide_sums, 2), wide_sums):
        out = np.zeros(4)
        run(x.ctypes.data, out.ctypes.data)
        wide = x.astype(np.float64)
        assert out.tolist() == [(wide * wide - wide).sum(), wide.sum(), 1.0, 0.0]


def widened(halves: int, bfloats: int, out: int) -> None:
    results = array_at(out, 2 * LANES, np.float32)
    store(load(halves_at(halves, 2 * LANES), 3), results, 0)
    store(load(bfloats_at(bfloats, 2 * LANES), 3), results, LANES)


def test_sixteen_bits_are_widened() -> None:
    """Subnormal, infinite and NaN ones too, from a place that no vector begins at."""
    patterns = np.array([0, 1, 0x8001, 0x7C00, 0x7F80, 0x7FC0, 0x3C00, 0xBF80, *range(5, 29)], np.uint16)
    halves, bfloats = patterns.view(np.float16), patterns.view(ml_dtypes.bfloat16)
    expected = [a.astype(np.float32)[3 : 3 + LANES] for a in (halves, bfloats)]
    for run in (natively(widened, 3), widened):
        out = np.zeros((2, LANES), np.float32)
        run(halves.ctypes.data, bfloats.ctypes.data, out.ctypes.data)
        np.testing.assert_array_equal(out, expected)


# --- tables --------------------------------------------------------------------------------------------------------

ONE_TABLE, TWO_TABLES = Table(range(LANES)), Table(np.sqrt(np.arange(2 * LANES)))


def looked_up(index: int, out: int) -> None:
    places, results = bits(load(floats_at(index, LANES), 0)), array_at(out, 2 * LANES, np.float32)
    store(ONE_TABLE[places], results, 0)
    store(TWO_TABLES[places], results, LANES)


def test_tables_are_looked_up_by_the_low_bits() -> None:
    index = np.random.default_rng(32).integers(-(2**31), 2**31, LANES).astype(np.int32)
    expected = [index % LANES, np.sqrt(index % (2 * LANES)).astype(np.float32)]
    for run in (natively(looked_up, 2), looked_up):
        out = np.zeros((2, LANES), np.float32)
        run(index.ctypes.data, out.ctypes.data)
        np.testing.assert_array_equal(out, expected)


def logarithms(a: int, count: int, out: int) -> None:
    x, results = floats_at(a, count), array_at(out, 2 * count, np.float32)
    for i in range(0, count, LANES):
        high, low = log_parts(load(x, i))
        store(high, results, i)
        store(low, results, count + i)


def test_logarithms_by_table() -> None:
    """Of all exponents, on both sides of the bounds of each interval, near 1, and of random numbers."""
    mantissas = 1 + np.arange(LANES) / LANES
    near = np.float32([np.nextafter(np.float32(m), np.float32(s)) for m in mantissas for s in (0, m, 3)])
    x = np.concatenate([np.ldexp(near, k) for k in range(-125, 127)]).astype(np.float32)
    x = np.concatenate([x, np.exp(np.random.default_rng(33).uniform(-80, 80, 20000)).astype(np.float32)])
    x = np.concatenate([x, np.ones(-len(x) % LANES, np.float32)])
    for run, values in ((natively(logarithms, 3), x), (logarithms, x[:: len(x) // 512][: 30 * LANES].copy())):
        out = np.zeros((2, len(values)), np.float32)
        run(values.ctypes.data, len(values), out.ctypes.data)
        error = out.astype(np.longdouble).sum(axis=0) - np.log(values.astype(np.longdouble))
        assert abs(error).max() < 2e-9


def softplus(a: int, count: int, out: int) -> None:
    x, results = floats_at(a, count), array_at(out, 3 * count, np.float32)
    for i in range(0, count, LANES):
        high, low = softplus_parts(load(x, i))
        store(high, results, i)
        store(low, results, count + i)
        store(softplus_approx(load(x, i)), results, 2 * count + i)


def test_softplus_by_table() -> None:
    x = np.linspace(0, 30, 6400).astype(np.float32)
    for run, values in ((natively(softplus, 3), x), (softplus, x[::10].copy())):
        out = np.zeros((3, len(values)), np.float32)
        run(values.ctypes.data, len(values), out.ctypes.data)
        expected, exact = np.log1p(np.exp(-values.astype(np.longdouble))), out.astype(np.longdouble)
        for found, last, error, rest in ((exact[0] + exact[1], 23, 2e-8, 1.1e-10), (exact[2], 15.5, 3e-5, 2e-7)):
            near = values < last
            assert abs(found / expected - 1)[near].max() < error
            assert 0 < found[~near].min() <= found[~near].max() < rest


FEATURES = dict(binding.get_host_cpu_features())


@pytest.mark.parametrize(
    "processor", ["without AVX-512", pytest.param("without vectors of its own", marks=pytest.mark.full)]
)
def test_other_processors(processor: str, tmp_path: Path) -> None:
    """The tests of tables again, compiled for a processor that lacks instructions of this one."""
    if binding.llvm_version_info < (20,) and processor == "without vectors of its own":
        pytest.skip("Numba before 0.62 needs instructions for float16")
    features = ""
    if processor == "without AVX-512":
        if not FEATURES.get("avx2"):
            pytest.skip("this processor has no AVX2")
        features = ",".join(f"{'+' if has and '512' not in name else '-'}{name}" for name, has in FEATURES.items())
    chosen = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features, "ONNX_OPS_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-k", "not other_processors", __file__]
    done = subprocess.run(command, env=os.environ | chosen, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
