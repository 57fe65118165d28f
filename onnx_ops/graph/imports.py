"""What versions of domains a model and its functions import."""

from __future__ import annotations

import onnx
from onnx import helper

from onnx_ops.graph.walk import Importer


def spelled(domain: str) -> str:
    """The domain, in the shorter of the two spellings that the default domain has."""
    return "" if domain == "ai.onnx" else domain


def versions(importer: Importer) -> dict[str, int]:
    """The versions by domain."""
    return {spelled(entry.domain): entry.version for entry in importer.opset_import}


def add_import(importer: Importer, domain: str, version: int) -> None:
    """Import a domain, unless some version of it is imported already."""
    if spelled(domain) not in versions(importer):
        importer.opset_import.append(helper.make_opsetid(domain, version))


def default_opset(model: onnx.ModelProto, otherwise: int) -> int:
    """The version of the default domain that a model imports; if none, the newest that a function of it does."""
    own = versions(model)
    if "" in own:
        return own[""]
    return max((v[""] for v in map(versions, model.functions) if "" in v), default=otherwise)
