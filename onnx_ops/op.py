"""The record that makes an op known to everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from onnx.defs import OpSchema

from onnx_ops.errors import OpError
from onnx_ops.signature import Call, TensorType

if TYPE_CHECKING:
    from onnx_ops.body import Body


class Kernel(Protocol):
    """How an op is checked and computed natively."""

    @property
    def typed_inputs(self) -> tuple[str, ...]:
        """The inputs whose dtypes settle the output's."""

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
        body_opset: the oldest opset of the default domain that has all of them; the default has Shape with start and
            end, and CastLike.
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

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.schema.inputs)

    @property
    def output_name(self) -> str:
        return str(self.schema.outputs[0].name)

    def attribute(self, name: str) -> OpSchema.Attribute:
        """An attribute of the schema; OpError if there is none of that name."""
        if name not in self.schema.attributes:
            known = ", ".join(self.schema.attributes) or "none"
            raise OpError(self.name, f"unknown attribute '{name}', expected {known}")
        return self.schema.attributes[name]

    def call(self, inputs: Sequence[TensorType | None], attributes: Mapping[str, Any] | None = None) -> Call:
        return Call.make(self.schema, inputs, attributes)

    def check_arrays(self, arrays: Sequence[np.ndarray | None], attributes: Mapping[str, Any] | None = None) -> Call:
        """Refuse arrays that the op does not compute, by dtype, shape or value."""
        call = self.call([None if a is None else TensorType.of(a) for a in arrays], attributes)
        self.kernel.infer(call)
        self.kernel.check_values(call, [*arrays, *[None] * (len(call.inputs) - len(arrays))])
        return call
