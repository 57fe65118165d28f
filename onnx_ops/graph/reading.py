"""Models read from files and bytes."""

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
"""Brackets within brackets that a model in ONNX's text syntax may have. Its parser goes down without a limit, until the
stack overflows; protobuf takes no more than a hundred messages within messages, and each pair of brackets is one."""
MOST_NODES = 1_000_000
"""Nodes that a model may have, with its functions inlined: more are soon more than memory holds."""
MOST_TEXT = 1000
"""Characters of another package's message in one of ours."""


def load_model(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of a model; external data stays external.

    Raises:
        OSError: a file that cannot be read.
        LinkError: what is no model.
    """
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        check(copy)
        return copy
    if isinstance(model, bytes | bytearray | memoryview):
        return parse(bytes(model))
    return read(Path(os.fspath(model)))


def read(path: Path) -> onnx.ModelProto:
    """A model in the format that the file's ending stands for; external data stays external.

    Raises:
        OSError: a file that cannot be read.
        LinkError: one that is no model.
    """
    content = path.read_bytes()
    name = registry.get_format_from_file_extension(path.suffix) or "protobuf"
    if name == "onnxtxt" and _depth(content) > DEEPEST:
        raise LinkError(f"{path} is no ONNX model: brackets in it are nested more than {DEEPEST} deep")
    return parse(content, name, str(path))


def parse(content: bytes, name: str = "protobuf", what: str = "this") -> onnx.ModelProto:
    """A model from the contents of a file in the format of this name; LinkError, in which `what` is no model."""
    try:
        if name == "onnxtxt":  # where onnx.load_model would warn that the format is experimental
            model = parser.parse_model(content.decode())
        else:
            model = onnx.load_model_from_string(content, name)
    except Exception as error:  # the parser of each format has exceptions of its own
        raise LinkError(f"{what} is no ONNX model: {one_line(error)}") from error
    check(model, what)
    return model


def check(model: onnx.ModelProto, what: str = "this") -> None:
    """Refuse what is no model: one without a graph, with too many nodes or empty ones, with a name that is no text.

    Protobuf lets in names that are no UTF-8, as bytes, where nothing else expects them.
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
    """The text of an exception; of a long one, which may quote a whole file, the beginning and the end."""
    text = error.args[0] if error.args else error
    line = " ".join((text.decode(errors="replace") if isinstance(text, bytes) else str(text)).split())
    half = MOST_TEXT // 2
    return line if len(line) <= MOST_TEXT else f"{line[:half]} ... {line[-half:]}"


def _depth(content: bytes) -> int:
    """How deep brackets are nested in ONNX's text syntax."""
    depth = deepest = 0
    # Possessive, so that a string without an end is not looked at once more from each of its quotes.
    for match in re.finditer(rb'"(?:[^"\\]|\\.)*+"?|#[^\n]*|[\[({]|[\])}]', content, re.DOTALL):
        depth += match[0] in b"[({" or -(match[0] in b"])}")
        deepest = max(deepest, depth)
    return deepest


def _no_text(message: Any) -> Any:
    """The first string in a message that is none, or None."""
    if isinstance(message, onnx.TensorProto):  # its contents are no names, and may be large
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
