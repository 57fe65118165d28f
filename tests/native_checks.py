"""The translated checks as a shared object, called as native code calls them; and the same questions to Python."""

from __future__ import annotations

import contextlib
import ctypes as C
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx.defs import OpSchema

import onnx_ops
from onnx_ops.core.errors import at_node
from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.loops.records import KERNEL, attributes_of, offset
from onnx_ops.runtime import kernels
from onnx_ops.runtime.records import LOOP

Array = np.ndarray
NATIVE = Path(onnx_ops.__file__).parent / "library" / "native"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
LABEL = "node 'n'"


class Dim(C.Structure):
    _fields_ = [("size", C.c_int64), ("name", C.c_char_p)]


class Tensor(C.Structure):
    _fields_ = [
        ("given", C.c_int),
        ("dtype", C.c_int64),
        ("rank", C.c_int64),
        ("dims", C.POINTER(Dim)),
        ("data", C.c_void_p),
    ]


class Attribute(C.Structure):
    _fields_ = [
        ("given", C.c_int),
        ("integer", C.c_int64),
        ("number", C.c_float),
        ("list", C.c_void_p),
        ("count", C.c_int64),
    ]


class Place(C.Structure):
    _fields_ = [("loop", C.c_int), ("offset", C.c_int64), ("function", C.c_int64)]


class List(C.Structure):
    _fields_ = [("offset", C.c_int64), ("data", C.c_void_p), ("bytes", C.c_int64)]


class Parts(C.Structure):
    _fields_ = [
        *((name, C.c_void_p) for name in ("kernel", "loop", "attributes")),
        *((name, C.c_int64) for name in ("kernel_bytes", "loop_bytes", "attributes_bytes", "functions", "lists")),
        ("function", C.POINTER(Place)),
        ("list", C.POINTER(List)),
    ]


class Call(C.Structure):
    _fields_ = [
        ("op", C.c_int64),
        ("inputs", C.c_int64),
        ("input", Tensor * 12),
        ("attribute", Attribute * 8),
        ("wanted", C.c_int * 4),
    ]


def compiler() -> str | None:
    """The system's compiler of C."""
    return shutil.which("cc")


def built(source: str, folder: Path) -> Path:
    """A shared object of the checks."""
    (folder / "translated.c").write_text(source)
    library = folder / "checks.so"
    files = [
        folder / "translated.c",
        *(NATIVE / f"{name}.c" for name in ("arena", "arrays", "builtins", "checks", "text", "values")),
    ]
    command = ["cc", "-std=c11", "-O1", "-fPIC", "-shared", *WARNINGS, f"-I{NATIVE}", *map(str, files), "-lm"]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


class Checks:
    """The functions of the shared object.

    Args:
        library: its path.
        ops: that were translated.
    """

    def __init__(self, library: Path, ops: Sequence[Op]) -> None:
        self._library, self._ops = C.CDLL(str(library)), ops
        self._library.oo_arena_new.restype = C.c_void_p
        self._library.oo_arena_free.argtypes = [C.c_void_p]
        for name in ("oo_infer", "oo_check_arrays", "oo_kernel"):
            if hasattr(self._library, name):
                getattr(self._library, name).restype = C.c_char_p

    @contextlib.contextmanager
    def _arena(self) -> Iterator[C.c_void_p]:
        arena = C.c_void_p(self._library.oo_arena_new())
        try:
            yield arena
        finally:
            self._library.oo_arena_free(arena)

    def infer(
        self,
        op: Op,
        types: Sequence[TensorType | None],
        attributes: Mapping[str, Any],
        wanted: Sequence[bool] | None = None,
    ) -> tuple[TensorType, ...] | str:
        """The types of the outputs, or the message of the error."""
        call, _kept = self._call(op, types, attributes, wanted)
        outputs = (Tensor * 4)()
        with self._arena() as arena:
            text = self._library.oo_infer(arena, C.byref(call), LABEL.encode(), outputs)
            return text.decode() if text else tuple(map(_type_of, outputs[: len(op.output_names)]))

    def check_arrays(
        self,
        op: Op,
        arrays: Sequence[Array | None],
        attributes: Mapping[str, Any],
        wanted: Sequence[bool] | None = None,
    ) -> str | None:
        """The message of the error, None if there is none."""
        contiguous = [None if array is None else np.ascontiguousarray(array).reshape(array.shape) for array in arrays]
        types = [None if array is None else TensorType.of(array) for array in contiguous]
        call, _kept = self._call(op, types, attributes, wanted)
        for i, array in enumerate(contiguous):
            call.input[i].data = None if array is None else array.ctypes.data
        with self._arena() as arena:
            text = self._library.oo_check_arrays(arena, C.byref(call), LABEL.encode())
            return text.decode() if text else None

    def kernel(
        self,
        op: Op,
        types: Sequence[TensorType | None],
        attributes: Mapping[str, Any],
        wanted: Sequence[bool],
    ) -> kernels.Parts:
        """The kernel of a call, in which the address of a function is its number plus 1, and those of lists are 0."""
        call, _kept = self._call(op, types, attributes, wanted)
        parts = Parts()
        with self._arena() as arena:
            text = self._library.oo_kernel(arena, C.byref(call), C.byref(parts))
            assert text is None, text
            records = [bytearray(C.string_at(parts.kernel, parts.kernel_bytes))]
            records.append(bytearray(C.string_at(parts.loop, parts.loop_bytes) if parts.loop else b""))
            for place in parts.function[: parts.functions]:
                C.c_int64.from_buffer(records[place.loop], place.offset).value = place.function + 1
            layout = attributes_of(op.schema)
            own = np.frombuffer(C.string_at(parts.attributes, parts.attributes_bytes), layout)
            names = {offset(layout, name): name for name in op.schema.attributes}
            lists = {names[item.offset]: C.string_at(item.data, item.bytes) for item in parts.list[: parts.lists]}
            loop = np.frombuffer(records[1], LOOP) if parts.loop else None
            return kernels.Parts(np.frombuffer(records[0], KERNEL), loop, own, lists)

    def _call(
        self,
        op: Op,
        types: Sequence[TensorType | None],
        attributes: Mapping[str, Any],
        wanted: Sequence[bool] | None,
    ) -> tuple[Call, list[Any]]:
        call, kept = Call(op=next(i for i, own in enumerate(self._ops) if own is op), inputs=len(types)), []
        for i, own in enumerate(types):
            if own is None:
                continue
            tensor = call.input[i]
            tensor.given, tensor.dtype, tensor.rank = 1, own.dtype or 0, -1 if own.shape is None else len(own.shape)
            dims = (Dim * max(tensor.rank, 1))()
            for dim, size in zip(dims, own.shape or (), strict=False):
                dim.size = size if isinstance(size, int) else -1
                dim.name = size.encode() if isinstance(size, str) else None
            tensor.dims = dims
            kept.append(dims)
        for i, (name, attribute) in enumerate(sorted(op.schema.attributes.items())):
            if name not in attributes:
                continue
            value, place = attributes[name], call.attribute[i]
            place.given = 1
            if attribute.type == OpSchema.AttrType.INT:
                place.integer = int(value)
            elif attribute.type == OpSchema.AttrType.FLOAT:
                place.number = value
            else:
                kept.append(np.array(value, np.int64 if attribute.type == OpSchema.AttrType.INTS else np.float32))
                place.list, place.count = kept[-1].ctypes.data, len(value)
        call.wanted[: len(op.output_names)] = [True] * len(op.output_names) if wanted is None else wanted
        return call, kept


def _type_of(tensor: Tensor) -> TensorType:
    if tensor.rank < 0:
        return TensorType(tensor.dtype or None)
    dims = (tensor.dims[i] for i in range(tensor.rank))
    shape = tuple(d.size if d.size >= 0 else d.name.decode() if d.name else None for d in dims)
    return TensorType(tensor.dtype or None, shape)


def stored(op: Op, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as a node stores them: numbers in float32, lists."""
    kinds = {name: attribute.type for name, attribute in op.schema.attributes.items()}

    def own(name: str, value: Any) -> Any:
        if kinds[name] == OpSchema.AttrType.FLOAT:
            return float(np.float32(value))
        return int(value) if kinds[name] == OpSchema.AttrType.INT else list(map(int, value))

    return {name: own(name, value) for name, value in attributes.items()}


def answer(ask: Callable[[], Any]) -> Any:
    """What Python returns, or the message of its OpError."""
    try:
        with at_node(LABEL):
            return ask()
    except onnx_ops.OpError as error:
        return str(error)
