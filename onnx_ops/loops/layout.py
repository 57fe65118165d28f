"""The records that the native code shares: what a kernel is, what one run of it works on, and the way to Python.

Addresses are held as int64. Python fills a `KERNEL` when onnxruntime creates the kernel and never touches it again; a
`JOB` lives on the stack of one run and is read by all its tasks. There is one `PYTHON` in the process.
"""

import numpy as np

MAX_INPUTS = 8
MAX_RANK = 8
CHUNK = 1024
"""Elements that go through a kernel function at a time: what is converted or broadcast for it stays in cache."""
BLOCK = 16384
"""Elements of a task, at the least. Tasks go by the size alone, so that results do not depend on the threads."""

OK, REFUSED, NO_MEMORY = 0, 1, 2
"""What a plan answers, and what a task that could not do its work leaves in the job."""

i8 = np.int64


def offset(layout: np.dtype, field: str) -> int:
    """Bytes from the beginning of a record to one of its fields."""
    assert layout.fields is not None
    return layout.fields[field][1]


KERNEL = np.dtype(
    [
        ("api", i8),  # OrtApi*
        ("python", i8),  # the `PYTHON` of the process
        ("op", i8),  # index of the op, for the error of a refused call
        ("node_bytes", i8),  # length of what stands behind the record, for that error: which node it is, in words
        ("inputs", i8),
        ("element_type", i8, (MAX_INPUTS,)),  # ONNX element types; 0: left out
        ("output_type", i8),
        ("integer", i8, (4,)),  # attributes that are integers, by name
        ("floating", np.float32, (4,)),  # attributes that are floats, by name
        # native functions
        ("plan", i8),
        ("begin", i8),
        ("task", i8),
        ("finish", i8),
        # elementwise kernels: the loop, and the conversions before and after it; wide: in float64, for sums
        ("core", i8),
        ("core_uniform", i8),
        ("load", i8),
        ("store", i8),
        ("core_wide", i8),
        ("load_wide", i8),
        ("store_wide", i8),
        ("prepare", i8),
        ("compute_type", i8),
        ("role", i8, (MAX_INPUTS,)),
        ("uniform", i8, (MAX_INPUTS,)),  # `core_uniform` wants these to have one value
        ("output_like", i8),  # the input whose shape the output has; -1: all of them broadcast
        ("divisor", i8),
        ("parameters", np.float64, (4,)),
        ("ranks", i8, (2,)),  # least and greatest rank
    ],
    align=True,
)

JOB = np.dtype(
    [
        ("kernel", i8),
        ("data", i8, (MAX_INPUTS,)),
        ("rank", i8, (MAX_INPUTS,)),
        ("dims", i8, (MAX_INPUTS, MAX_RANK)),
        ("output", i8),
        ("output_rank", i8),
        ("output_dims", i8, (MAX_RANK,)),
        ("tasks", i8),
        ("scratch_bytes", i8),
        ("scratch", i8),
        ("failed", i8),
        # elementwise kernels: the index space, and how each operand lies in it
        ("size", i8),
        ("block", i8),  # elements of a task
        ("axes", i8),
        ("inner", i8),  # elements from one channel to the next
        ("patterned", i8),  # per-channel operands are laid out as they recur along the elements
        ("pattern", i8),  # length of a per-channel operand as it is laid out
        ("extent", i8, (MAX_RANK,)),
        ("source_type", i8, (MAX_INPUTS,)),
        ("kind", i8, (MAX_INPUTS,)),
        ("operand_axes", i8, (MAX_INPUTS,)),
        ("operand_extent", i8, (MAX_INPUTS, MAX_RANK)),
        ("operand_stride", i8, (MAX_INPUTS, MAX_RANK)),
        ("parameters", np.float64, (8,)),
        # sums over axes: the index space as rows and columns, one of which is summed over, and cut into slices
        ("sums", i8),
        ("summed_rows", i8),
        ("rows", i8),
        ("columns", i8),
        ("blocks", i8),
        ("slice", i8),
        ("slices", i8),
    ],
    align=True,
)

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
