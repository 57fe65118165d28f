"""Reading and writing models without a copy of their large initializers in memory.

A file in protobuf is scanned for them by its wire format, and what remains is parsed. In the result they are external
data, as ONNX has it, in the model's own file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import onnx
from onnx import ModelProto, TensorProto, helper

from onnx_ops.graph import reading
from onnx_ops.graph.stored import OpenFile, Source

SMALL_FILE = 2**20
"""Bytes up to which a file is read as a whole."""
LARGE_TENSOR = 2**15
"""Bytes from which on the contents of an initializer are left in the file; type inference reads some smaller ones."""
WINDOW = 2**16
"""Bytes that are read at once while a file is scanned."""

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""


def field_number(message: type, name: str) -> int:
    """The number of a field of a message."""
    return message.DESCRIPTOR.fields_by_name[name].number  # type: ignore[attr-defined]


GRAPH = field_number(ModelProto, "graph")
INITIALIZER = field_number(onnx.GraphProto, "initializer")
RAW_DATA = field_number(TensorProto, "raw_data")
EXTERNAL = {field_number(TensorProto, "external_data"), field_number(TensorProto, "data_location")}


def read_light(path: Path) -> tuple[ModelProto, dict[str, OpenFile]]:
    """A model in the format of the file's extension.

    Returns:
        The model; and the file by its name, if initializers of the graph are external data in it.

    Raises:
        OSError: a file that cannot be read.
        LinkError: not a model.
    """
    if not reading.is_protobuf(path) or not path.is_file() or path.stat().st_size <= SMALL_FILE:
        return reading.read(path), {}
    file = OpenFile(path)
    try:
        content = _light(file, path.name.encode().decode())
    except ValueError:  # what protobuf refuses, or merges; a name that is no text
        return reading.read(path), {}
    return reading.parse(content, what=str(path)), {path.name: file}


def with_contents(model: ModelProto, tensors: Mapping[str, Source]) -> tuple[list[bytes | Source], int]:
    """The bytes of a model with the contents of initializers that it lacks.

    Args:
        model: its initializers with the names of `tensors` are as by `placeholder`.
        tensors: their contents, by name.

    Returns:
        The parts of the bytes, and their total length. Parts that are tensors contribute their contents.
    """
    content = model.SerializeToString()
    scanner = _Scanner(_Memory(content))
    graph = _only(field for field in scanner.fields(0, len(content)) if field.number == GRAPH)
    fields = (field for field in scanner.fields(graph.value, graph.end) if field.number == INITIALIZER)
    parts: list[bytes | Source] = []
    copied = graph.value
    for field, tensor in zip(fields, model.graph.initializer, strict=True):
        if (source := tensors.get(tensor.name)) is not None:
            own = content[field.value : field.end] + varint(RAW_DATA << 3 | DELIMITED) + varint(source.nbytes)
            start = varint(INITIALIZER << 3 | DELIMITED) + varint(len(own) + source.nbytes) + own
            parts += [content[copied : field.start] + start, source]
            copied = field.end
    parts.append(content[copied : graph.end])
    start = content[: graph.start] + varint(GRAPH << 3 | DELIMITED) + varint(_length(parts))
    parts = [start, *parts, content[graph.end :]]
    return parts, _length(parts)


def placeholder(name: str, source: Source) -> TensorProto:
    """An initializer without contents."""
    element = helper.np_dtype_to_tensor_dtype(source.dtype)
    return TensorProto(name=name, data_type=element, dims=source.shape)


def set_external(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Make a part of a file, in the folder of the model, the contents of a tensor."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def location(tensor: TensorProto) -> str | None:
    """The file of a tensor that is external data; None for other tensors."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), None)


def _length(parts: Iterable[bytes | Source]) -> int:
    return sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)


class _Field(NamedTuple):
    """A field of a message, by positions in the file."""

    number: int
    wire_type: int
    start: int
    value: int
    """Of a length-delimited field, the first byte after the length."""
    end: int


def _light(file: OpenFile, location: str) -> bytes:
    """The contents of a file without those of large initializers; ValueError for fields that are not as expected."""
    scanner = _Scanner(file)
    graph = _only(field for field in scanner.fields(0, file.size) if field.number == GRAPH)
    pieces: list[bytes] = []
    copied = graph.value
    for field in scanner.fields(graph.value, graph.end):
        if field.number != INITIALIZER or field.end - field.value < LARGE_TENSOR:
            continue
        fields = [inner for inner in scanner.fields(field.value, field.end) if inner.number in {RAW_DATA, *EXTERNAL}]
        raw = next((inner for inner in fields if inner.number == RAW_DATA), None)
        if raw is None or len(fields) > 1 or raw.end - raw.value < LARGE_TENSOR:
            continue
        tensor = TensorProto()
        set_external(tensor, location, raw.value, raw.end - raw.value)
        own = file.read(field.value, raw.start - field.value) + file.read(raw.end, field.end - raw.end)
        pieces += [file.read(copied, field.start - copied), delimited(INITIALIZER, own + tensor.SerializeToString())]
        copied = field.end
    pieces.append(file.read(copied, graph.end - copied))
    return b"".join(
        [file.read(0, graph.start), delimited(GRAPH, b"".join(pieces)), file.read(graph.end, file.size - graph.end)]
    )


def _only(fields: Iterator[_Field]) -> _Field:
    (field,) = fields
    if field.wire_type != DELIMITED:
        raise ValueError("expected a message")
    return field


class _Readable(Protocol):
    """Bytes that can be read in parts."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes: ...


class _Memory:
    """Bytes in memory, as a `_Readable`."""

    def __init__(self, content: bytes) -> None:
        self._content, self.size = content, len(content)

    def read(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]


class _Scanner:
    """Finds the fields of messages."""

    def __init__(self, file: _Readable) -> None:
        self._file = file
        self._window = b""
        self._start = 0

    def fields(self, position: int, end: int) -> Iterator[_Field]:
        """The fields of the message between two positions; ValueError for bytes that are no message."""
        while position < end:
            start = position
            tag, position = self._varint(position)
            number, wire_type = tag >> 3, tag & 7
            value = position
            if wire_type == DELIMITED:
                length, value = self._varint(position)
                position = value + length
            elif wire_type == VARINT:
                _, position = self._varint(position)
            elif wire_type in (FIXED64, FIXED32):
                position += 8 if wire_type == FIXED64 else 4
            else:
                raise ValueError("a wire type that ONNX does not use")
            if position > end:
                raise ValueError("a field ends after its message")
            yield _Field(number, wire_type, start, value, position)

    def _varint(self, position: int) -> tuple[int, int]:
        """A number, and the position after it."""
        at = position - self._start
        if not 0 <= at <= len(self._window) - 10:
            available = min(WINDOW, self._file.size - position)
            self._window, self._start, at = self._file.read(position, max(available, 0)), position, 0
        window, value, shift = self._window, 0, 0
        while True:
            if at == len(window) or shift >= 64:
                raise ValueError("a number without an end")
            byte = window[at]
            value |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                return value, self._start + at
            shift += 7


def varint(value: int) -> bytes:
    """A number in the encoding of protobuf."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def delimited(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | DELIMITED) + varint(len(content)) + content
