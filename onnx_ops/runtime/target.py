"""What Numba compiles for: this process, or the triple that a variable names; and the widest vectors of the processor.

Numba itself has variables for the processor alone, NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, and asks llvmlite for the
triple. Code for another one can be kept and emitted, but not called: `library.objects` sets the variable for the
processes that do nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

from llvmlite import binding
from numba import config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

VARIABLE = "ONNX_OPS_TRIPLE"


def select() -> None:
    """Make Numba compile for the triple of the variable; before it compiles anything."""
    if triple := os.environ.get(VARIABLE):
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        binding.get_process_triple = lambda: triple


@contextlib.contextmanager
def widest_vectors() -> Iterator[None]:
    """Let LLVM vectorize with registers of 512 bits where the processor has them.

    For Intel's processors LLVM prefers 256 bits, as the first ones with AVX-512 lowered their clock rate for more. The
    tiles of products use 512 in any case, and an attention of 64 rows of 8 numbers, mostly exp, takes 1.6 times as long
    with 256. What a program compiles by Numba itself is not affected.
    """
    codegen = cpu_target.target_context.codegen()
    with global_compiler_lock:
        own = codegen._tm
        codegen._tm = _machine() if "+avx512f" in codegen._tm_features.split(",") else own
        try:
            yield
        finally:
            codegen._tm = own


@functools.cache
def _machine() -> Any:
    """LLVM's description of the processor, made like that of Numba."""
    codegen = cpu_target.target_context.codegen()
    options: dict[str, Any] = {"opt": config.OPT}
    codegen._customize_tm_options(options)
    options["features"] += ",-prefer-256-bit"
    return binding.Target.from_triple(binding.get_process_triple()).create_target_machine(**options)
