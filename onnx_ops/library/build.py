"""Builds a library."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from onnx_ops.core.op import Op
from onnx_ops.library import translation
from onnx_ops.library.functions import functions
from onnx_ops.library.objects import LibraryError, check_llvmlite, levels, own_target, write_objects
from onnx_ops.library.records import header
from onnx_ops.library.tables import tables
from onnx_ops.ops import ALL_VERSIONS

NATIVE_SOURCES = Path(__file__).parent / "native"
COMPILERS: Sequence[str] = ("cc", "gcc", "clang")
OPTIONS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off")
SYSTEM_OPTIONS = {
    "linux": ("-s", "-static-libgcc", "-Wl,-z,defs", "-Wl,-z,noexecstack", "-lm", "-lpthread"),
    "macos": ("-lm",),
}
GLIBC = "2.28"
"""The oldest that libraries for other machines need, as the wheels of onnxruntime do."""


def compiler(target: str) -> list[str]:
    """The command of a C compiler: that of the variable CC, of the system, or of the package ziglang.

    Raises:
        LibraryError: there is none.
    """
    if chosen := shlex.split(os.environ.get("CC", "")):
        return chosen
    names, zig = COMPILERS, [sys.executable, "-m", "ziglang", "cc"]
    if target != own_target():
        is_linux = target.endswith("-linux")
        names = [f"{target}-gnu-gcc"] if is_linux else []
        zig += ["-target", f"{target}-gnu.{GLIBC}" if is_linux else target]
    if found := next(filter(None, map(shutil.which, names)), None):
        return [found]
    if importlib.util.find_spec("ziglang"):
        return zig
    expected = ", ".join((*names, "the package ziglang"))
    raise LibraryError(f"there is no C compiler for {target}: install one of {expected}, or set CC")


def build(path: Path, ops: Sequence[Op] = ALL_VERSIONS, cpus: Sequence[str] = (), target: str = "") -> None:
    """Write a library of ops, atomically.

    Args:
        path: of the library.
        ops: all of them by default.
        cpus: names of the levels that functions are compiled for, as `objects.levels` takes them.
        target: architecture and system, as `objects.levels` takes them.

    Raises:
        LibraryError: there is no compiler, or it fails; llvmlite is too old.
        OSError: a file cannot be written.
    """
    target = target or own_target()
    chosen, command = levels(cpus, target), compiler(target)
    check_llvmlite()
    own = functions(ops)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = [file for level in chosen for file in write_objects(folder, own, level)]
        (folder / "runtime.h").write_text(header())
        generated = {"tables.c": tables(ops, own, chosen), "translated.c": translation.source(ops, own)}
        for file, text in generated.items():
            (folder / file).write_text(text)
        sources = [*sorted(NATIVE_SOURCES.glob("*.c")), *(folder / file for file in generated)]
        made, listed = folder / path.name, folder / "objects.txt"
        listed.write_text("\n".join(map(shlex.quote, map(str, objects))))
        options = (*OPTIONS, f"-I{NATIVE_SOURCES}", f"-I{folder}", "-o", str(made))
        done = subprocess.run(
            [*command, *options, *map(str, sources), f"@{listed}", *SYSTEM_OPTIONS.get(target.partition("-")[2], ())],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise LibraryError(f"{shlex.join(command)} fails:\n{done.stderr.strip()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.new")
        shutil.copyfile(made, partial)
        os.replace(partial, path)
