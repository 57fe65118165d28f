"""The object code of a library: what it exports, and what it needs."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from onnx_ops.library.functions import functions
from onnx_ops.library.objects import NATIVE, LibraryError, levels, symbol, write_objects
from onnx_ops.ops import OPS

(LEVEL,) = levels([NATIVE])
OF_C = {"free", "malloc", "memcpy", "memset"}


def test_objects_need_the_c_library_alone(tmp_path: Path) -> None:
    """Neither Python nor Numba."""
    if not (nm := shutil.which("nm")):
        pytest.skip("there is no nm")
    own = functions([OPS["Hardshrink"]])
    needed = set()
    for number, path in enumerate(write_objects(tmp_path, own, LEVEL)):
        listed = subprocess.run([nm, "-P", str(path)], capture_output=True, text=True, check=True).stdout
        kinds = {name: kind for name, kind, *_ in map(str.split, listed.splitlines())}
        assert [name for name, kind in kinds.items() if kind == "T"] == [symbol(LEVEL, number, own[number])]
        needed |= {name for name, kind in kinds.items() if kind == "U"}
    assert needed
    assert needed <= OF_C


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
