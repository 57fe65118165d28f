"""The records of the runtime's own: the way to Python, a compiled `Loop`, and how it lies over a run's operands."""

import numpy as np

from onnx_ops.core.types import MAX_RANK
from onnx_ops.loops.records import MAX_INPUTS

i8 = np.int64

PYTHON = np.dtype(
    [
        ("answer", i8),  # the callback into Python: answer(address of a question)
        ("unanswered", i8),  # text of the error where it gave none
        ("fail", i8),  # native code that asks for the OrtStatus of a refused call
        ("main_thread", i8),
        ("ending", i8),  # 1 once the interpreter is about to end
        # functions of Python's C interface
        ("is_finalizing", i8),
        ("holds_lock", i8),
        ("save_thread", i8),
        ("restore_thread", i8),
        # functions of libc, and the attributes of a new thread
        ("create_thread", i8),
        ("join_thread", i8),
        ("this_thread", i8),
        ("pause", i8),
        ("attributes", i8),
    ],
    align=True,
)
"""There is one in the process."""

LOOP = np.dtype(
    [
        # what the op declares
        ("compute_type", i8),
        ("role", i8, (MAX_INPUTS,)),
        ("ranks", i8, (2,)),  # least and greatest rank
        ("divisor", i8),
        ("parameters", np.float64, (4,)),
        ("memory_bound", i8),
        ("cache", i8),  # bytes of the machine's last cache
        ("cores", i8),  # of the machine
        ("uniform", i8, (MAX_INPUTS,)),  # `core_uniform` wants these to have one value
        # native functions; load and store convert numbers to and from the computing dtype
        ("core", i8),
        ("core_uniform", i8),
        ("load", i8),
        ("channel_load", i8),  # for per-channel operands, which are no 16-bit numbers
        ("store", i8),
        ("prepare", i8),
        # sums
        ("sums", i8),  # whether there are any
        ("sum_type", i8),  # the computing dtype of their core
        ("sum_core", i8),
        ("sum_totals", i8),
        ("sum_load", i8),
        ("kept", i8),
        ("like", i8),
        ("terms", i8),
        ("divided", i8),
        ("pivot", i8),  # the input that it comes from; -1: there is none
        ("finish", i8),
    ],
    align=True,
)

OPERANDS = MAX_INPUTS + 1
"""The inputs, and the pivot of a sum behind the last of them."""

LAYOUT = np.dtype(
    [
        # the index space
        ("axes", i8),
        ("extent", i8, (MAX_RANK,)),
        ("size", i8),
        ("block", i8),  # elements of a task; of a row, where rows are added up
        ("uniform", i8),  # whether `core_uniform` serves
        ("direct", i8),  # whether operands are read, and results written, where they lie
        ("past_caches", i8),  # whether results are copied to memory that is not to be kept in the caches
        # per-channel operands
        ("channel_inputs", i8),
        ("channels", i8),
        ("inner", i8),  # elements from one channel to the next
        ("patterned", i8),  # they are laid out as they recur along the elements
        ("pattern", i8),  # length of one as it is laid out
        # how each operand lies in the space
        ("operands", i8),
        ("data", i8, (OPERANDS,)),
        ("source_type", i8, (OPERANDS,)),
        ("kind", i8, (OPERANDS,)),
        ("operand_axes", i8, (OPERANDS,)),
        ("operand_extent", i8, (OPERANDS, MAX_RANK)),
        ("operand_stride", i8, (OPERANDS, MAX_RANK)),
        ("divisor", np.float64),
        ("parameters", np.float64, (8,)),
        # sums: the index space as rows and columns, one of which is summed over, and cut into slices
        ("summed", i8),
        ("summed_rows", i8),
        ("rows", i8),
        ("columns", i8),
        ("blocks", i8),
        ("rows_of_task", i8),
        ("slice", i8),
        ("slices", i8),
        ("places", i8),  # results of each term
        ("folded", i8),  # where rows are added up: so many columns that follow each other make one result
        ("wide", i8),  # address of the per-channel operands in float64, for `finish`
        ("pivots", i8),
        ("totals", i8),  # address of the sums of slices; 0 where a task writes them to the output
    ],
    align=True,
)
