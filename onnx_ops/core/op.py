"""The definition of an op: signature, checks, NumPy reference, kernel, function body and example."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, TypeProto, helper
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.domain import kernel_name
from onnx_ops.core.errors import OpError, Status
from onnx_ops.core.schema import Parameter, attribute_kind
from onnx_ops.core.signature import Signature
from onnx_ops.core.types import MAX_ELEMENTS, TensorType, dtype_name, shape_text, too_large


@dataclass(frozen=True)
class Example:
    """A call small enough to be verified by hand, for documentation and self-tests.

    Attributes:
        inputs: nested lists by name; optional ones may be omitted.
        outputs: expected values by name; optional ones may be omitted.
        attributes: values by name; those omitted have their defaults.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """The inputs as float32, int32 or bool arrays."""
        return {name: _array(value, np.int32) for name, value in self.inputs.items()}

    def expected(self) -> dict[str, np.ndarray]:
        """The outputs as float32, int64 or bool arrays."""
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
"""Field of AttributeProto that holds a value of each type; None for lists, which may be empty."""


def _accept(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    """Accept all values."""


@dataclass(frozen=True)
class Op:
    """An op of the domain.

    Attributes:
        signature: name, documentation, inputs, outputs and attributes.
        output_types: dtypes and shapes of all outputs of the schema, requested or not; raises OpError for a call that
            the op rejects. Called by `infer`, which has checked what the signature says of the call.
        kernel: declaration of the kernel for a call with known dtypes (`onnx_ops.loops`).
        reference: NumPy definition, reference(*inputs, dtype=None, **attributes), with None for an omitted input.
            Returns an array, or a tuple for several outputs, with None for one that cannot be computed. With
            dtype=numpy.float64, computes and returns float64 whatever the dtypes of the inputs.
        body: writes the function body, in standard ONNX operators, with an `onnx_ops.bodies.body.Body`.
        example: for documentation and self-tests.
        check_values: raises OpError for values that the op rejects.
        body_opset: lowest opset of the default domain with all operators of the body. The default, 15, is the first
            with CastLike, and with Shape with start and end.
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
    def version(self) -> int:
        return self.signature.version

    @property
    def kernel_name(self) -> str:
        """Name of the kernel, and of the function body that `link` attaches."""
        return kernel_name(self.name, self.version)

    @property
    def schema(self) -> OpSchema:
        return self.signature.schema

    @functools.cached_property
    def _attribute_types(self) -> dict[str, int]:
        return {name: attribute_kind(attribute) for name, attribute in self.attributes.items()}

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        return self.signature.interface.inputs

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        return self.signature.interface.outputs

    @property
    def attributes(self) -> Mapping[str, OpSchema.Attribute]:
        return self.signature.interface.attributes

    @property
    def attribute_defaults(self) -> Mapping[str, Any]:
        """The defaults of the attributes, but for those that are required."""
        return self.signature.interface.defaults

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.inputs)

    @functools.cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.outputs)

    @functools.cached_property
    def required_attributes(self) -> Mapping[str, Any]:
        """The required attributes, with their values in the example."""
        return {name: self.example.attributes[name] for name, a in self.attributes.items() if a.required}

    def example_arrays(self, dtype: np.dtype[Any]) -> dict[str, np.ndarray]:
        """The inputs of the example, floating ones in a dtype where the schema allows it."""
        given = dtype_name(helper.np_dtype_to_tensor_dtype(dtype))
        allowed = {parameter.name: parameter.dtypes for parameter in self.inputs}
        return {
            name: array.astype(dtype) if array.dtype.kind == "f" and given in allowed[name] else array
            for name, array in self.example.arrays().items()
        }

    def compute(self, arrays: Sequence[np.ndarray | None], **attributes: Any) -> tuple[np.ndarray | None, ...]:
        """All outputs, by the NumPy reference."""
        result = self.reference(*arrays, **attributes)
        return result if isinstance(result, tuple) else (result,)

    def attribute(self, name: str) -> OpSchema.Attribute:
        """The attribute of the schema; raises OpError if there is none with this name."""
        if name not in self.attributes:
            raise self._unknown_attribute(name)
        return self.attributes[name]

    def _unknown_attribute(self, name: str) -> OpError:
        known = ", ".join(self.attributes) or "none"
        return OpError(self.name, f"unknown attribute '{name}', expected {known}")

    def call(
        self,
        inputs: Sequence[TensorType | None],
        attributes: Mapping[str, Any] | None = None,
        outputs: Sequence[bool] | None = None,
    ) -> Call:
        """A call; `outputs`: whether each output is requested, None for all."""
        return Call.make(self.signature.interface, inputs, attributes, outputs)

    def infer(self, call: Call) -> tuple[TensorType, ...]:
        """Dtypes and shapes of all outputs of the schema, those too that a call does not want.

        Raises:
            OpError: a call that the op refuses, or an output that no memory holds.
        """
        for name, choices in self.signature.choices.items():
            call.check_choice(name, choices)
        call.check()
        for given in self.signature.inputs:
            if given.like is not None:
                call.same_dtype(given.name, given.like)
        outputs = self.output_types(call)
        for declared in self.signature.outputs:
            if declared.requires and call.wants(declared.name) and not call.present(declared.requires):
                raise call.error(
                    f"output '{declared.name}' is asked for, but input '{declared.requires}' is missing",
                    Status.ACLNN_ERR_PARAM_NULLPTR,
                )
        for name, output in zip(self.output_names, outputs, strict=True):
            if too_large(output.shape):
                shape = shape_text(output.shape or ())
                raise call.error(f"output '{name}' has shape {shape}, expected at most {MAX_ELEMENTS} elements")
        return outputs

    def check_outputs(self, names: Sequence[str]) -> None:
        """Raise OpError for too many output names of a node, or a required output without one."""
        most_names = len(self.outputs)
        if len(names) > most_names:
            most = f"at most {most_names}" if most_names > 1 else "1"
            raise OpError(self.name, f"got {len(names)} outputs, expected {most}: {', '.join(self.output_names)}")
        for index, parameter in enumerate(self.outputs):
            if not parameter.optional and not (index < len(names) and names[index]):
                raise OpError(self.name, f"required output '{parameter.name}' has no name")
        if not any(names):
            raise OpError(self.name, f"no output has a name, expected one of {', '.join(self.output_names)}")

    def check_attributes(self, attributes: Iterable[AttributeProto]) -> None:
        """Raise OpError for attributes of a node that are unknown, repeated or of a wrong type."""
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
        """The call made by a node.

        Args:
            types: types of the inputs; an empty TypeProto for an unknown one, None for an omitted input.
            attributes: attributes of the node, checked.
            outputs: whether each output is requested; None for all.
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
        """The call with these inputs; raises OpError for dtypes, shapes or values that the op rejects."""
        call = self.call([None if a is None else TensorType.of(a) for a in arrays], attributes, outputs)
        self.infer(call)
        self.check_values(call, [*arrays, *[None] * (len(call.inputs) - len(arrays))])
        return call


def _attribute_type_name(number: int) -> str:
    known = number in AttributeProto.AttributeType.values()
    return str(AttributeProto.AttributeType.Name(number)) if known else f"number {number}"
