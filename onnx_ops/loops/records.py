"""The records that native code shares: what a kernel is, its attributes, and what one run of it works on.

Addresses are held as int64. Python fills a `KERNEL` when onnxruntime creates the kernel and never touches it again; a
`JOB` lives on the stack of one run and is read by all its tasks.
"""

from __future__ import annotations

import functools

import numpy as np
from onnx.defs import OpSchema

from onnx_ops.core.types import MAX_RANK

MAX_INPUTS = 12
MAX_OUTPUTS = 4
CHUNK = 1024
"""Elements that go through a loop at a time: what is converted or broadcast for it stays in cache."""

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
        ("python", i8),  # the `runtime.records.PYTHON` of the process
        ("op", i8),  # index of the op, for the error of a refused call
        ("words", i8),  # for that error: which node it is, in words, and their length
        ("words_bytes", i8),
        ("inputs", i8),
        ("element_type", i8, (MAX_INPUTS,)),  # ONNX element types; 0: left out
        ("missing", np.float64, (MAX_INPUTS,)),  # what an input that is left out stands for
        ("outputs", i8),
        ("output_type", i8, (MAX_OUTPUTS,)),  # ONNX element types; 0: not wanted
        ("attributes", i8),  # the record that `attributes_of` describes
        ("loop", i8),  # the record of the runtime for a `Loop`; 0 for `Tasks`
        # native functions
        ("plan", i8),
        ("begin", i8),
        ("task", i8),
        ("finish", i8),
        ("read", i8),  # of numbers in memory to float64, and back
        ("write", i8),
    ],
    align=True,
)

JOB = np.dtype(
    [
        ("kernel", i8),
        ("data", i8, (MAX_INPUTS,)),
        ("rank", i8, (MAX_INPUTS,)),
        ("dims", i8, (MAX_INPUTS, MAX_RANK)),
        ("output", i8, (MAX_OUTPUTS,)),
        ("output_rank", i8, (MAX_OUTPUTS,)),
        ("output_dims", i8, (MAX_OUTPUTS, MAX_RANK)),
        ("tasks", i8),
        ("scratch_bytes", i8),
        ("scratch", i8),
        ("failed", i8),
        ("layout", i8),  # how a `Loop` lies over the operands of this run, a record of the runtime
    ],
    align=True,
)

WORD_TYPES = {OpSchema.AttrType.INT: i8, OpSchema.AttrType.FLOAT: np.float32}
"""Attributes that are one number. Of a text or a list a record has the address, and the number of its elements in a
field with the ending `_count`."""


@functools.cache
def attributes_of(schema: OpSchema) -> np.dtype:
    """The record of an op's attributes, a field for each under its name: `attributes.blank`."""
    fields: list[tuple[str, type]] = []
    for name, attribute in schema.attributes.items():
        fields.append((name, WORD_TYPES.get(attribute.type, i8)))
        if attribute.type not in WORD_TYPES:
            fields.append((f"{name}_count", i8))
    return np.dtype(fields or [("none", i8)], align=True)
