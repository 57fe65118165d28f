"""The library of the kernels for this processor, which all processes of the tests share."""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np

import onnx_ops
from onnx_ops.integrations.prebuilt import library_name
from onnx_ops.library.build import build, compiler
from onnx_ops.library.objects import NATIVE, LibraryError, check_llvmlite, own_target
from tests.builds import built

PACKAGE = Path(onnx_ops.__file__).parent
FOLDERS = ("core", "library", "loops", "ops", "runtime")
"""Those of the package that a library is made of."""


def can_be_built() -> bool:
    """Whether there are a C compiler and an llvmlite that is new enough."""
    try:
        check_llvmlite()
        compiler(own_target())
    except LibraryError:
        return False
    return True


@functools.cache
def library() -> Path:
    """The library of all ops. The first process that needs it builds it, unless there is one of the same sources."""
    name = library_name()
    return built("library", _made_of(), lambda folder: build(folder / name, cpus=[NATIVE])) / name


def _made_of() -> str:
    """A hash of what a library depends on."""
    versions = [sys.version, np.__version__, numba.__version__, llvmlite.__version__]
    machine = [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), *compiler(own_target())]
    digest = hashlib.sha256(" ".join(versions + machine).encode())
    for file in sorted(file for name in FOLDERS for file in (PACKAGE / name).rglob("*.*") if file.suffix != ".pyc"):
        digest.update(file.read_bytes())
    return digest.hexdigest()
