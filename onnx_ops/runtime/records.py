"""Structured dtypes of the runtime: callbacks into Python, a compiled `Loop`, and the memory layout of one call."""

import numpy as np

from onnx_ops.core.types import MAX_RANK
from onnx_ops.loops.records import MAX_INPUTS

i8 = np.int64

PYTHON = np.dtype(
    [
        ("answer", i8),  # callback into Python, takes the address of a request
        ("unanswered", i8),  # error message if no thread can be created for it
        ("fail", i8),  # `callbacks.fail`
        ("main_thread", i8),
        ("ending", i8),  # 1 while the interpreter finalizes
        # functions of Python's C API
        ("is_finalizing", i8),
        ("holds_lock", i8),
        ("save_thread", i8),
        ("restore_thread", i8),
        # functions of libc, and attributes of new threads
        ("create_thread", i8),
        ("join_thread", i8),
        ("this_thread", i8),
        ("pause", i8),
        ("attributes", i8),
    ],
    align=True,
)
"""One per process."""

LOOP = np.dtype(
    [
        # declared by the op
        ("compute_type", i8),
        ("role", i8, (MAX_INPUTS,)),
        ("ranks", i8, (2,)),  # least and greatest rank
        ("divisor", i8),
        ("parameters", np.float64, (4,)),
        ("memory_bound", i8),
        ("cache", i8),  # bytes of the last-level cache
        ("cores", i8),  # available cores
        ("uniform", i8, (MAX_INPUTS,)),  # inputs with a single value per block of `core_uniform`
        # native functions; load and store convert to and from the computing dtype
        ("core", i8),
        ("core_uniform", i8),
        ("load", i8),
        ("channel_load", i8),  # for per-channel operands, which are not converted to 16 bits
        ("store", i8),
        ("prepare", i8),
        # sums
        ("sums", i8),  # whether outputs are sums
        ("sum_type", i8),  # computing dtype of their core
        ("sum_core", i8),
        ("sum_totals", i8),
        ("sum_load", i8),
        ("kept", i8),
        ("like", i8),
        ("terms", i8),
        ("pivot", i8),  # input of the pivot; -1: none
        ("finish", i8),
    ],
    align=True,
)

OPERANDS = MAX_INPUTS + 1
"""The inputs, followed by the pivot of a sum."""

LAYOUT = np.dtype(
    [
        # the index space
        ("axes", i8),
        ("extent", i8, (MAX_RANK,)),
        ("size", i8),
        ("block", i8),  # elements per task; elements of a row, where rows are added
        ("uniform", i8),  # whether `core_uniform` runs
        ("direct", i8),  # whether operands are read and results written in place
        ("past_caches", i8),  # whether results are written with non-temporal stores
        # per-channel operands
        ("channel_inputs", i8),
        ("channels", i8),
        ("inner", i8),  # distance between channels, in elements
        ("patterned", i8),  # whether they are expanded to the period of the elements
        ("pattern", i8),  # length of that period
        # layout of each operand in the space
        ("operands", i8),
        ("data", i8, (OPERANDS,)),
        ("source_type", i8, (OPERANDS,)),
        ("kind", i8, (OPERANDS,)),
        ("operand_axes", i8, (OPERANDS,)),
        ("operand_extent", i8, (OPERANDS, MAX_RANK)),
        ("operand_stride", i8, (OPERANDS, MAX_RANK)),
        ("divisor", np.float64),
        ("parameters", np.float64, (8,)),
        # sums: rows and columns of the index space, one of which is summed over, and split into slices
        ("summed", i8),
        ("summed_rows", i8),
        ("rows", i8),
        ("columns", i8),
        ("blocks", i8),
        ("rows_of_task", i8),
        ("slice", i8),
        ("slices", i8),
        ("places", i8),  # results per term
        ("folded", i8),  # where rows are added: adjacent columns per result
        ("wide", i8),  # address of the per-channel operands in float64, for `finish`
        ("pivots", i8),
        ("totals", i8),  # address of the sums of slices; 0 if tasks write to the output
    ],
    align=True,
)
