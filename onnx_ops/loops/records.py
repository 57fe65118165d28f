"""Records shared by native code: a kernel, its attributes, and one run of it.

Addresses are int64. Python fills a `KERNEL` when onnxruntime creates the kernel, after which it is constant; a `JOB`
lives on the stack of one run and is read by all its tasks.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

import numpy as np
from onnx.defs import OpSchema

from onnx_ops.core.types import MAX_RANK

MAX_INPUTS = 12
MAX_OUTPUTS = 4
CHUNK = 1024
"""Elements per call of a core: a converted or broadcast operand of this size stays in cache."""

OK, REFUSED, NO_MEMORY = 0, 1, 2
"""Return values of a plan; `failed` of a job is one of them too."""

i8 = np.int64


def offset(layout: np.dtype, field: str) -> int:
    """Offset of a field in a record, in bytes."""
    assert layout.fields is not None
    return layout.fields[field][1]


KERNEL = np.dtype(
    [
        ("api", i8),  # OrtApi*
        ("python", i8),  # the `runtime.records.PYTHON` of the process
        ("op", i8),  # index of the op, for error messages
        ("node_label", i8),  # address of the description of the node, for error messages, and its length in bytes
        ("node_label_bytes", i8),
        ("inputs", i8),
        ("element_type", i8, (MAX_INPUTS,)),  # ONNX element types; 0: omitted
        ("default", np.float64, (MAX_INPUTS,)),  # default of an omitted input
        ("outputs", i8),
        ("output_type", i8, (MAX_OUTPUTS,)),  # ONNX element types; 0: omitted
        ("attributes", i8),  # address of a record of `attributes_of`
        ("loop", i8),  # address of the runtime's record for a `Loop`; 0 for `Tasks`
        # native functions
        ("plan", i8),
        ("begin", i8),
        ("prepare", i8),
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
        ("in_place", i8),  # whether an output has the memory of an input
        ("prepare_tasks", i8),
        ("tasks", i8),
        ("scratch_bytes", i8),
        ("scratch", i8),  # address of so many bytes, at the begin of a cache line
        ("failed", i8),
        ("layout", i8),  # address of the runtime's record of strides and blocks, for a `Loop`
    ],
    align=True,
)

WORD_TYPES = {OpSchema.AttrType.INT: i8, OpSchema.AttrType.FLOAT: np.float32}
"""dtypes of attributes stored by value. Of a string or list, the record has its address, and its length in
`<name>_count`."""


def attribute_record(attributes: Iterable[OpSchema.Attribute]) -> np.dtype:
    """Record with a field for each attribute, in the order of their names."""
    fields: list[tuple[str, type]] = []
    for attribute in sorted(attributes, key=operator.attrgetter("name")):
        fields.append((attribute.name, WORD_TYPES.get(attribute.type, i8)))
        if attribute.type not in WORD_TYPES:
            fields.append((f"{attribute.name}_count", i8))
    return np.dtype(fields or [("none", i8)], align=True)


@functools.cache
def attributes_of(schema: OpSchema) -> np.dtype:
    """Record with a field for each attribute of a schema."""
    return attribute_record(schema.attributes.values())
