"""The commands `list` and `show`."""

from __future__ import annotations

import cases
import numpy as np
import onnx
import pytest
from command_line import answer, error, run
from onnx import parser

import onnx_ops
from onnx_ops.integrations.examples import example_model
from onnx_ops.ops import OPS


def test_list_says_what_the_schemas_say() -> None:
    listed = answer("list")
    assert (listed["domain"], listed["version"]) == (onnx_ops.DOMAIN, onnx_ops.OPSET_VERSION)
    assert [op["name"] for op in listed["ops"]] == list(OPS)
    text = run("list").stdout
    for op in listed["ops"]:
        record = OPS[op["name"]]
        assert op["minimum_opset"] == record.body_opset
        assert [p["name"] for p in op["inputs"]] == list(record.input_names)
        assert [p["name"] for p in op["outputs"]] == list(record.output_names)
        for described, parameter in zip(op["inputs"], record.schema.inputs, strict=True):
            types = cases.allowed_types(record.schema, parameter)
            assert {f"tensor({dtype})" for dtype in described["dtypes"]} == types
            assert described["optional"] == (parameter.option != parameter.option.Single)
            assert described["description"] == parameter.description
        defaults = {a["name"]: a["default"] for a in op["attributes"]}
        assert defaults == {
            n: None if a.required else onnx.helper.get_attribute_value(a.default_value)
            for n, a in record.schema.attributes.items()
        }
        assert op["name"] in text
        assert all(name if default is None else f"{name}={default}" in text for name, default in defaults.items())


def test_list_marks_optional_inputs() -> None:
    assert "  inputs      grad_output, self, target, [weight], [pos_weight]\n" in run("list").stdout


def test_show() -> None:
    text = run("show", "HardshrinkBackward").stdout
    schema = OPS["HardshrinkBackward"].schema
    assert schema.doc.strip() in text
    assert "float = 0.5. Half-width" in text
    assert "-> [1.0, 0.0, 3.0, 0.0]" in text
    assert "Function body" not in text


@pytest.mark.parametrize("op_type", OPS)
def test_show_every_op(op_type: str) -> None:
    shown, op = answer("show", op_type, "--body"), OPS[op_type]
    assert shown["doc"] == op.schema.doc.strip()
    for name, array in op.example.expected().items():
        assert np.array_equal(np.array(shown["example"]["outputs"][name], np.float32), array)
    assert shown["example"]["inputs"].keys() == op.example.inputs.keys()
    body = parser.parse_function(shown["body"])
    assert [n.op_type for n in body.node] == [n.op_type for n in onnx_ops.link(example_model(op)).functions[0].node]
    assert {key: shown[key] for key in shown if key not in ("doc", "example", "body")} in answer("list")["ops"]
    assert shown["body"].splitlines()[-2] in run("show", op_type, "--body").stdout


def test_numbers_that_json_does_not_have_are_strings() -> None:
    assert "-Infinity" in str(answer("show", "CtcLossBackward")["example"]["inputs"]["log_alpha"])


def test_case_of_a_name_does_not_matter() -> None:
    assert answer("show", "kldivBACKWARD")["name"] == "KlDivBackward"


def test_unknown_op() -> None:
    assert error("show", "hardshrinkbackw") == (
        "no op 'hardshrinkbackw' in domain aclnn; did you mean HardshrinkBackward or Hardshrink or HardswishBackwardV2?"
    )
    far = error("show", "zzz")
    assert all(name in far for name in OPS)
