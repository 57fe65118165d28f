"""The metadata of a model: texts by key."""

from __future__ import annotations

import onnx


def metadata_of(model: onnx.ModelProto, key: str) -> str | None:
    """An entry of the metadata; None if there is none."""
    return next((entry.value for entry in model.metadata_props if entry.key == key), None)


def set_metadata(model: onnx.ModelProto, key: str, value: str) -> None:
    """Add an entry to the metadata, or replace it."""
    entry = next((entry for entry in model.metadata_props if entry.key == key), None) or model.metadata_props.add()
    entry.key, entry.value = key, value


def remove_metadata(model: onnx.ModelProto, key: str) -> None:
    """Remove the entries of a key from the metadata."""
    for entry in [entry for entry in model.metadata_props if entry.key == key]:
        model.metadata_props.remove(entry)
