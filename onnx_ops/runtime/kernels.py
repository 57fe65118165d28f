"""Compiles the kernel of a call: one block of memory with function addresses, attributes and declarations."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.op import Op
from onnx_ops.loops.loop import Layout, Loop, Tasks
from onnx_ops.loops.records import KERNEL, MAX_OUTPUTS, WORD_TYPES, attributes_of
from onnx_ops.runtime import layouts
from onnx_ops.runtime.abi import encoded
from onnx_ops.runtime.compiler import Function, compile_native, listing
from onnx_ops.runtime.loops import compilation
from onnx_ops.runtime.loops.numbers import LOAD, STORE, load, store
from onnx_ops.runtime.native import DOUBLE
from onnx_ops.runtime.records import LOOP
from onnx_ops.runtime.signatures import ALONE, PLAN, TASK_IN, WRITE_LAYOUT

ALIGNMENT = 8


@dataclass(frozen=True)
class Parts:
    """The parts of a kernel.

    Attributes:
        kernel: record of dtype KERNEL.
        loop: record of a `Loop`, None for `Tasks`.
        attributes: record of the attributes.
        lists: attributes that are strings or lists, as bytes by name.
    """

    kernel: np.ndarray
    loop: np.ndarray | None
    attributes: np.ndarray
    lists: Mapping[str, bytes]

    def written(self, node_label: str, allocate: Callable[[int], int | None]) -> int:
        """Copy the parts to one block of memory, which KernelDestroy frees.

        Args:
            node_label: description of the node, for error messages.
            allocate: returns the address of a block of the given size, None if there is no memory.

        Returns:
            The address of the block.

        Raises:
            MemoryError: there is no memory.
        """
        kernel, attributes = self.kernel.copy(), self.attributes.copy()
        name = encoded(node_label)
        loop = b"" if self.loop is None else self.loop.tobytes()
        pieces = {"kernel": kernel.nbytes, "loop": len(loop), "attributes": attributes.nbytes, "node_label": len(name)}
        pieces |= {f"list {key}": len(value) for key, value in self.lists.items()}
        places, size = {}, 0
        for piece, length in pieces.items():
            places[piece] = size
            size += (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        address = allocate(size)
        if not address:
            raise MemoryError
        kernel["node_label"], kernel["node_label_bytes"] = address + places["node_label"], len(name)
        kernel["attributes"] = address + places["attributes"]
        kernel["loop"] = address + places["loop"] if loop else 0
        for key in self.lists:
            attributes[key] = address + places[f"list {key}"]
        contents = {"kernel": kernel.tobytes(), "loop": loop, "attributes": attributes.tobytes(), "node_label": name}
        contents |= {f"list {key}": value for key, value in self.lists.items()}
        for piece, content in contents.items():
            ctypes.memmove(address + places[piece], content, len(content))
        return address


def compile_kernel(op: Op, call: Call) -> Parts:
    """The compiled kernel of a call with known dtypes."""
    kernel, loop = fields_of(op, call)
    if loop is not None:
        loop |= {"cache": compilation.cache_bytes(), "cores": compilation.available_cores()}
    attributes, lists = np.zeros(1, attributes_of(op.schema)), {}
    for name, attribute in op.attributes.items():
        value = call.attributes[name]
        if attribute.type in WORD_TYPES:
            attributes[name] = value
        else:
            lists[name] = _list_bytes(attribute.type, value)
            attributes[f"{name}_count"] = len(value)
    return Parts(_record(KERNEL, kernel), None if loop is None else _record(LOOP, loop), attributes, lists)


def fields_of(op: Op, call: Call) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The fields of the records KERNEL and LOOP of a call with known dtypes, None in place of those for `Tasks`.

    Addresses of functions are among them, but nothing that the process or the machine determines.
    """
    declared, loop = op.kernel(call), None
    if isinstance(declared, Loop):
        kernel, loop = compilation.functions(declared), compilation.fields(declared, len(op.output_names))
    else:
        assert isinstance(declared, Tasks)
        if isinstance(declared.plan, Layout):
            kernel = {"plan": compile_native(layouts.plan, PLAN), "begin": compile_native(layouts.begin, ALONE)}
            kernel["write_layout"] = compile_native(declared.plan.write, WRITE_LAYOUT)
            kernel["layout_bytes"] = declared.plan.size
        else:
            kernel = {"plan": compile_native(declared.plan, PLAN)}
        kernel["task"] = compile_native(declared.task, TASK_IN[declared.compute])
        if declared.prepare:
            kernel["prepare"] = compile_native(declared.prepare, TASK_IN[declared.compute])
        for name, alone in (("begin", declared.begin), ("finish", declared.finish)):
            if alone:
                kernel[name] = compile_native(alone, ALONE)
        kernel["read"] = compile_native(load, LOAD[DOUBLE])
        kernel["write"] = compile_native(store, STORE[DOUBLE])
    defaults = op.signature.defaults
    outputs = zip(op.output_names, op.infer(call), strict=True)
    types = [(tensor.dtype or 0) if call.wants(name) else 0 for name, tensor in outputs]
    return {
        **kernel,
        "inputs": len(op.input_names),
        "element_type": compilation.padded([call.dtype(name) or 0 for name in op.input_names]),
        "default": compilation.padded([defaults[n].value if n in defaults else 0.0 for n in op.input_names]),
        "outputs": len(op.output_names),
        "output_type": [*types, *[0] * (MAX_OUTPUTS - len(types))],
    }, loop


def _record(layout: np.dtype, fields: Mapping[str, Any]) -> np.ndarray:
    made = np.zeros(1, layout)
    for name, value in fields.items():
        made[name] = value
    return made


def functions_of(op: Op, call: Call) -> list[Function]:
    """The functions of the kernel of a call with known dtypes, without compiling them."""
    with listing() as found:
        compile_kernel(op, call)
    return list(found)


def _list_bytes(kind: OpSchema.AttrType, value: Any) -> bytes:
    if kind == OpSchema.AttrType.STRING:
        return value if isinstance(value, bytes) else encoded(value)
    return np.array(value, np.int64 if kind == OpSchema.AttrType.INTS else np.float32).tobytes()


def attributes_at(schema: OpSchema, address: int) -> dict[str, Any]:
    """The attributes of a record, by name.

    Args:
        schema: of the op.
        address: of the record.
    """
    layout = attributes_of(schema)
    record = np.frombuffer(ctypes.string_at(address, layout.itemsize), layout)[0]
    values: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        values[name] = record[name].item()
        if attribute.type not in WORD_TYPES:
            count = int(record[f"{name}_count"])
            values[name] = _list_at(attribute.type, values[name], count)
    return values


def _list_at(kind: OpSchema.AttrType, address: int, count: int) -> bytes | list[float]:
    if kind == OpSchema.AttrType.STRING:
        return ctypes.string_at(address, count)
    dtype = np.dtype(np.int64 if kind == OpSchema.AttrType.INTS else np.float32)
    return np.frombuffer(ctypes.string_at(address, count * dtype.itemsize), dtype).tolist()
