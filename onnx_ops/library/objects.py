"""Object code of compiled functions, for processors that may differ from this one.

Numba compiles for the processor that environment variables name, so each level has a process of its own
(`python -m onnx_ops.library.objects`), which fills the kernel cache on all cores and writes object files from the
optimized LLVM IR that is kept there.
"""

from __future__ import annotations

import os
import pickle
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
from numba.core.registry import cpu_target
from packaging.version import Version

from onnx_ops.core.errors import Error
from onnx_ops.runtime.ahead import compile_ahead
from onnx_ops.runtime.code_generation import hide_all_but
from onnx_ops.runtime.compiler import Function, compile_native, is_kept, optimized
from onnx_ops.runtime.loops.compilation import available_cores
from onnx_ops.runtime.target import VARIABLE as TRIPLE


class LibraryError(Error, RuntimeError):
    """The library cannot be built."""


LLVMLITE = "0.45"
"""The first that can remove the functions that nothing calls."""
V2 = "+cx16,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3"
V3 = f"{V2},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
V4 = f"{V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl"


def check_llvmlite() -> None:
    """Raise LibraryError if llvmlite is too old for object code; kernels need an older one only."""
    if Version(llvmlite.__version__) < Version(LLVMLITE):
        raise LibraryError(
            f"libraries are built with llvmlite {LLVMLITE} or newer, which numba 0.62 has; {llvmlite.__version__} is"
            " installed"
        )


@dataclass(frozen=True)
class Level:
    """A kind of processor that code is made for.

    Attributes:
        name: part of the names of symbols.
        needs: level of the x86-64 psABI that a processor must have to run the code; "" for any.
        cpu: its name in LLVM; None for the processor of this machine.
        features: LLVM's names of its features, each with a +.
        triple: LLVM's name of architecture and system of the object code; None for those of this process.
    """

    name: str
    needs: str = ""
    cpu: str | None = None
    features: str = ""
    triple: str | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which Numba compiles for it."""
        own = {"NUMBA_CPU_NAME": self.cpu, "NUMBA_CPU_FEATURES": self.features} if self.cpu else {}
        if self.triple:
            own[TRIPLE] = self.triple if "-linux-" in self.triple else TARGETS["aarch64-linux"]
        return {"NUMBA_DISABLE_INTEL_SVML": "1", **own}


LEVELS: Mapping[str, Sequence[Level]] = {
    "x86_64": (
        Level("baseline", "v2", "x86-64-v2", V2),
        Level("v3", "v3", "x86-64-v3", V3),
        Level("v4", "v4", "x86-64-v4", V4),
    ),
    "aarch64": (Level("baseline", "", "generic", "+neon"),),
}
"""By architecture, the lowest first: the levels of the x86-64 psABI, and ARMv8-A."""
NATIVE = "native"
"""The level that is this very processor."""
TARGETS = {
    "aarch64-linux": "aarch64-unknown-linux-gnu",
    "aarch64-macos": "arm64-apple-macosx11.0",
    "x86_64-linux": "x86_64-unknown-linux-gnu",
}
"""LLVM's triples of the machines for which others can build, by architecture and system.

What is compiled is linked into the process too, as ELF: for macOS it is compiled for Linux, and the object code is for
macOS.
"""
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Other names of architectures."""
SYSTEMS = {"darwin": "macos", "win32": "windows"}
"""Names of systems that differ from `sys.platform`."""


def own_target() -> str:
    """Architecture and system of this process."""
    machine = platform.machine().lower()
    return f"{ARCHITECTURES.get(machine, machine)}-{SYSTEMS.get(sys.platform, sys.platform)}"


def levels(names: Sequence[str] = (), target: str = "") -> list[Level]:
    """The levels of a target's architecture with these names, the lowest first; all but "native" by default.

    Args:
        names: of levels; "native" is one of this machine alone.
        target: architecture and system, this machine's by default.

    Raises:
        LibraryError: there is none of a name.
    """
    machine = own_target()
    target = target or machine
    if target not in (machine, *TARGETS):
        raise LibraryError(f"the target is '{target}', expected one of {', '.join(sorted({machine, *TARGETS}))}")
    known = list(LEVELS.get(target.partition("-")[0], ()))
    if target == machine:
        own = llvm.get_host_cpu_features()
        least = [level.needs for level in known if all(own.get(name[1:]) for name in level.features.split(","))]
        known.append(Level(NATIVE, least[-1] if least else ""))
    else:
        known = [replace(level, triple=TARGETS[target]) for level in known]
    found = [level for level in known if (level.name in names if names else level.name != NATIVE)]
    if not found or not {*names} <= {level.name for level in known}:
        expected = ", ".join(level.name for level in known)
        raise LibraryError(f"processors are '{','.join(names)}', expected some of {expected} for {target}")
    return found


def symbol(level: Level, number: int, function: Function) -> str:
    """The name of a function in the library."""
    return f"oo_{level.name}_{number}_{function[0].__name__}"


def write_objects(folder: Path, functions: Sequence[Function], level: Level) -> list[Path]:
    """Write an object file of each function to a folder.

    Raises:
        LibraryError: a function cannot be compiled, or needs more than the C library.
    """
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "onnx_ops.library.objects"],
        input=pickle.dumps((folder, functions, level)),
        capture_output=True,
        env={**os.environ, **level.environment, "PYTHONPATH": paths},
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        for_what = level.triple or level.cpu or "this processor"
        raise LibraryError(f"functions cannot be compiled for {for_what}: {last}")
    return [_path(folder, level, number, function) for number, function in enumerate(functions)]


def _path(folder: Path, level: Level, number: int, function: Function) -> Path:
    return folder / f"{symbol(level, number, function)}.o"


# --- in the process of a level ---------------------------------------------------------------------------------------

OF_C = re.compile(
    r"(a?(cos|sin|tan)h?|atan2|cbrt|erfc?|exp(2|m1)?|fabs|fm(a|ax|in|od)|hypot|lgamma|log(10|1p|2)?|pow|sqrt|tgamma"
    r"|ceil|floor|nearbyint|rint|round|trunc)f?|malloc|free|mem(cpy|move|set)"
)
"""What functions may call: of libm and libc."""
OF_NUMBA = frozenset({"NRT_MemInfo_call_dtor", "numba_frexp", "numba_frexpf", "numba_ldexp", "numba_ldexpf"})
"""C functions of Numba that `native/support.c` has."""


def emitted(function: Function, name: str, triple: str | None) -> bytes:
    """Position-independent object code of a function, with the C signature, under a name that only the library sees.

    Args:
        function: the function.
        name: its name in the library.
        triple: that of the object code; None for the one that Numba compiles for.

    Raises:
        LibraryError: it calls what is in neither libm nor libc.
    """
    if not is_kept(function):
        compile_native(*function)
    own_name, code = optimized(function)
    module = llvm.parse_bitcode(code)
    module.get_function(own_name).name = name
    hide_all_but(module, name)
    module.get_function(name).visibility = "hidden"
    machine = _target_machine(triple)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    module.verify()
    called = (*module.functions, *module.global_variables)
    names = {value.name for value in called if value.is_declaration and not value.name.startswith("llvm.")} - OF_NUMBA
    if unknown := sorted(name for name in names if not OF_C.fullmatch(name)):
        raise LibraryError(f"{function[0].__module__}.{function[0].__name__} needs {', '.join(unknown)}")
    return bytes(machine.emit_object(module))


def _target_machine(triple: str | None) -> llvm.TargetMachine:
    compiled, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    target = llvm.Target.from_triple(triple or compiled)
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default")


def _write(task: tuple[Function, str, str | None, Path]) -> None:
    function, name, triple, path = task
    path.write_bytes(emitted(function, name, triple))


def _main() -> None:
    folder, functions, level = pickle.load(sys.stdin.buffer)
    compile_ahead(functions)
    tasks = [
        (function, symbol(level, number, function), level.triple, _path(folder, level, number, function))
        for number, function in enumerate(functions)
    ]
    with ProcessPoolExecutor(available_cores(), get_context("spawn")) as pool:
        list(pool.map(_write, tasks, chunksize=8))


if __name__ == "__main__":
    _main()
