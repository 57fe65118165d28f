"""`make models`: captures the training steps in this folder from PyTorch and writes their files.

Run it from the root of the repository: `python -m models.capturing`. Requires torch and onnxscript, `onnx-ops[torch]`.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
import warnings

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models.batch_norm_workers import network as batch_norm_workers
from models.distillation import network as distillation
from models.line_reader import network as line_reader
from models.multilabel import network as multilabel
from models.sparse_coding import network as sparse_coding
from models.torch_step import TorchStep, first_losses
from onnx_ops.core.step_format import STEP_METADATA, InputRole
from onnx_ops.torch import Capture
from onnx_ops.training.step import Step

STEPS: tuple[TorchStep, ...] = (
    batch_norm_workers.STEP,
    distillation.TEACHER_STEP,
    distillation.STUDENT_STEP,
    line_reader.STEP,
    multilabel.STEP,
    sparse_coding.STEP,
)

WIDTH = 120

AttributeValue = (
    int | float | str | bytes | onnx.TensorProto | onnx.GraphProto | list[int] | list[float] | list[str] | list[bytes]
)


def without_state(capture: Capture) -> onnx.ModelProto:
    """The model of a captured step, whose only initializers of the state are the defaults of its settings."""
    model = onnx.ModelProto()
    model.CopyFrom(capture.model)
    settings = Step.of(model).names(InputRole.SETTING)
    model.graph.initializer.extend(numpy_helper.from_array(capture.state[name], name) for name in settings)
    return model


def inference(capture: Capture) -> onnx.ModelProto | None:
    """The inference graph of a captured step, None if it has none; parameters and buffers are required inputs."""
    if capture.inference is None:
        return None
    model, state = onnx.ModelProto(), Step.of(capture.model).roles
    model.CopyFrom(capture.inference)
    taken = [tensor for tensor in model.graph.initializer if tensor.name in state]
    for tensor in taken:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)
    return model


def text(model: onnx.ModelProto) -> str:
    """A model in ONNX's text format, without names of nodes and without the types of intermediate values.

    Raises:
        ValueError: the text does not represent the numbers of the model exactly.
    """
    short = onnx.ModelProto()
    short.CopyFrom(model)
    del short.graph.value_info[:]
    for node in short.graph.node:
        node.ClearField("name")
    lines = onnx.printer.to_text(short).splitlines()
    written = "".join(f"{wrapped(with_points(line))}\n" for line in lines)
    read = onnx.parser.parse_model(written).graph
    for kind in ("initializer", "node"):
        for one, other in zip(getattr(short.graph, kind), getattr(read, kind), strict=True):
            if not same(one, other):
                raise ValueError(f"the text does not represent this {kind} exactly: {one}")
    return written


def with_points(line: str) -> str:
    """Write a decimal point in all float attributes of a line: onnx 1.19 reads `1` as an integer."""

    def with_point(match: re.Match[str]) -> str:
        return match[1] + re.sub(r"(?<![\w.+-])(-?\d+)(?=[\],> ]|$)", r"\1.0", match[2])

    return re.sub(r"(: floats? = )(\[[^\]]*\]|[^,>]+)", with_point, line)


def wrapped(line: str) -> str:
    """Break a line of a model's text at `WIDTH`; the metadata are one string, which cannot be broken."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    if STEP_METADATA in line:
        return line.rstrip()
    return textwrap.fill(line.rstrip(), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def same(one: onnx.NodeProto | AttributeValue, other: onnx.NodeProto | AttributeValue) -> bool:
    """Whether two nodes, tensors or values of attributes are equal, tensors in dtype and bytes of the elements."""
    if isinstance(one, onnx.TensorProto) and isinstance(other, onnx.TensorProto):
        arrays: list[np.ndarray] = [numpy_helper.to_array(one), numpy_helper.to_array(other)]
        return arrays[0].dtype == arrays[1].dtype and arrays[0].tobytes() == arrays[1].tobytes()
    if not (isinstance(one, onnx.NodeProto) and isinstance(other, onnx.NodeProto)):
        return one == other
    first, second = ({a.name: helper.get_attribute_value(a) for a in node.attribute} for node in (one, other))
    return (
        one.op_type == other.op_type
        and first.keys() == second.keys()
        and all(same(value, second[name]) for name, value in first.items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Capture all training steps from PyTorch and write their files.")
    parser.parse_args()
    warnings.simplefilter("ignore")  # PyTorch warns of its own internals
    for step in STEPS:
        files = step.training.files
        capture = step.capture()
        model = without_state(capture)
        for path, kept in ((files.step, model), (files.inference, inference(capture))):
            if kept is not None:
                path.write_text(text(kept))
        files.losses.write_text(json.dumps(first_losses(step, model).tolist(), indent=0) + "\n")
        print(f"{step.training.title}: {files.step}, {files.step.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
