"""Records shared by native code: a kernel, its attributes, and one run of it.

Addresses are int64. Python fills a `KERNEL` when onnxruntime creates the kernel, after which it is constant; a `JOB`
lives on the stack of one run and is read by all its tasks.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, MutableMapping, MutableSequence
from typing import Annotated, Protocol, get_args, get_type_hints

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


Numbers = MutableSequence[int]
Table = MutableMapping[tuple[int, int], int]
"""A field of two axes."""


class Kernel(Protocol):
    """The fields of a kernel; those of arrays are annotated with their shapes."""

    api: int  # OrtApi*
    python: int  # the `runtime.records.PYTHON` of the process
    op: int  # index of the op, for error messages
    node_label: int  # address of the description of the node, for error messages, and its length in bytes
    node_label_bytes: int
    inputs: int
    element_type: Annotated[Numbers, MAX_INPUTS]  # ONNX element types; 0: omitted
    default: Annotated[MutableSequence[float], MAX_INPUTS]  # default of an omitted input
    outputs: int
    output_type: Annotated[Numbers, MAX_OUTPUTS]  # ONNX element types; 0: omitted
    attributes: int  # address of a record of `attributes_of`
    loop: int  # address of the runtime's record for a `Loop`; 0 for `Tasks`
    # native functions
    plan: int
    begin: int
    prepare: int
    task: int
    finish: int
    read: int  # of numbers in memory to float64, and back
    write: int
    write_layout: int  # of a `Layout`, and the bytes of its record
    layout_bytes: int


class Job(Protocol):
    """The fields of one run of a kernel."""

    kernel: int
    data: Annotated[Numbers, MAX_INPUTS]
    rank: Annotated[Numbers, MAX_INPUTS]
    dims: Annotated[Table, MAX_INPUTS, MAX_RANK]
    output: Annotated[Numbers, MAX_OUTPUTS]
    output_rank: Annotated[Numbers, MAX_OUTPUTS]
    output_dims: Annotated[Table, MAX_OUTPUTS, MAX_RANK]
    in_place: int  # whether an output has the memory of an input
    prepare_tasks: int
    tasks: int
    scratch_bytes: int
    scratch: int  # address of so many bytes, at the begin of a cache line
    failed: int
    layout: int  # address of the runtime's record of strides and blocks, for a `Loop`


def record_of(kind: type) -> np.dtype:
    """The dtype of records with the fields of a class: int64, and float64 for sequences of float."""
    fields: list[tuple[str, type, tuple[int, ...]]] = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        shape = getattr(hint, "__metadata__", ())
        fields.append((name, np.float64 if shape and float in get_args(hint.__origin__) else i8, shape))
    return np.dtype(fields, align=True)


KERNEL, JOB = record_of(Kernel), record_of(Job)

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
