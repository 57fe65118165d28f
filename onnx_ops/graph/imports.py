"""Opset imports of models and functions."""

from __future__ import annotations

import onnx
from onnx import helper

from onnx_ops.graph.walk import Importer


def normalized(domain: str) -> str:
    """The domain; "" for its alias "ai.onnx"."""
    return "" if domain == "ai.onnx" else domain


def versions(importer: Importer) -> dict[str, int]:
    """Imported versions by normalized domain."""
    return {normalized(entry.domain): entry.version for entry in importer.opset_import}


def add_import(importer: Importer, domain: str, version: int) -> None:
    """Import a domain, unless a version of it is imported already."""
    if normalized(domain) not in versions(importer):
        importer.opset_import.append(helper.make_opsetid(domain, version))


def default_opset(model: onnx.ModelProto, otherwise: int) -> int:
    """The imported version of the default domain; if none, the newest imported by a function, else `otherwise`."""
    own = versions(model)
    if "" in own:
        return own[""]
    return max((v[""] for v in map(versions, model.functions) if "" in v), default=otherwise)
