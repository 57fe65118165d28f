"""Compiles programs in C++ that train; they are linked with onnxruntime's library of its Python package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime

import onnx_ops

CAPI = Path(onnxruntime.__file__).parent / "capi"
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-s")
NAME = "libonnxruntime.so.1"
"""The name by which programs look for the library, which its file in the Python package does not have."""


class MissingError(Exception):
    """A compiler, or onnxruntime's library, is not installed."""


def compiled(source: Path, folder: Path, *flags: str) -> Path:
    """Compile a C++ file into a program, or with flags for that into a shared library.

    Args:
        source: the file.
        folder: an existing folder, of the result and a link to onnxruntime's library.
        flags: of the compiler.

    Raises:
        MissingError: no compiler, or no library.
    """
    found = sorted(CAPI.glob("libonnxruntime.so.*"))
    if sys.platform != "linux" or not found:
        raise MissingError(f"the package onnxruntime has no libonnxruntime.so in {CAPI}")
    if COMPILER is None:
        raise MissingError("there is no C++ compiler")
    if not (folder / NAME).exists():
        (folder / NAME).symlink_to(found[0])
    command = [COMPILER, *FLAGS, *flags, f"-I{onnx_ops.include_directory()}", str(source), str(found[0])]
    subprocess.run([*command, f"-Wl,-rpath,{folder}", "-o", str(folder / source.stem)], check=True)
    return folder / source.stem
