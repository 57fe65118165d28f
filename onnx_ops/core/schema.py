"""What a schema says of inputs and attributes, and how one is written."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
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


@functools.cache
def schema_inputs(schema: OpSchema) -> tuple[Parameter, ...]:
    """The inputs of a schema, whose own properties are converted from C++ each time."""
    return tuple(_parameter(schema, parameter) for parameter in schema.inputs)


@functools.cache
def schema_outputs(schema: OpSchema) -> tuple[Parameter, ...]:
    """The outputs of a schema."""
    return tuple(_parameter(schema, parameter) for parameter in schema.outputs)


@functools.cache
def schema_attributes(schema: OpSchema) -> Mapping[str, OpSchema.Attribute]:
    """The attributes of a schema by name."""
    return MappingProxyType(schema.attributes)


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


@functools.cache
def defaults(schema: OpSchema) -> Mapping[str, Any]:
    """Default values of a schema's attributes, but for those that are required."""
    own = schema_attributes(schema).items()
    return MappingProxyType({name: helper.get_attribute_value(a.default_value) for name, a in own if not a.required})
