"""The record of an op: schema, checks, NumPy definition, kernel, portable body and example."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from onnx import AttributeProto, TypeProto, helper
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.errors import OpError
from onnx_ops.core.types import TensorType

if TYPE_CHECKING:
    from onnx_ops.bodies.body import Body


class Kernel(Protocol):
    """How an op is checked and computed natively."""

    @property
    def typed_inputs(self) -> tuple[str, ...]:
        """The inputs that determine the output's dtype."""

    def infer(self, call: Call) -> TensorType:
        """Dtype and shape of the output; raises OpError for a call that the op refuses."""

    def check_values(self, call: Call, arrays: Sequence[np.ndarray | None]) -> None:
        """Raise OpError for values that the op refuses."""

    def record(self, call: Call) -> Mapping[str, Any]:
        """The fields of the native kernel (`runtime.layout.KERNEL`) for a call of known dtypes."""


@dataclass(frozen=True)
class Example:
    """A call small enough to be worked out by hand; for documentation and self-tests.

    Attributes:
        inputs: by name, as nested lists; an optional input may be left out.
        output: what comes of them.
        attributes: those that are not left to their defaults.
    """

    inputs: Mapping[str, Any]
    output: Any
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """The inputs: float32, whole numbers int32."""
        return {name: _array(value) for name, value in self.inputs.items()}

    def expected(self) -> np.ndarray:
        """The output, in float32."""
        return np.array(self.output, np.float32)


def _array(value: Any) -> np.ndarray:
    array = np.array(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array.astype(np.int32)


@dataclass(frozen=True)
class Op:
    """One op of the domain.

    Attributes:
        schema: names, documentation, type constraints and attributes with their defaults.
        kernel: checks, and the native code.
        reference: the definition in NumPy: reference(*inputs, dtype=None, **attributes). Missing inputs are None.
            With dtype=numpy.float64 all arithmetic, and the result, is in float64 whatever the inputs are.
        body: writes the op in standard ONNX operators.
        example: for documentation and self-tests.
        body_opset: the oldest opset of the default domain that has all operators of the body. Opset 15, the default,
            is the first that has CastLike, and Shape with start and end.
    """

    schema: OpSchema
    kernel: Kernel
    reference: Callable[..., np.ndarray]
    body: Callable[[Body], None]
    example: Example
    body_opset: int = 15

    @property
    def name(self) -> str:
        return str(self.schema.name)

    @functools.cached_property
    def _attribute_types(self) -> dict[str, int]:
        return {name: attribute.default_value.type for name, attribute in self.schema.attributes.items()}

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.schema.inputs)

    @property
    def output_name(self) -> str:
        return str(self.schema.outputs[0].name)

    def attribute(self, name: str) -> OpSchema.Attribute:
        """An attribute of the schema; OpError if there is none of that name."""
        if name not in self.schema.attributes:
            raise self._unknown_attribute(name)
        return self.schema.attributes[name]

    def _unknown_attribute(self, name: str) -> OpError:
        known = ", ".join(self.schema.attributes) or "none"
        return OpError(self.name, f"unknown attribute '{name}', expected {known}")

    def call(self, inputs: Sequence[TensorType | None], attributes: Mapping[str, Any] | None = None) -> Call:
        return Call.make(self.schema, inputs, attributes)

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
            if not attribute.ref_attr_name and not attribute.HasField("f" if expected == AttributeProto.FLOAT else "i"):
                raise OpError(
                    self.name, f"attribute '{name}' has no value of its type, {_attribute_type_name(expected)}"
                )

    def call_of(self, types: Sequence[TypeProto | None], attributes: Iterable[AttributeProto]) -> Call:
        """The call that a node of a graph makes.

        Args:
            types: of the inputs; an empty one where nothing is known, None for an input that is left out.
            attributes: those of the node, checked.
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
        return self.call([None if proto is None else TensorType.of_proto(proto) for proto in types], values)

    def check_arrays(self, arrays: Sequence[np.ndarray | None], attributes: Mapping[str, Any] | None = None) -> Call:
        """Refuse arrays that the op does not compute, by dtype, shape or value."""
        call = self.call([None if a is None else TensorType.of(a) for a in arrays], attributes)
        self.kernel.infer(call)
        self.kernel.check_values(call, [*arrays, *[None] * (len(call.inputs) - len(arrays))])
        return call


def _attribute_type_name(number: int) -> str:
    known = number in AttributeProto.AttributeType.values()
    return str(AttributeProto.AttributeType.Name(number)) if known else f"number {number}"
