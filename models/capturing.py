"""`make models`: captures the steps of all trainings from PyTorch, and writes the files that are kept of them.

Run it from the repository's root: `python -m models.capturing`. It needs torch and onnxscript, `onnx-ops[torch]`.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
import warnings
from typing import Any

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
"""Of all trainings."""

WIDTH = 120


def unstarted(capture: Capture) -> onnx.ModelProto:
    """A captured step with the defaults of its settings, and nothing else of its state."""
    model = onnx.ModelProto()
    model.CopyFrom(capture.model)
    settings = Step.of(model).names(InputRole.SETTING)
    model.graph.initializer.extend(numpy_helper.from_array(capture.state[name], name) for name in settings)
    return model


def inference(capture: Capture) -> onnx.ModelProto | None:
    """The inference graph of a captured step; parameters and buffers are inputs without a default."""
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
    """A model in ONNX's text format, without the names of nodes and without types that the others tell.

    Raises:
        ValueError: numbers that the text does not tell exactly.
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
                raise ValueError(f"the text does not tell this {kind} exactly: {one}")
    return written


def with_points(line: str) -> str:
    """A line of a model's text whose floating attributes are no whole numbers: onnx 1.19 reads 1 for an integer."""

    def told(match: re.Match[str]) -> str:
        return match[1] + re.sub(r"(?<![\w.+-])(-?\d+)(?=[\],> ]|$)", r"\1.0", match[2])

    return re.sub(r"(: floats? = )(\[[^\]]*\]|[^,>]+)", told, line)


def wrapped(line: str) -> str:
    """A line of a model's text, broken where it is too long to read; the metadata stand in one string."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    if STEP_METADATA in line:
        return line.rstrip()
    return textwrap.fill(line.rstrip(), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def same(one: Any, other: Any) -> bool:
    """Whether two nodes, tensors, or values of attributes are alike, whatever their numbers are stored as."""
    if isinstance(one, onnx.TensorProto):
        arrays = numpy_helper.to_array(one), numpy_helper.to_array(other)
        return arrays[0].dtype == arrays[1].dtype and arrays[0].tobytes() == arrays[1].tobytes()
    if not isinstance(one, onnx.NodeProto):
        return one == other
    first, second = ({a.name: helper.get_attribute_value(a) for a in node.attribute} for node in (one, other))
    return (
        one.op_type == other.op_type
        and first.keys() == second.keys()
        and all(same(value, second[name]) for name, value in first.items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Capture the steps of all trainings, and keep what they are.")
    parser.parse_args()
    warnings.simplefilter("ignore")  # of PyTorch, on its own insides
    for step in STEPS:
        files = step.training.files
        capture = step.capture()
        model = unstarted(capture)
        for path, kept in ((files.step, model), (files.inference, inference(capture))):
            if kept is not None:
                path.write_text(text(kept))
        files.losses.write_text(json.dumps(first_losses(step, model).tolist(), indent=0) + "\n")
        print(f"{step.training.title}: {files.step}, {files.step.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
