"""Which functions a library has, and for which processors."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import built_library
import pytest

from onnx_ops.library.build import build
from onnx_ops.library.functions import functions
from onnx_ops.library.objects import NATIVE, TARGETS, LibraryError, levels, own_target, write_objects
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


def test_levels_of_other_machines() -> None:
    """They do not have one for this very processor."""
    (other,) = {"aarch64-linux", "x86_64-linux"} - {own_target()}
    assert [level.triple for level in levels(target=other)] == [TARGETS[other]] * len(levels(target=other))
    with pytest.raises(LibraryError, match=f"processors are 'native', expected some of baseline.* for {other}"):
        levels([NATIVE], other)
    with pytest.raises(LibraryError, match="the target is 'vax', expected one of aarch64-linux, "):
        levels(target="vax")


# How a file begins: with the format, and at some place the machine.
ELF, MACH_O = (b"\x7fELF\x02\x01", 18), (b"\xcf\xfa\xed\xfe", 4)


@pytest.mark.skipif(not built_library.can_be_built(), reason="a library cannot be built here")
@pytest.mark.parametrize(
    ("target", "kind", "machine"),
    [
        ("aarch64-linux", ELF, b"\xb7\x00"),
        pytest.param("aarch64-macos", MACH_O, b"\x0c\x00\x00\x01", marks=pytest.mark.full),
        pytest.param("x86_64-linux", ELF, b"\x3e\x00", marks=pytest.mark.full),
    ],
)
def test_objects_of_other_machines(target: str, kind: tuple[bytes, int], machine: bytes, tmp_path: Path) -> None:
    """Here of callbacks."""
    begin, place = kind
    for path in write_objects(tmp_path, functions([OPS["Hardshrink"]])[1:4], levels(target=target)[0]):
        content = path.read_bytes()
        assert content.startswith(begin)
        assert content[place:].startswith(machine)
        assert path.stem.encode() in content


LOADING = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

static const void *no_api(uint32_t version) { return version ? NULL : ""; }
static const char *version(void) { return "1.23.0"; }

int main(int count, char **arguments) {
    struct { const void *(*get_api)(uint32_t); const char *(*get_version)(void); } base = {no_api, version};
    void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    void *(*register_ops)(void *, const void *) = library ? dlsym(library, "RegisterCustomOps") : NULL;
    puts(register_ops ? "found" : dlerror());
    return !register_ops || register_ops(NULL, &base);
}
"""


@pytest.mark.full
def test_library_for_arm_is_loaded_under_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that it needs; `make wheel` runs its kernels."""
    gcc, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64-static")
    if not gcc or not emulator:
        pytest.skip("there is no aarch64-linux-gnu-gcc, or no qemu-aarch64-static")
    monkeypatch.setenv("CC", gcc)
    library, program = tmp_path / "library.so", tmp_path / "program"
    build(library, [OPS["Hardshrink"]], target="aarch64-linux")
    (tmp_path / "program.c").write_text(LOADING)
    subprocess.run([gcc, tmp_path / "program.c", "-o", program, "-ldl"], check=True)
    done = subprocess.run(
        [emulator, "-L", "/usr/aarch64-linux-gnu", program, library], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("found\n", 0)
