"""What a step's model says of itself, and the inference graph in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import steps
from backends import assert_close, assert_same_bits, options
from linear_oracle import Oracle
from onnx import TensorProto, helper, numpy_helper, parser

import onnx_ops
from onnx_ops.core.step_format import CARRIED_DOMAIN, INFERENCE, STEP_METADATA, InputRole
from onnx_ops.graph.functions import function_key
from onnx_ops.training.errors import StepError
from onnx_ops.training.inference import inference_model, with_carried
from onnx_ops.training.step import Bounds, Step
from onnx_ops.training.step_files import step_model

# Sums of three products and a sigmoid near 1: a few roundings of float32.
FLOAT32 = 1e-6


def run(session: ort.InferenceSession, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, arrays), strict=True))


def test_metadata_are_read_as_written() -> None:
    model = steps.bare_step()
    assert Step.of(model) == steps.STEP
    assert json.loads(model.metadata_props[0].value) == {
        "format": "1.1",
        "roles": {
            "linear.weight": "parameter",
            "linear.bias": "parameter",
            "mean": "buffer",
            "optimizer.momentum.linear.weight": "optimizer",
            "seed": "seed",
            "learning_rate": "setting",
        },
        "tied": {"head.weight": "linear.weight"},
    }
    assert Step.of(onnx_ops.link(model)) == steps.STEP
    assert steps.STEP.names(InputRole.BUFFER, InputRole.SEED) == ["mean", "seed"]
    assert list(steps.STEP.batch(model)) == ["x", "y"]


def test_bounds_are_read_as_written() -> None:
    model = steps.bare_step()
    step = Step(steps.ROLES, {}, {"N": Bounds(2), "time": Bounds(16, 512)})
    step.write_into(model)
    assert Step.of(model) == step
    assert json.loads(model.metadata_props[0].value)["bounds"] == {
        "N": {"min": 2, "max": None},
        "time": {"min": 16, "max": 512},
    }


@pytest.mark.parametrize("version", [None, "1.0", "1.7"])
def test_other_keys_are_ignored(version: str | None) -> None:
    """Those that a later minor version may add; files of before 1.0 was named have no version."""
    model = steps.bare_step()
    record = json.loads(model.metadata_props[0].value)
    assert record.pop("format") == "1.1"
    bounds = {"bounds": {"N": {"min": 2, "max": None, "multiple": 2}}}
    named = {} if version is None else {"format": version}
    model.metadata_props[0].value = json.dumps(named | record | bounds | {"more": []})
    assert Step.of(model) == Step(steps.ROLES, steps.STEP.tied, {"N": Bounds(2)})


def test_written_twice_is_there_once() -> None:
    model = steps.bare_step()
    Step(steps.ROLES).write_into(model)
    assert [entry.key for entry in model.metadata_props] == [STEP_METADATA]
    assert Step.of(model) == Step(steps.ROLES)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, f"the model is no training step: its metadata have no entry '{STEP_METADATA}'"),
        ("{", "cannot be read: Expecting property name"),
        ("[" * 100_000, "cannot be read: maximum recursion depth"),
        ("[]", 'expected an object {"format": ..., "roles": ..., "tied": ...}'),
        ('{"roles": {}}', 'expected an object {"format": ..., "roles": ..., "tied": ...}'),
        ('{"format": 1, "roles": {}, "tied": {}}', 'its format version is 1, expected a string such as "2.0"'),
        ('{"format": null, "roles": {}, "tied": {}}', 'its format version is null, expected a string such as "2.0"'),
        ('{"format": "one", "roles": {}, "tied": {}}', 'its format version is "one", expected a string such as "2.0"'),
        ('{"format": "3.0", "parts": []}', "its format version is 3.0, expected at most 2.0: update onnx_ops"),
        ('{"roles": {}, "tied": {}, "bounds": []}', "'bounds' is not an object"),
        ('{"roles": {}, "tied": {}, "bounds": {"N": 3}}', "'bounds' has 3 for 'N', expected {\"min\": ..., \"max\""),
        ('{"roles": {}, "tied": {}, "bounds": {"N": {"min": 3, "max": 2}}}', 'has {"min": 3, "max": 2} for \'N\''),
        ('{"roles": {}, "tied": {}, "bounds": {"N": {"min": 1.5, "max": 2}}}', 'has {"min": 1.5, "max": 2} for \'N\''),
        ('{"roles": {"seed": 1}, "tied": {}}', "'roles' is not an object of strings"),
        ('{"roles": {}, "tied": []}', "'tied' is not an object of strings"),
        (
            '{"roles": {"seed": "luck"}, "tied": {}}',
            "'seed' has the role 'luck', expected one of buffer, optimizer, parameter, seed, setting",
        ),
        ('{"roles": {"w": "buffer"}, "tied": {}}', "'w' has the role 'buffer', but the step has no input of that name"),
        ('{"roles": {"x": "buffer"}, "tied": {}}', "'x' has the role 'buffer' and is float32 (N, 3), expected a fixed"),
        (
            '{"roles": {"mean": "seed"}, "tied": {}}',
            "'mean' has the role 'seed' and is float32 (3,), expected int64",
        ),
        (
            '{"roles": {"seed": "setting"}, "tied": {}}',
            "input 'seed' has the role 'setting' and is int64 (), expected float32 () or float64 ()",
        ),
        (
            '{"roles": {"linear.weight": "parameter"}, "tied": {}}',
            "output 'next.linear.bias' is the next value of 'linear.bias', which is no state of the step",
        ),
    ],
)
def test_metadata_that_do_not_fit_are_refused(text: str | None, problem: str) -> None:
    model = steps.bare_step()
    del model.metadata_props[:]
    if text is not None:
        model.metadata_props.add(key=STEP_METADATA, value=text)
    with pytest.raises(StepError) as refused:
        Step.of(model)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("tied", "problem"),
    [
        ({"other": "seed"}, "'other' is tied to 'seed', which is no parameter and no buffer of the step"),
        ({"other": "x"}, "'other' is tied to 'x', which is no parameter and no buffer of the step"),
        ({"mean": "linear.bias"}, "'mean' is tied to 'linear.bias', but is an input of its own"),
    ],
)
def test_ties_that_do_not_fit_are_refused(tied: dict[str, str], problem: str) -> None:
    with pytest.raises(StepError, match=problem):
        Step(steps.ROLES, tied).write_into(steps.bare_step())


def test_next_value_of_another_type_is_refused() -> None:
    model = steps.bare_step()
    (output,) = (output for output in model.graph.output if output.name == "next.mean")
    output.type.tensor_type.shape.dim[0].dim_value = 4
    with pytest.raises(StepError, match=r"'next.mean' is float32 \(4,\), expected that of the input, float32 \(3,\)"):
        Step.of(model)


def test_a_step_alone_makes_a_step_in_a_plain_session() -> None:
    model = steps.whole_step()
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["x", "y"]
    oracle, batch = Oracle.of(steps.start()), steps.batch()
    outputs, expected = run(session, batch), oracle.step(**batch)
    assert_close(outputs["loss"], np.float32(expected["loss"]), rtol=FLOAT32)
    for name in ("linear.weight", "linear.bias", "mean", "optimizer.momentum.linear.weight"):
        assert_close(outputs[f"next.{name}"], oracle.state[name].astype(np.float32), rtol=FLOAT32, atol=FLOAT32)
    assert outputs["next.seed"] == 8


def changed(name: str, value: Any) -> dict[str, Any]:
    state: dict[str, Any] = steps.start()
    if value is None:
        del state[name]
    else:
        state[name] = value
    return state


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (changed("mean", None), r"the state lacks 'mean' \(float32 \(3,\)\)"),
        (changed("other", np.zeros(1)), "the state has 'other', where the step wants 'linear.weight', 'linear.bias', "),
        (changed("mean", np.zeros(2, np.float32)), r"'mean' is float32 \(2,\), expected float32 \(3,\)"),
        (changed("mean", np.zeros(3)), r"'mean' is float64 \(3,\), expected float32 \(3,\)"),
        (changed("mean", [0.0] * 3), r"'mean' is a list, expected an array, float32 \(3,\)"),
        (changed("seed", np.zeros((), "M8[s]")), r"'seed' is datetime64\[s\] \(\), expected int64 \(\)"),
    ],
)
def test_state_that_does_not_fit_is_refused(state: dict[str, Any], problem: str) -> None:
    with pytest.raises(StepError, match=problem):
        step_model(steps.bare_step(), state)


# --- the inference graph ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inference_model_computes_with_the_given_state(dtype: type) -> None:
    oracle = Oracle.of(steps.start(dtype))
    batch = steps.batch(dtype=dtype)
    oracle.step(**batch)
    state = {name: oracle.state[name].astype(dtype) for name in ("linear.weight", "linear.bias", "mean")}
    model = inference_model(steps.whole_step(dtype), state)
    onnx.checker.check_model(model, full_check=True)
    assert [given.name for given in model.graph.input] == ["x"]
    assert [dim.dim_param or dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim] == ["N", 2]
    assert {f.name for f in model.functions} == {"Hardshrink", "aclnn_Hardshrink_v1"}  # none of the step's
    assert STEP_METADATA not in [entry.key for entry in model.metadata_props]
    session = ort.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    outputs = run(session, {"x": batch["x"]})
    tolerance = FLOAT32 if dtype is np.float32 else 1e-14
    assert_close(outputs["probabilities"], oracle.predict(batch["x"]).astype(dtype), rtol=tolerance)


def test_an_inlined_step_keeps_its_inference_graph() -> None:
    """In standard operators, as the step itself, and of the same bits."""
    whole = steps.whole_step()
    inlined = onnx_ops.inline(whole)
    onnx.checker.check_model(inlined, full_check=True)
    assert [function_key(f) for f in inlined.functions] == [(CARRIED_DOMAIN, INFERENCE, "")]
    assert {entry.domain for entry in inlined.opset_import} == {"", (CARRIED_DOMAIN, INFERENCE, "")[0]}
    assert {node.domain for node in (*inlined.graph.node, *inlined.functions[0].node)} == {""}
    assert Step.of(inlined) == Step.of(whole)
    assert onnx_ops.inline(inlined) == inlined
    state, batch = steps.start(), steps.batch()
    ends = []
    for model in (whole, inlined):
        exported = inference_model(model, {n: state[n] for n in ("linear.weight", "linear.bias", "mean")})
        onnx.checker.check_model(exported, full_check=True)
        session = ort.InferenceSession(exported.SerializeToString(), options(), providers=["CPUExecutionProvider"])
        ends.append(run(session, {"x": batch["x"]}))
    assert_same_bits(ends[1]["probabilities"], ends[0]["probabilities"])


def test_step_without_inference_graph_has_no_inference_model() -> None:
    with pytest.raises(StepError, match=r"no inference graph: there is no function onnx_ops.training.inference"):
        inference_model(steps.whole_step(inference=False), steps.start())


def test_a_second_inference_graph_is_refused() -> None:
    with pytest.raises(StepError, match="has an inference graph already"):
        with_carried(steps.whole_step(), INFERENCE, steps.inference_graph())


def test_weights_in_the_inference_graph_stand_for_the_state_and_others_are_constants() -> None:
    """Its initializers by the names of parameters give way to the state; those of other names stay."""
    inference = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        classifier (float[N, 2] x) => (float[N, 2] y) <float[2] scale = {2, 4}> {
            scaled = Mul (x, scale)
            y = Add (scaled, bias)
        }""")
    inference.graph.node[1].input[1] = "linear.bias"
    inference.graph.initializer.append(numpy_helper.from_array(np.float32([5, 5]), "linear.bias"))
    whole = step_model(steps.bare_step(), steps.start(), inference)
    onnx.checker.check_model(whole, full_check=True)
    model = inference_model(whole, {"linear.bias": np.float32([1, 2])})
    session = ort.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    assert run(session, {"x": np.float32([[1, 1]])})["y"].tolist() == [[3, 6]]


def function_model(operator: str) -> onnx.ModelProto:
    """An inference graph that calls a function, which calls another one."""
    return parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21, "own": 1]>
        classifier (float[N] x) => (float[N] y) {{ y = own.outer (x) }}
        <opset_import: ["": 21, "own": 1], domain: "own"> outer (a) => (b) {{ b = own.inner (a) }}
        <opset_import: ["": 21], domain: "own"> inner (a) => (b) {{ b = {operator} (a) }}""")


@pytest.mark.parametrize("operator", ["Neg", "Abs"])
def test_functions_of_step_and_inference_graph_are_told_apart(operator: str) -> None:
    step = steps.bare_step()
    step.functions.extend(function_model("Neg").functions)
    step.opset_import.append(helper.make_opsetid("own", 1))
    whole = step_model(step, steps.start(), function_model(operator))
    onnx.checker.check_model(whole, full_check=True)
    own = [f for f in whole.functions if f.domain == "own"]
    assert len(own) == (2 if operator == "Neg" else 4)
    model = inference_model(whole, {})
    assert len(model.functions) == 2
    session = ort.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    expected = {"Neg": [3, -2], "Abs": [3, 2]}[operator]
    assert run(session, {"x": np.float32([-3, 2])})["y"].tolist() == expected
    (inlined,) = onnx_ops.inline(whole).functions
    assert [node.op_type for node in inlined.node] == [operator]


def untyped(model: onnx.ModelProto) -> None:
    model.graph.output[0].ClearField("type")


def other_weight(model: onnx.ModelProto) -> None:
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("linear.weight", TensorProto.FLOAT, [3, 3]))


def sparse(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "weights")
    indices = numpy_helper.from_array(np.zeros(1, np.int64))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (untyped, "'probabilities' of the inference graph has no type"),
        (
            other_weight,
            r"'linear.weight' is float32 \(3, 3\) in the inference graph, expected that of the step, float32 \(3, 2",
        ),
        (sparse, "sparse initializers"),
    ],
)
def test_inference_graph_that_does_not_fit_is_refused(change: Callable[[onnx.ModelProto], None], problem: str) -> None:
    inference = steps.inference_graph()
    change(inference)
    with pytest.raises(StepError, match=problem):
        with_carried(steps.bare_step(), INFERENCE, inference)
