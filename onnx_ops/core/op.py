"""The record of an op: signature, checks, NumPy definition, kernel, portable body and example."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, TypeProto, helper
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.errors import OpError
from onnx_ops.core.schema import attribute_kind, is_optional
from onnx_ops.core.signature import Signature
from onnx_ops.core.types import MAX_ELEMENTS, TensorType, shape_text, too_large


@dataclass(frozen=True)
class Example:
    """A call small enough to be worked out by hand; for documentation and self-tests.

    Attributes:
        inputs: by name, as nested lists; an optional input may be left out.
        outputs: what comes of them, by name; an optional output may be left out.
        attributes: those that are not left to their defaults.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """The inputs: float32, whole numbers int32, truth values bool."""
        return {name: _array(value, np.int32) for name, value in self.inputs.items()}

    def expected(self) -> dict[str, np.ndarray]:
        """The outputs: float32, whole numbers int64, truth values bool."""
        return {name: _array(value, np.int64) for name, value in self.outputs.items()}


def _array(value: Any, whole: type[np.integer]) -> np.ndarray:
    array = np.array(value)
    kinds: dict[str, Any] = {"f": np.float32, "i": whole, "b": np.bool_}
    return array.astype(kinds[array.dtype.kind])


VALUE_FIELDS: dict[int, str | None] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.FLOATS: None,
    AttributeProto.INTS: None,
}
"""The field of an AttributeProto that holds a value of each type; None for lists, which may be empty."""


def _accept(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    """All values are computed."""


@dataclass(frozen=True)
class Op:
    """One op of the domain.

    Attributes:
        signature: names, documentation, inputs, outputs, and attributes with their defaults.
        output_types: dtypes and shapes of all outputs of the schema, those too that a call does not want; raises
            OpError for a call that the op refuses. Called by `infer`.
        kernel: what the runtime compiles for a call of known dtypes (`onnx_ops.loops`).
        reference: the definition in NumPy: reference(*inputs, dtype=None, **attributes). Missing inputs are None. It
            returns an array, or for an op of several outputs a tuple of them, None for one that cannot be computed.
            With dtype=numpy.float64 all arithmetic, and the results, are in float64 whatever the inputs are.
        body: writes the op in standard ONNX operators, into an `onnx_ops.bodies.body.Body`.
        example: for documentation and self-tests.
        check_values: raises OpError for values that the op refuses.
        body_opset: the oldest opset of the default domain that has all operators of the body. Opset 15, the default,
            is the first that has CastLike, and Shape with start and end.
    """

    signature: Signature
    output_types: Callable[[Call], tuple[TensorType, ...]]
    kernel: Callable[[Call], object]
    reference: Callable[..., Any]
    body: Callable[..., None]
    example: Example
    check_values: Callable[[Call, Sequence[np.ndarray | None]], None] = _accept
    body_opset: int = 15

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def schema(self) -> OpSchema:
        return self.signature.schema

    @functools.cached_property
    def _attribute_types(self) -> dict[str, int]:
        return {name: attribute_kind(attribute) for name, attribute in self.schema.attributes.items()}

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.schema.inputs)

    @functools.cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.schema.outputs)

    @functools.cached_property
    def required_attributes(self) -> Mapping[str, Any]:
        """The attributes that every node has to have, with the values of the example."""
        return {name: self.example.attributes[name] for name, a in self.schema.attributes.items() if a.required}

    def compute(self, arrays: Sequence[np.ndarray | None], **attributes: Any) -> tuple[np.ndarray | None, ...]:
        """All outputs by the NumPy definition."""
        result = self.reference(*arrays, **attributes)
        return result if isinstance(result, tuple) else (result,)

    def attribute(self, name: str) -> OpSchema.Attribute:
        """An attribute of the schema; OpError if there is none of that name."""
        if name not in self.schema.attributes:
            raise self._unknown_attribute(name)
        return self.schema.attributes[name]

    def _unknown_attribute(self, name: str) -> OpError:
        known = ", ".join(self.schema.attributes) or "none"
        return OpError(self.name, f"unknown attribute '{name}', expected {known}")

    def call(
        self,
        inputs: Sequence[TensorType | None],
        attributes: Mapping[str, Any] | None = None,
        outputs: Sequence[bool] | None = None,
    ) -> Call:
        """A call; `outputs` tells which are wanted, None stands for all."""
        return Call.make(self.schema, inputs, attributes, outputs)

    def infer(self, call: Call) -> tuple[TensorType, ...]:
        """Dtypes and shapes of all outputs of the schema, those too that a call does not want.

        Raises:
            OpError: a call that the op refuses, or an output that no memory holds.
        """
        outputs = self.output_types(call)
        for name, output in zip(self.output_names, outputs, strict=True):
            if too_large(output.shape):
                shape = shape_text(output.shape or ())
                raise call.error(f"output '{name}' has shape {shape}, expected at most {MAX_ELEMENTS} elements")
        return outputs

    def check_outputs(self, names: Sequence[str]) -> None:
        """Refuse names of a node's outputs: too many, or none for an output that must be there."""
        parameters = self.schema.outputs
        if len(names) > len(parameters):
            most = f"at most {len(parameters)}" if len(parameters) > 1 else "1"
            raise OpError(self.name, f"got {len(names)} outputs, expected {most}: {', '.join(self.output_names)}")
        for index, parameter in enumerate(parameters):
            if not is_optional(parameter) and not (index < len(names) and names[index]):
                raise OpError(self.name, f"required output '{parameter.name}' has no name")
        if not any(names):
            raise OpError(self.name, f"no output has a name, expected one of {', '.join(self.output_names)}")

    def check_attributes(self, attributes: Iterable[AttributeProto]) -> None:
        """Refuse attributes of a node that the schema does not have, or has with another type."""
        seen: set[str] = set()
        for attribute in attributes:
            name = attribute.name
            expected = self._attribute_types.get(name)
            if expected is None:
                raise self._unknown_attribute(name)
            if name in seen:
                raise OpError(self.name, f"attribute '{name}' is given twice")
            seen.add(name)
            if attribute.type != expected:
                got, wanted = map(_attribute_type_name, (attribute.type, expected))
                raise OpError(self.name, f"attribute '{name}' has type {got}, expected {wanted}")
            field_name = VALUE_FIELDS[expected]
            if field_name and not attribute.ref_attr_name and not attribute.HasField(field_name):
                raise OpError(
                    self.name, f"attribute '{name}' has no value of its type, {_attribute_type_name(expected)}"
                )

    def call_of(
        self,
        types: Sequence[TypeProto | None],
        attributes: Iterable[AttributeProto],
        outputs: Sequence[bool] | None = None,
    ) -> Call:
        """The call that a node of a graph makes.

        Args:
            types: of the inputs; an empty one where nothing is known, None for an input that is left out.
            attributes: those of the node, checked.
            outputs: which are wanted; None for all.
        """
        for name, proto in zip(self.input_names, types, strict=False):
            kind = proto.WhichOneof("value") if proto else None
            if kind not in (None, "tensor_type"):
                raise OpError(self.name, f"input '{name}' is of {kind.replace('_', ' ')}, expected a tensor")
        values = {}
        for attribute in attributes:
            if attribute.ref_attr_name:
                problem = f"attribute '{attribute.name}' is '@{attribute.ref_attr_name}', expected a value in a graph"
                raise OpError(self.name, problem)
            values[attribute.name] = helper.get_attribute_value(attribute)
        return self.call([None if proto is None else TensorType.of_proto(proto) for proto in types], values, outputs)

    def check_arrays(
        self,
        arrays: Sequence[np.ndarray | None],
        attributes: Mapping[str, Any] | None = None,
        outputs: Sequence[bool] | None = None,
    ) -> Call:
        """Refuse arrays that the op does not compute, by dtype, shape or value."""
        call = self.call([None if a is None else TensorType.of(a) for a in arrays], attributes, outputs)
        self.infer(call)
        self.check_values(call, [*arrays, *[None] * (len(call.inputs) - len(arrays))])
        return call


def _attribute_type_name(number: int) -> str:
    known = number in AttributeProto.AttributeType.values()
    return str(AttributeProto.AttributeType.Name(number)) if known else f"number {number}"
