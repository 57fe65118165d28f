"""The functions of Python that the library has as native code."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_ops.core.op import Op
from onnx_ops.integrations.precompile import all_functions
from onnx_ops.ops import ALL_VERSIONS
from onnx_ops.runtime import callbacks, heap_callbacks, reuse
from onnx_ops.runtime.compiler import Function
from onnx_ops.runtime.declarations import declarations
from onnx_ops.runtime.launch import compute
from onnx_ops.runtime.signatures import COMPUTE

COMPUTE_FUNCTION: Function = (compute, COMPUTE)
"""KernelComputeV2 of all ops."""


def functions(ops: Sequence[Op] = ALL_VERSIONS) -> list[Function]:
    """What kernels of ops and their callbacks call; the position of a function is its number in generated code."""
    found = dict.fromkeys((COMPUTE_FUNCTION, *callbacks.FUNCTIONS.values(), *heap_callbacks.FUNCTIONS.values()))
    for op in ops:
        for declared in declarations(op):
            found |= dict.fromkeys(reuse.functions(reuse.pairs_of(op, declared)).values())
    return list(found | dict.fromkeys(all_functions(ops)))
