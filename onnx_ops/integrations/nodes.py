"""Makes nodes of the domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from onnx import helper
from onnx.defs import OpSchema

from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.errors import OpError, at_node, node_label
from onnx_ops.core.op import Op
from onnx_ops.core.schema import attribute_kind, choices_text
from onnx_ops.core.types import TensorType
from onnx_ops.ops import op_named

AttributeValue = int | float | str | list[int] | list[float]


def make_node(
    op_type: str,
    inputs: Sequence[str | None] | Mapping[str, str | None],
    outputs: Sequence[str | None] | Mapping[str, str | None],
    name: str | None = None,
    doc_string: str | None = None,
    **attributes: Any,
) -> onnx.NodeProto:
    """A node of the domain, checked against the op's schema.

    Args:
        op_type: name of the op.
        inputs: names of the values in the order of the schema, or by input name; "" or None for an omitted input.
        outputs: the same for the outputs.
        name, doc_string: as in onnx.helper.make_node.
        attributes: by name; flags also as bools, enumerations also by PyTorch's words (reduction="mean",
            approximate="tanh").

    Raises:
        OpError: an unknown op, input or attribute; an invalid value of an attribute; a missing required input.
    """
    with at_node(node_label(name or "", _first(outputs))):
        op = op_named(op_type)
        if isinstance(inputs, str):
            raise OpError(
                op_type, f"inputs are '{inputs}', expected a sequence of names, or a mapping from input names"
            )
        values = _values(op, "input", op.input_names, inputs)
        if isinstance(outputs, str):
            raise OpError(op_type, f"outputs are '{outputs}', expected a sequence of names, ['{outputs}']")
        names = _values(op, "output", op.output_names, outputs)
        op.check_outputs(names)
        converted = {key: attribute_value(op, key, value) for key, value in attributes.items()}
        op.infer(op.call([TensorType() if value else None for value in values], converted, list(map(bool, names))))
    node = helper.make_node(op_type, values, names, name=name, doc_string=doc_string, domain=DOMAIN)
    node.attribute.extend(
        helper.make_attribute(key, value, attr_type=attribute_kind(op.attribute(key)))  # an empty list has no type
        for key, value in sorted(converted.items())
    )
    return node


def _first(outputs: Sequence[str | None] | Mapping[str, str | None]) -> str:
    if isinstance(outputs, str):
        return outputs
    names = outputs.values() if isinstance(outputs, Mapping) else outputs
    return next(filter(None, names), "")


def _values(
    op: Op, kind: str, known: Sequence[str], given: Sequence[str | None] | Mapping[str, str | None]
) -> list[str]:
    """Names of values in the order of the schema, without trailing omitted ones."""
    if isinstance(given, Mapping):
        if unknown := sorted(set(given) - set(known)):
            raise OpError(op.name, f"unknown {kind} '{unknown[0]}', expected {', '.join(known)}")
        given = [given.get(name) for name in known]
    values = [value or "" for value in given]
    while values and not values[-1]:
        values.pop()
    return values


def attribute_value(op: Op, name: str, value: object) -> AttributeValue:
    """The value of an attribute as a node has it; an enumerated one also from its word, a flag from a bool.

    Raises:
        OpError: an unknown attribute, or a value that it cannot have.
    """
    attribute, choices = op.attribute(name), op.signature.choices.get(name)
    try:
        return CONVERSIONS[attribute.type](value) if choices is None else _choice(choices, value)
    except (OverflowError, TypeError, ValueError):
        expected = EXPECTED[attribute.type] if choices is None else choices_text(choices)
        raise OpError(op.name, f"attribute '{name}' is {value!r}, expected {expected}") from None


def _choice(choices: Mapping[int, str], value: object) -> int:
    """The value of an enumerated attribute with a number or a word; ValueError if there is none."""
    word = value.lower() if isinstance(value, str) else None
    for number, own in choices.items():
        if word == own or number == value:
            return number
    raise ValueError


def _whole(value: float) -> int:
    if int(value) != value:
        raise ValueError
    return int(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


CONVERSIONS: dict[OpSchema.AttrType, Callable[[Any], AttributeValue]] = {
    OpSchema.AttrType.FLOAT: float,
    OpSchema.AttrType.INT: _whole,
    OpSchema.AttrType.STRING: _text,
    OpSchema.AttrType.FLOATS: lambda values: [float(value) for value in values],
    OpSchema.AttrType.INTS: lambda values: [_whole(value) for value in values],
}
EXPECTED = {
    OpSchema.AttrType.FLOAT: "a number",
    OpSchema.AttrType.INT: "a whole number",
    OpSchema.AttrType.STRING: "a text",
    OpSchema.AttrType.FLOATS: "numbers",
    OpSchema.AttrType.INTS: "whole numbers",
}
