"""Fields, methods and properties of classes."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from onnx import AttributeProto, helper
from onnx.defs import OpSchema

from onnx_ops.core.errors import OpError

FOREIGN: dict[type, tuple[str, ...]] = {
    OpSchema: ("name", "inputs", "outputs", "attributes", "type_constraints"),
    OpSchema.FormalParameter: ("name", "option", "type_str"),
    OpSchema.TypeConstraintParam: ("type_param_str", "allowed_type_strs"),
    OpSchema.Attribute: ("name", "required", "default_value"),
    AttributeProto: ("value",),
}
"""The fields of classes of onnx; `value` is what `onnx.helper.get_attribute_value` returns."""


def is_known(kind: type) -> bool:
    """Whether values of a class can be records, or members of an enumeration."""
    return is_enumeration(kind) or kind in FOREIGN or is_record(kind)


def is_enumeration(kind: type) -> bool:
    return issubclass(kind, enum.IntEnum | enum.IntFlag)


def members_of(kind: type) -> list[Any]:
    """The members of an enumeration."""
    return list(kind) if issubclass(kind, enum.Enum) else []


def is_record(kind: type) -> bool:
    """Whether a class is a frozen dataclass, a named tuple or OpError: the translated code may make its objects."""
    if dataclasses.is_dataclass(kind):
        parameters = vars(kind).get("__dataclass_params__")
        return bool(parameters and parameters.frozen and parameters.eq) and not hasattr(kind, "__post_init__")
    return is_named_tuple(kind) or kind is OpError


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def arguments_of(kind: type) -> inspect.Signature:
    """How a record is made: its parameters are its fields."""
    return inspect.signature(kind)


@functools.cache
def fields_of(kind: type) -> tuple[str, ...]:
    """Names of the fields; values that are computed once, on demand, are fields too."""
    if kind in FOREIGN:
        return FOREIGN[kind]
    cached = [name for name, value in vars(kind).items() if isinstance(value, functools.cached_property)]
    return (*arguments_of(kind).parameters, *cached)


def can_be_made(kind: type) -> bool:
    """Whether the parameters of the constructor are exactly the fields."""
    return is_record(kind) and len(fields_of(kind)) == len(arguments_of(kind).parameters)


def field_of(value: object, name: str) -> Any:
    """The value of a field."""
    return helper.get_attribute_value(value) if isinstance(value, AttributeProto) else getattr(value, name)


def method_of(kind: type, name: str) -> FunctionType | None:
    """The function of a method of a class; None if it has none of that name."""
    own = inspect.getattr_static(kind, name, None)
    is_default = is_record(kind) and name in fields_of(kind)
    return own if isinstance(own, FunctionType) and not is_default else None


def property_of(kind: type, name: str) -> Callable[..., Any] | None:
    """The function of a property of a class; None if it has none of that name."""
    own = inspect.getattr_static(kind, name, None)
    return own.fget if isinstance(own, property) and kind not in FOREIGN else None
