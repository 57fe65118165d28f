"""Files of weights as libraries of pretrained models write them: one safetensors file, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from onnx_ops.core.types import TensorType
from onnx_ops.graph.stored import Source, StoredTensor
from onnx_ops.training.arrays import array_text, numpy_dtype, tensor_text
from onnx_ops.training.checkpoints import open_checkpoint
from onnx_ops.training.errors import StepError

WEIGHTS = "model.safetensors"
"""The file of a folder that has the weights."""
INDEX = ".safetensors.index.json"
"""How the name of an index ends."""
FLOATING = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.float64))


def open_weights(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, of the files that an index names, or of a folder with either. They are not read yet.

    Raises:
        OSError: a file that cannot be read.
        StepError: a folder without such a file, or with several; what is no safetensors file, or no index.
    """
    if path.is_dir():
        path = _file_in(path)
    if not path.name.endswith(INDEX):
        return open_checkpoint(path)[0]
    files = _files_of_index(path)
    opened = {file: open_checkpoint(path.parent / file)[0] for file in dict.fromkeys(files.values())}
    for name, file in files.items():
        if name not in opened[file]:
            raise StepError(f"{path.parent / file} lacks '{name}', which it has according to {path}")
    return {name: opened[file][name] for name, file in files.items()}


def _file_in(folder: Path) -> Path:
    """The file of weights in a folder, or the index of several."""
    for name in (WEIGHTS, WEIGHTS.removesuffix(".safetensors") + INDEX):
        if (folder / name).exists():
            return folder / name
    for pattern in (f"*{INDEX}", "*.safetensors"):  # such as diffusion_pytorch_model.safetensors
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            break
    names = ", ".join(sorted(file.name for file in folder.iterdir())) or "nothing"
    raise StepError(
        f"the folder {folder} has {names}, expected {WEIGHTS}, its index, or a single other safetensors file"
    )


def _files_of_index(path: Path) -> dict[str, str]:
    """The file of each tensor."""
    try:
        files = json.loads(path.read_bytes())["weight_map"]
        if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
            raise ValueError("its 'weight_map' is no object of strings")
        if outside := [file for file in files.values() if Path(file).name != file]:
            raise ValueError(f"it names the file '{outside[0]}', expected one in its folder")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StepError(f"{path} is no index of safetensors files: {error!r}") from error
    return files


def converted(tensors: Mapping[str, Source], types: Mapping[str, TensorType], *, cast: bool) -> dict[str, Source]:
    """Tensors in the dtypes of a state.

    Args:
        tensors: by the names in the state.
        types: of the state.
        cast: whether floating tensors are converted to other floating dtypes.

    Raises:
        StepError: another dtype.
    """
    found = dict(tensors)
    for name, tensor in tensors.items():
        wanted = numpy_dtype(types[name])
        if tensor.dtype == wanted:
            continue
        both = tensor.dtype in FLOATING and wanted in FLOATING
        if not (cast and both):
            hint = "; cast=True converts it" if both else ""
            raise StepError(f"'{name}' is {array_text(tensor)}, expected {tensor_text(types[name])}{hint}")
        with np.errstate(over="ignore"):
            found[name] = np.asarray(tensor).astype(wanted)
    return found
