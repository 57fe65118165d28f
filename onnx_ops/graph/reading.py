"""Reading models from files and bytes."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import onnx
from onnx import parser
from onnx.serialization import registry

from onnx_ops.core.errors import LinkError
from onnx_ops.graph.walk import all_nodes

DEEPEST = 100
"""Maximum nesting of brackets in ONNX's text syntax: its parser recurses until the stack overflows, while protobuf
limits the nesting of messages, one per pair of brackets, to 100."""
MOST_NODES = 1_000_000
"""Limit for a model with its functions inlined: more nodes are soon more than memory holds."""
MOST_TEXT = 1000
"""Limit, in characters, for the message of another package within an error message."""


def is_protobuf(path: Path) -> bool:
    """Whether the extension of a file is none of ONNX's text formats."""
    return registry.get_format_from_file_extension(path.suffix) in (None, "protobuf")


Source = onnx.ModelProto | bytes | str | os.PathLike[str]


def load_model(model: Source, *, checked: bool = True) -> onnx.ModelProto:
    """A copy of a model; external data stays external.

    Args:
        model: a ModelProto, its bytes, or a path.
        checked: whether to `check` the model, which takes longer than to parse a small one.

    Raises:
        OSError: a file that cannot be read.
        LinkError: not a model.
    """
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        if checked:
            check(copy)
        return copy
    if isinstance(model, bytes | bytearray | memoryview):
        return parse(bytes(model), checked=checked)
    return read(Path(os.fspath(model)), checked=checked)


def name_of(model: Source) -> str:
    """How messages name a model: by the path of its file."""
    return str(Path(os.fspath(model))) if isinstance(model, str | os.PathLike) else "this"


def read(path: Path, *, checked: bool = True) -> onnx.ModelProto:
    """A model in the format of the file's extension; external data stays external.

    Args:
        path: of the file.
        checked: as for `load_model`.

    Raises:
        OSError: a file that cannot be read.
        LinkError: not a model.
    """
    content = path.read_bytes()
    name = registry.get_format_from_file_extension(path.suffix) or "protobuf"
    if name == "onnxtxt" and _depth(content) > DEEPEST:
        raise LinkError(f"{path} is no ONNX model: brackets in it are nested more than {DEEPEST} deep")
    return parse(content, name, str(path), checked=checked)


def parse(content: bytes, name: str = "protobuf", what: str = "this", *, checked: bool = True) -> onnx.ModelProto:
    """A model from the contents of a file in a format; raises LinkError, naming the file `what`, if it is not one."""
    try:
        if name == "onnxtxt":  # where onnx.load_model would warn that the format is experimental
            model = parser.parse_model(content.decode())
        else:
            model = onnx.load_model_from_string(content, name)
    except Exception as error:  # each format raises exceptions of its own
        raise LinkError(f"{what} is no ONNX model: {one_line(error)}") from error
    if checked:
        check(model, what)
    return model


def check(model: onnx.ModelProto, what: str = "this") -> None:
    """Raise LinkError for a model without a graph, with too many or empty nodes, or with a name that is not UTF-8.

    Protobuf accepts such names and returns them as bytes.
    """
    if not model.HasField("graph"):
        raise LinkError(f"{what} is no ONNX model: there is no graph in it")
    for count, node in enumerate(itertools.chain(*map(all_nodes, (model.graph, *model.functions)))):
        if count == MOST_NODES:
            raise LinkError(f"{what} has more than {MOST_NODES} nodes, expected fewer")
        if not node.op_type:
            raise LinkError(f"{what} is no proper ONNX model: there is a node in it that names no operator")
    if (name := _no_text(model)) is not None:
        raise LinkError(f"{what} is no proper ONNX model: there is a name in it that is no text, {name!r}")


def one_line(error: Exception) -> str:
    """The message of an exception on one line; of one that may quote a whole file, the beginning and the end."""
    text = error.args[0] if error.args else error
    line = " ".join((text.decode(errors="replace") if isinstance(text, bytes) else str(text)).split())
    half = MOST_TEXT // 2
    return line if len(line) <= MOST_TEXT else f"{line[:half]} ... {line[-half:]}"


def _depth(content: bytes) -> int:
    """Maximum nesting of brackets in ONNX's text syntax."""
    depth = deepest = 0
    # Possessive, so that a string without an end is not looked at once more from each of its quotes.
    for match in re.finditer(rb'"(?:[^"\\]|\\.)*+"?|#[^\n]*|[\[({]|[\])}]', content, re.DOTALL):
        depth += match[0] in b"[({" or -(match[0] in b"])}")
        deepest = max(deepest, depth)
    return deepest


def _no_text(message: Any) -> Any:
    """The first string in a message that is not valid UTF-8, or None."""
    if isinstance(message, onnx.TensorProto):  # its data, which may be large, is skipped
        entries = [text for entry in message.external_data for text in (entry.key, entry.value)]
        return next((text for text in (message.name, *entries) if not isinstance(text, str)), None)
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for item in value if field.is_repeated else [value]:
            found = _no_text(item) if field.type == field.TYPE_MESSAGE else None if isinstance(item, str) else item
            if found is not None:
                return found
    return None
