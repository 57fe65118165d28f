"""Ranges of indices: what a step says of its inputs, and what a trainer refuses by it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
import steps
from backends import kernel_options
from onnx import TensorProto, helper

import onnx_ops
from onnx_ops.core.step_format import STEP_METADATA, InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Builder
from onnx_ops.training.errors import StepError
from onnx_ops.training.ranges import IndexRange
from onnx_ops.training.step import Step
from onnx_ops.training.step_files import step_model

NUMBERS = np.array([[0, 7, -1], [2, 5, 9]])


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (IndexRange("t", -1, 10), None),
        (IndexRange("t", 0, 10, -1), None),
        (IndexRange("t", 0, 10), "'t'[0, 2] is -1, expected an index of 0 to 9"),
        (IndexRange("t", 0, 9, -1), "'t'[1, 2] is 9, expected an index of 0 to 8, or -1, which is ignored"),
        (IndexRange("t", 0, 3, cuts=((1, 0),)), None),
        (IndexRange("t", 0, 2, cuts=((1, 0),)), "'t'[1, 0] is 2, expected an index of 0 to 1"),
        (IndexRange("t", 0, 10, cuts=((1, 0, 2, 1),)), None),
        (IndexRange("t", 0, 7, cuts=((0, 1, 2**63 - 1, 1), (1, -1))), "'t'[1, 2] is 9, expected an index of 0 to 6"),
        (IndexRange("t", 0, 1, cuts=((0, 5, 9, 1),)), None),
        (IndexRange("t", 0, 1, cuts=((0, 2), (0, 0))), None),
    ],
    ids=str,
)
def test_problems(found: IndexRange, problem: str | None) -> None:
    assert found.problem(NUMBERS) == problem
    assert IndexRange.of_entry(json.loads(json.dumps(found.entry()))) == found


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_a_number_alone(dtype: type) -> None:
    found = IndexRange("label", 0, 3, -100)
    assert found.problem(np.array(2, dtype)) is None
    assert found.problem(np.array(3, dtype)) == "'label' is 3, expected an index of 0 to 2, or -100, which is ignored"


def looked_up() -> onnx.ModelProto:
    """A step that adds up rows of its parameter."""
    b = Builder(TensorProto.FLOAT)
    rows = TensorType(TensorProto.FLOAT, (3, 2))
    weight = b.input("weight", rows)
    found = b.op("Gather", weight, b.input("rows", TensorType(TensorProto.INT64, ("N",))), axis=0)
    x = b.input("x", TensorType(TensorProto.FLOAT, ("N", 2)))
    b.output("loss", b.op("ReduceSum", found * x, keepdims=0), TensorType(TensorProto.FLOAT, ()))
    b.output("next.weight", b.op("Neg", weight), rows)
    model = helper.make_model(b.graph("lookup"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Step({"weight": InputRole.PARAMETER}, ranges=(IndexRange("rows", 0, 3),)).write_into(model)
    return model


def test_a_trainer_refuses_indices_out_of_range() -> None:
    """Also after its file has been written and read; the state stays as it was."""
    model = step_model(looked_up(), {"weight": np.ones((3, 2), np.float32)})
    trainer = onnx_ops.Trainer(model.SerializeToString(), kernel_options())
    x = np.zeros((4, 2), np.float32)
    for wrong in (-1, 3):
        with pytest.raises(StepError, match=rf"^'rows'\[2\] is {wrong}, expected an index of 0 to 2$"):
            trainer.step(rows=np.array([0, 1, wrong, 2]), x=x)
        np.testing.assert_array_equal(trainer.weights()["weight"], np.ones((3, 2)))
    trainer.step(rows=np.array([0, 1, 2, 2]), x=x)
    np.testing.assert_array_equal(trainer.weights()["weight"], -np.ones((3, 2)))


GOOD = {"input": "rows", "low": 0, "high": 3}


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({}, "'ranges' is no list"),
        (["rows"], "expected an object with input, low and high"),
        ([{"input": "rows", "low": 0}], "expected an object with input, low and high"),
        ([GOOD | {"most": 3}], "expected an object with input, low and high"),
        ([GOOD | {"high": 2.5}], "whole numbers"),
        ([GOOD | {"ignored": True}], "whole numbers"),
        ([GOOD | {"input": 3}], "the name of an input"),
        ([GOOD | {"cuts": [[0]]}], "expected lists of 2 or 4 numbers"),
        ([GOOD | {"cuts": [[0, "a"]]}], "whole numbers"),
        ([GOOD | {"cuts": [[1, 0]]}], "input 'rows' is int64 (N,), which does not fit"),
        ([GOOD | {"cuts": [[0, 0, 1, 0]]}], "does not fit its range of indices"),
        ([GOOD | {"input": "x"}], "input 'x' is float32 (N, 2), which does not fit its range of indices"),
        ([GOOD | {"input": "weight"}], "'weight' has a range of indices, but is no input of the batch"),
        ([GOOD | {"input": "y"}], "'y' has a range of indices, but is no input of the batch"),
    ],
    ids=str,
)
def test_what_cannot_be_read(ranges: Any, words: str) -> None:
    model = looked_up()
    entry = next(e for e in model.metadata_props if e.key == STEP_METADATA)
    entry.value = json.dumps(json.loads(entry.value) | {"ranges": ranges})
    with pytest.raises(StepError) as refused:
        Step.of(model)
    assert words in str(refused.value)


def test_a_step_without_ranges_names_none() -> None:
    model = steps.bare_step()
    entry = next(e for e in model.metadata_props if e.key == STEP_METADATA)
    assert set(json.loads(entry.value)) == {"format", "roles", "tied"}
