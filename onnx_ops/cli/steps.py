"""What the commands about training steps have in common: arguments, options and refusals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from onnx_ops.cli.inspection import REFUSALS
from onnx_ops.cli.terminal import fail, reason
from onnx_ops.core.types import TensorType
from onnx_ops.training.arrays import numpy_dtype

StepFile = Annotated[Path, typer.Argument(metavar="STEP", help="An .onnx file of a training step.")]
BatchDimension = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the batch dimension.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples in a batch; by default as fixed by the step, else 32.")
]
Cast = Annotated[bool, typer.Option("--cast", help="Convert arrays to the dtypes of the step.")]
FORMATS = "An .npz, .safetensors or .parquet file, or a folder of .npy or .parquet files, or of a saved data set."


def described(name: str, tensor: TensorType) -> dict[str, object]:
    """An input or output in JSON: name, dtype and shape, whose dimensions are numbers, names or null."""
    shape = None if tensor.shape is None else list(tensor.shape)
    return {"name": name, "dtype": str(numpy_dtype(tensor)), "shape": shape}


@contextlib.contextmanager
def training_refusals(as_json: bool) -> Iterator[None]:
    """As `refusals`, also for errors of files and of steps."""
    try:
        yield
    except REFUSALS as refusal:
        fail(str(refusal), as_json)
    except OSError as error:
        fail(reason(error), as_json)
    except Exception as error:  # onnxruntime's exceptions have no common base class
        if type(error) is not RuntimeError and type(error).__module__.split(".")[0] != "onnxruntime":
            raise
        fail(str(error), as_json)
