"""Models whose weights are written tensor by tensor, into the model's file or a safetensors file next to it.

In the model they are external data, as ONNX has it, so that any reader of ONNX finds them. The safetensors file is a
checkpoint, and the metadata of the model have its checksum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_ops.core.step_format import CHECKSUM_METADATA, WEIGHTS_METADATA
from onnx_ops.graph.files import MOST_BYTES, ExternalData, ModelFileError, external_files
from onnx_ops.graph.light import location, set_external, with_contents
from onnx_ops.graph.metadata import metadata_of, set_metadata
from onnx_ops.graph.staging import is_replaceable, replacing
from onnx_ops.graph.stored import OpenFile, Source, blocks, same_bits
from onnx_ops.training.checkpoints import checkpoint_metadata, write_checkpoint
from onnx_ops.training.errors import StepError
from onnx_ops.training.safetensors_format import open_safetensors, write_safetensors

FOR_READERS = {"format": "pt"}
"""Metadata that some readers of safetensors files require."""


def fill(model: onnx.ModelProto, tensors: Mapping[str, Source]) -> None:
    """Set the contents of the initializers that are placeholders."""
    for tensor in model.graph.initializer:
        if tensor.name in tensors:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(tensors[tensor.name]), tensor.name))


def save_model(
    model: onnx.ModelProto, tensors: Mapping[str, Source], path: Path, weights: str, *, external: bool
) -> None:
    """Write a model in protobuf, atomically.

    Args:
        model: its initializers with the names of `tensors` are placeholders, which this function may change.
        tensors: their contents, by name.
        path: a new file or one to replace.
        weights: name of the safetensors file, in the same folder, for the contents.
        external: whether to write that file although the model does not need it: those above 2 GiB do.

    Raises:
        OSError: a file that cannot be written.
        ModelFileError: a path that is no regular file; a model that exceeds 2 GiB without the contents.
    """
    if model.ByteSize() > MOST_BYTES:
        raise ModelFileError(f"cannot write {path}: its constants alone exceed 2 GiB, which is protobuf's limit")
    parts, size = with_contents(model, tensors)
    external = external or size > MOST_BYTES
    if external and weights == path.name:
        raise ModelFileError(f"cannot write {path}: the model keeps external data in a file of that name")
    # The model is replaced last, so that it never exists without its weights.
    targets = [path.with_name(weights), path] if external else [path]
    for target in targets:
        if not is_replaceable(target):
            raise ModelFileError(f"cannot write {target}: it is not a regular file")
    with replacing(*targets) as folder:
        if external:
            parts = [_written(model, tensors, folder / weights)]
        with (folder / path.name).open("wb") as file:
            for part in parts:
                for block in [part] if isinstance(part, bytes) else blocks(part):
                    file.write(block)


def share_weights(model: onnx.ModelProto, tensors: Mapping[str, Source], path: Path) -> None:
    """Make initializers of a model external data in a safetensors file that other models may use too.

    Args:
        model: its initializers with the names of `tensors` are placeholders, which this function changes.
        tensors: their contents, by name.
        path: the file, in the folder of the model. It is written if it does not exist; else it must have the tensors.

    Raises:
        OSError: a file that cannot be read or written.
        StepError: no safetensors file, or one with other contents.
    """
    if not path.exists():
        write_checkpoint(path, tensors, FOR_READERS)
    stored, metadata = open_safetensors(path)
    for name, tensor in tensors.items():
        if name not in stored or not same_bits(stored[name], tensor):
            raise StepError(
                f"{path} {'has another' if name in stored else 'lacks'} '{name}', expected the weights of the step;"
                " name another file"
            )
    _refer(model, tensors, path.name, {name: stored[name].offset for name in tensors}, metadata.get(CHECKSUM_METADATA))


def _written(model: onnx.ModelProto, tensors: Mapping[str, Source], path: Path) -> bytes:
    """Write the tensors, and return the model with them as external data."""
    metadata = checkpoint_metadata(tensors, FOR_READERS)
    offsets = write_safetensors(path, tensors, metadata)
    _refer(model, tensors, path.name, offsets, metadata[CHECKSUM_METADATA])
    return model.SerializeToString()


def _refer(
    model: onnx.ModelProto, tensors: Mapping[str, Source], file: str, offsets: Mapping[str, int], checksum: str | None
) -> None:
    """Make initializers external data in a file, whose checksum the metadata of the model get."""
    for tensor in model.graph.initializer:
        if tensor.name in tensors and (size := tensors[tensor.name].nbytes):
            set_external(tensor, file, offsets[tensor.name], size)
        elif tensor.name in tensors:
            tensor.raw_data = b""
    set_metadata(model, WEIGHTS_METADATA, json.dumps({"file": file, "sha256": checksum}))


def check_files(model: onnx.ModelProto, path: Path) -> dict[str, OpenFile]:
    """Check the external data of a model at `path`, and that its safetensors file is the one that was written with it.

    The header of that file is checked, not its contents, which may be large.

    Returns:
        The safetensors file by its name; none if the model does not name one.

    Raises:
        OSError: a file that cannot be read.
        ModelFileError: as `external_files`.
        StepError: another safetensors file.
    """
    external_files(model, path)
    text = metadata_of(model, WEIGHTS_METADATA)
    if text is None:
        return {}
    try:
        record = json.loads(text)
        name, checksum = record["file"], record["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StepError(f"the entry '{WEIGHTS_METADATA}' of the model's metadata cannot be read: {error!r}") from error
    external = [tensor for tensor in model.graph.initializer if location(tensor) == name]
    if not external:  # other programs may write the model as one file, or with external data of their own
        return {}
    tensors, metadata = open_safetensors(path.parent / name)
    opened = {tensor.file.path.name: tensor.file for tensor in tensors.values()}
    data = ExternalData(path, opened)
    same = all(tensors.get(tensor.name) == data.stored(tensor) for tensor in external)
    if not same or metadata.get(CHECKSUM_METADATA) != checksum:
        raise StepError(f"{path.parent / name} does not belong to {path}, expected the weights that were saved with it")
    return opened
