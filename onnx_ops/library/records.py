"""The records of the runtime, and the functions of the OrtApi, as C."""

from __future__ import annotations

import ctypes as C
from collections.abc import Iterable, Iterator

import numpy as np

from onnx_ops.core.domain import INLINED, OMITTED
from onnx_ops.loops.records import JOB, KERNEL
from onnx_ops.runtime.abi import API_VERSION, INVALID_ARGUMENT, SIGNATURES
from onnx_ops.runtime.callbacks import CustomOp
from onnx_ops.runtime.records import LOOP, PYTHON

RECORDS = {"oo_kernel_record": KERNEL, "oo_job_record": JOB, "oo_loop_record": LOOP, "oo_python_record": PYTHON}
NUMBERS = {np.dtype(np.int64): "int64_t", np.dtype(np.float64): "double", np.dtype(np.float32): "float"}
TYPES = {
    C.c_void_p: "void *",
    C.c_char_p: "const char *",
    C.c_uint32: "uint32_t",
    C.c_int: "int",
    C.c_size_t: "size_t",
    C.c_int64: "int64_t",
}

Field = tuple[str, str, tuple[int, ...]]
"""Type, name, and sizes of an array."""
KEYWORDS = frozenset({"default"})
"""Names of fields that C cannot have; they get a _."""
REGISTRATION = {
    "CreateCustomOpDomain": (26, (C.c_char_p, C.c_void_p)),
    "CustomOpDomain_Add": (27, (C.c_void_p, C.c_void_p)),
    "AddCustomOpDomain": (28, (C.c_void_p, C.c_void_p)),
}
"""Functions of the OrtApi that only the library calls: index and types of the arguments."""


def header() -> str:
    """`runtime.h`: constants, a struct for each record, and for each function of the OrtApi one that calls it."""
    parts = [
        "#include <stddef.h>\n#include <stdint.h>\n",
        f'#define OO_INLINED "{INLINED}"\n#define OO_OMITTED "{OMITTED}"\n',
        f"enum {{ OO_API_VERSION = {API_VERSION}, OO_INVALID_ARGUMENT = {INVALID_ARGUMENT} }};\n",
        *(_struct(name, _fields_of_record(record), record.itemsize) for name, record in RECORDS.items()),
        _struct("oo_custom_op", _fields_of_structure(CustomOp), C.sizeof(CustomOp)),
        *_functions(),
    ]
    return "\n".join(parts)


def _struct(name: str, fields: Iterable[Field], size: int) -> str:
    lines = []
    for kind, field, shape in fields:
        own = f"{field}_" if field in KEYWORDS else field
        lines.append(f"    {kind} {own}{''.join(f'[{n}]' for n in shape)};")
    body = "\n".join(lines)
    return f'typedef struct {{\n{body}\n}} {name};\n_Static_assert(sizeof({name}) == {size}, "{name}");\n'


def _fields_of_record(record: np.dtype) -> Iterator[Field]:
    assert record.fields is not None
    for name, (dtype, *_) in record.fields.items():
        yield NUMBERS[dtype.base], name, dtype.shape


def _fields_of_structure(structure: type[C.Structure]) -> Iterator[Field]:
    for base in reversed(structure.__mro__):
        for name, kind, *_ in vars(base).get("_fields_", ()):
            is_array = issubclass(kind, C.Array)
            yield TYPES[kind._type_ if is_array else kind], name, (kind._length_,) if is_array else ()


def _functions() -> Iterator[str]:
    called = {index.name: (int(index), kinds) for index, kinds in SIGNATURES.items()}
    for name, (index, kinds) in (called | REGISTRATION).items():
        types = [TYPES[kind] for kind in kinds]
        parameters = ", ".join(f"{kind} a{i}" for i, kind in enumerate(types))
        arguments = ", ".join(f"a{i}" for i in range(len(types)))
        kind = f"void *(*)({', '.join(types)})"
        yield (
            f"static inline void *oo_{name}(const void *api, {parameters}) {{"
            f" return (({kind})((void *const *)api)[{index}])({arguments}); }}"
        )
