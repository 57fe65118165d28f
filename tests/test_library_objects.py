"""Which functions a library has, and for which processors."""

from __future__ import annotations

import platform

import pytest

from onnx_ops.library.functions import functions
from onnx_ops.library.objects import NATIVE, LibraryError, levels
from onnx_ops.ops import OPS

(LEVEL,) = levels([NATIVE])


def test_functions_have_the_same_numbers_each_time() -> None:
    ops = [OPS["Hardshrink"], OPS["KlDiv"]]
    assert functions(ops) == functions(ops)
    assert set(functions(ops[:1])) < set(functions(ops))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the levels are those of x86-64")
def test_levels() -> None:
    """The lowest first; native code needs the highest level whose features this processor has."""
    assert [level.name for level in levels()] == ["baseline", "v3", "v4"]
    assert [level.name for level in levels([NATIVE, "v4", "v3"])] == ["v3", "v4", NATIVE]
    assert LEVEL.needs in ("", "v2", "v3", "v4")
    with pytest.raises(LibraryError, match="processors are 'v5', expected some of baseline, v3, v4, native"):
        levels(["v5"])
