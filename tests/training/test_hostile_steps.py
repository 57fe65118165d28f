"""Files of steps that are damaged: they are refused by an exception of this package, or train."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
import onnxruntime as ort
import pytest
import steps

from onnx_ops import LinkError, OpError, StepError, Trainer
from onnx_ops.graph.files import ModelFileError

REFUSALS = (StepError, OpError, LinkError, ModelFileError)
FLIPS = 16
"""How many files with one other bit are tried."""


def quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return options


def trained_or_refused(content: bytes) -> bool:
    """Whether a step trains; anything but a refusal of this package is raised."""
    try:
        Trainer(content, quiet()).step(**steps.batch())
    except REFUSALS:
        return False
    return True


def test_other_bits() -> None:
    content, rng = steps.whole_step().SerializeToString(), random.Random(0)
    done = []
    for place in rng.sample(range(len(content)), FLIPS):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.randrange(8)
        done.append(trained_or_refused(bytes(flipped)))
    assert set(done) == {False, True}, "some of these bits matter, others do not"


def without_an_input(model: onnx.ModelProto) -> None:
    del model.graph.input[-1]


def input_of_another_type(model: onnx.ModelProto) -> None:
    model.graph.input[-1].type.tensor_type.elem_type = onnx.TensorProto.INT64


def input_of_no_type(model: onnx.ModelProto) -> None:
    model.graph.input[-1].ClearField("type")


def input_twice(model: onnx.ModelProto) -> None:
    model.graph.input.append(model.graph.input[0])


def start_cut_short(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-1]


def start_of_an_unknown_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 99


def start_of_no_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 0


def nodes_that_read_nothing(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.ClearField("input")


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Nope"


def of_the_future(model: onnx.ModelProto) -> None:
    model.ir_version = 99


@pytest.mark.parametrize(
    "change",
    [
        without_an_input,
        input_of_another_type,
        input_of_no_type,
        input_twice,
        start_cut_short,
        start_of_an_unknown_type,
        start_of_no_type,
        nodes_that_read_nothing,
        unknown_operator,
        of_the_future,
    ],
)
def test_damage_is_refused(change: Callable[[onnx.ModelProto], None]) -> None:
    model = steps.whole_step()
    change(model)
    assert not trained_or_refused(model.SerializeToString())
