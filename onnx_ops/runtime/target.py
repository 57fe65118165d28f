"""What Numba compiles for: this process, or the triple that a variable names.

Numba itself has variables for the processor alone, NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, and asks llvmlite for the
triple. Code for another one can be kept and emitted, but not called: `library.objects` sets the variable for the
processes that do nothing else.
"""

from __future__ import annotations

import os

from llvmlite import binding

VARIABLE = "ONNX_OPS_TRIPLE"


def select() -> None:
    """Make Numba compile for the triple of the variable; before it compiles anything."""
    if triple := os.environ.get(VARIABLE):
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        binding.get_process_triple = lambda: triple
