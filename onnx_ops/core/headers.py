"""The headers for programs in C and C++ that train with the steps of this package."""

from __future__ import annotations

from pathlib import Path


def include_directory() -> str:
    """The folder with the headers onnx_ops/trainer.hpp and onnx_ops/onnx_ops_trainer.h, for a compiler's option -I."""
    return str(Path(__file__).parents[1] / "include")
