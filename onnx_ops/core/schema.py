"""What a schema says of inputs and attributes, and how one is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import AttributeProto, helper
from onnx.defs import OpSchema

from onnx_ops.core.types import dtype_name


def tensor_types(dtypes: Iterable[int]) -> list[str]:
    """Element types as a type constraint of an OpSchema wants them."""
    return [f"tensor({dtype_name(dtype)})" for dtype in dtypes]


def dtype_names(types: Iterable[str]) -> list[str]:
    """The other way round: the element types that a type constraint allows."""
    return [text.removeprefix("tensor(").removesuffix(")") for text in types]


@dataclass(frozen=True)
class Parameter:
    """An input or an output of an op, with the names of the element types that it may have."""

    name: str
    optional: bool
    dtypes: tuple[str, ...]
    description: str


@dataclass(frozen=True)
class Interface:
    """Name, inputs, outputs and attributes of an op, which an OpSchema converts from C++ each time they are read.

    Attributes:
        name: the op_type.
        inputs, outputs: in the order of the schema.
        attributes: by name.
        defaults: default values of the attributes, but for those that are required.
    """

    name: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: Mapping[str, OpSchema.Attribute]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, schema: OpSchema) -> Interface:
        inputs, outputs = (tuple(_parameter(schema, p) for p in ps) for ps in (schema.inputs, schema.outputs))
        attributes = schema.attributes
        defaults = {n: helper.get_attribute_value(a.default_value) for n, a in attributes.items() if not a.required}
        return cls(schema.name, inputs, outputs, attributes, defaults)


def _parameter(schema: OpSchema, parameter: OpSchema.FormalParameter) -> Parameter:
    # onnx 1.20 has no FormalParameter.types.
    (constraint,) = (c for c in schema.type_constraints if c.type_param_str == parameter.type_str)
    dtypes = tuple(dtype_names(constraint.allowed_type_strs))
    optional = bool(parameter.option == OpSchema.FormalParameterOption.Optional)
    return Parameter(parameter.name, optional, dtypes, parameter.description)


def attribute(name: str, default: int | float | Sequence[int], description: str) -> OpSchema.Attribute:
    """An attribute with a default, for an OpSchema."""
    kind = AttributeProto.INTS if isinstance(default, Sequence) else None
    return OpSchema.Attribute(name, helper.make_attribute(name, default, attr_type=kind), description)


def required_attribute(name: str, type: OpSchema.AttrType, description: str) -> OpSchema.Attribute:
    """An attribute that every node has to have, for an OpSchema."""
    return OpSchema.Attribute(name, type, description, required=True)


_KINDS = {
    OpSchema.AttrType.FLOAT: AttributeProto.FLOAT,
    OpSchema.AttrType.INT: AttributeProto.INT,
    OpSchema.AttrType.STRING: AttributeProto.STRING,
    OpSchema.AttrType.FLOATS: AttributeProto.FLOATS,
    OpSchema.AttrType.INTS: AttributeProto.INTS,
}


def attribute_kind(attribute: OpSchema.Attribute) -> AttributeProto.AttributeType:
    """The type of an attribute as an AttributeProto has it."""
    return _KINDS[attribute.type]


def attribute_type(attribute: OpSchema.Attribute) -> str:
    """The type of an attribute in ONNX's text syntax: "int", "float", "string", "ints", "floats"."""
    return str(AttributeProto.AttributeType.Name(attribute_kind(attribute))).lower()


def choices_text(choices: Mapping[int, str]) -> str:
    """The values that an enumerated attribute may have, for messages."""
    return f"one of {', '.join(f'{number} ({word})' for number, word in choices.items())}"
