"""Links object code of compiled functions into this process.

Numba's own loading first imports all that it can compile, SciPy's linear algebra included, for half a second, and
parses the bitcode of each function. LLVM needs neither to link an object.
"""

from __future__ import annotations

import functools

from llvmlite import binding
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python

from onnx_ops.runtime.process import keep


def linked(code: bytes, symbol: str) -> int:
    """The address of a function in object code, which stays in this process until it ends.

    Args:
        code: object code in which no other symbol is that of another function: the linker has one scope for all.
        symbol: name of the function.
    """
    engine = _engine()
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address: int = engine.get_function_address(symbol)
    return address


@functools.cache
def _engine() -> binding.ExecutionEngine:
    """The linker, which aborts the process at a symbol that it does not find.

    Code calls C functions of Numba: LLVM knows those of numbers from when the context of the target is made, and those
    of memory from here.
    """
    assert cpu_target.target_context
    for name, address in _nrt_python.c_helpers.items():
        binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(jit=True)
    return keep(binding.create_mcjit_compiler(binding.parse_assembly(""), machine))
