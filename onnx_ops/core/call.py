"""Calls of ops: dtypes, shapes and attributes, and common checks of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnx_ops.core.errors import OpError, Status
from onnx_ops.core.schema import Interface, choices_text
from onnx_ops.core.types import (
    MAX_ELEMENTS,
    MAX_NUMBER,
    MAX_RANK,
    Dim,
    Shape,
    TensorType,
    dtype_name,
    shape_text,
    too_large,
)


@dataclass(frozen=True)
class Call:
    """A call of an op.

    Attributes:
        interface: that of the op.
        inputs: type of each input by name; None for an omitted one.
        attributes: values by name, with defaults; lists as tuples.
        outputs: names of the requested outputs.
    """

    interface: Interface
    inputs: Mapping[str, TensorType | None]
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]

    @classmethod
    def make(
        cls,
        interface: Interface,
        inputs: Iterable[TensorType | None],
        attributes: Mapping[str, Any] | None = None,
        outputs: Sequence[bool] | None = None,
    ) -> Call:
        given = list(inputs)
        names = [parameter.name for parameter in interface.inputs]
        if len(given) > len(names):
            raise OpError(interface.name, f"got {len(given)} inputs, expected at most {len(names)}: {', '.join(names)}")
        filled = given + [None] * (len(names) - len(given))
        known = [parameter.name for parameter in interface.outputs]
        wanted = known if outputs is None else [name for name, there in zip(known, outputs, strict=False) if there]
        values = {**interface.defaults, **(attributes or {})}
        for name in interface.attributes:
            if name not in values:
                raise OpError(interface.name, f"required attribute '{name}' is missing", Status.ACLNN_ERR_PARAM_NULLPTR)
        values = {name: values.pop(name) for name in interface.attributes} | values  # in the order of the schema
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        return cls(interface, dict(zip(names, filled, strict=True)), values, tuple(wanted))

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Hashable; equal for equal calls."""
        return self.interface.name, *self.inputs.values(), *self.attributes.values(), self.outputs

    def with_input(self, name: str, tensor: TensorType) -> Call:
        """This call with the type of one input replaced."""
        return replace(self, inputs={**self.inputs, name: tensor})

    def held_dtype(self, name: str) -> int | None:
        """The dtype of an input, or the one given by an attribute."""
        return self.attributes[name] if name in self.attributes else self.dtype(name)

    def holding(self, name: str, dtype: int) -> Call:
        """This call with the dtype of an input, or the one given by an attribute, replaced."""
        if name in self.attributes:
            return replace(self, attributes={**self.attributes, name: dtype})
        return self.with_input(name, TensorType(dtype, self.shape(name)))

    def error(self, problem: str, status: Status = Status.ACLNN_ERR_PARAM_INVALID) -> OpError:
        return OpError(self.interface.name, problem, status)

    def shape_error(self, name: str, expected: str) -> OpError:
        shape = self.shape(name)
        assert shape is not None
        return self.error(f"input '{name}' has shape {shape_text(shape)}, expected {expected}")

    def present(self, name: str) -> bool:
        return self.inputs[name] is not None

    def wants(self, output: str) -> bool:
        return output in self.outputs

    def dtype(self, name: str) -> int | None:
        tensor = self.inputs[name]
        return tensor.dtype if tensor else None

    def shape(self, name: str) -> Shape | None:
        tensor = self.inputs[name]
        return tensor.shape if tensor else None

    def check(self) -> None:
        """Raise OpError for a missing required input, a dtype not in the schema, a rank or a size above the limit."""
        for parameter in self.interface.inputs:
            tensor = self.inputs[parameter.name]
            if tensor is None:
                if not parameter.optional:
                    raise self.error(f"required input '{parameter.name}' is missing", Status.ACLNN_ERR_PARAM_NULLPTR)
                continue
            if tensor.dtype is not None:
                given = dtype_name(tensor.dtype)
                if given not in parameter.dtypes:
                    expected = ", ".join(sorted(parameter.dtypes))
                    raise self.error(f"input '{parameter.name}' has dtype {given}, expected one of {expected}")
            if tensor.shape is not None and len(tensor.shape) > MAX_RANK:
                raise self.shape_error(parameter.name, f"at most {MAX_RANK} dimensions")
            if too_large(tensor.shape):
                raise self.shape_error(parameter.name, f"at most {MAX_ELEMENTS} elements, a 0 taken for a 1")

    def same_dtype(self, name: str, other: str) -> None:
        """Raise OpError if an input does not have the dtype of another one."""
        own, expected = self.dtype(name), self.dtype(other)
        if own is not None and expected is not None and own != expected:
            raise self.error(
                f"input '{name}' has dtype {dtype_name(own)}, expected {dtype_name(expected)}, the dtype of '{other}'"
            )

    def check_choice(self, attribute: str, choices: Mapping[int, str]) -> None:
        """Raise OpError if an enumerated attribute has none of `choices`."""
        value = self.attributes[attribute]
        if value not in choices:
            raise self.error(f"attribute '{attribute}' is {value}, expected {choices_text(choices)}")

    def check_range(self, attribute: str, least: int, most: int = MAX_NUMBER) -> None:
        """Refuse an attribute, or a list of which one number is, outside [least, most]."""
        value = self.attributes[attribute]
        if not all(least <= number <= most for number in (value if isinstance(value, tuple) else (value,))):
            noun = "numbers" if isinstance(value, tuple) else "a number"
            raise self.error(f"attribute '{attribute}' is {value}, expected {noun} of at least {least}, at most {most}")

    def broadcast(self, *names: str) -> Shape | None:
        """The multidirectional broadcast of the shapes of inputs, None if unknown; OpError if they do not broadcast."""
        shapes = [self.shape(name) for name in names]
        whole: Shape = ()
        for index, shape in enumerate(shapes):
            if shape is None:
                return None
            joined = _broadcast(whole, shape)
            if joined is None:
                others = " and ".join(
                    f"'{n}', which has shape {shape_text(s or ())}" for n, s in zip(names[:index], shapes, strict=False)
                )
                raise self.shape_error(names[index], f"one that broadcasts with {others}")
            whole = joined
        return whole

    def broadcast_to(self, name: str, shape: Shape | None, what: str) -> None:
        """Raise OpError if an input does not broadcast to `shape`; `what` names it in the message."""
        own = self.shape(name)
        if own is None or shape is None:
            return
        tail = shape[len(shape) - len(own) :] if len(own) <= len(shape) else None
        if tail is None or any(_differ(x, y) and x != 1 for x, y in zip(own, tail, strict=True)):
            raise self.shape_error(name, f"one that broadcasts to {what}, {shape_text(shape)}")

    def same_shape(self, name: str, shape: Shape | None, what: str) -> None:
        """Raise OpError if the shape of an input is not `shape`; `what` names it in the message."""
        own = self.shape(name)
        if own is None or shape is None:
            return
        if len(own) != len(shape) or any(_differ(x, y) for x, y in zip(own, shape, strict=True)):
            raise self.shape_error(name, f"{shape_text(shape)}, {what}")


def _broadcast(a: Shape, b: Shape) -> Shape | None:
    """The broadcast of two shapes; None if they do not broadcast."""
    rank = max(len(a), len(b))
    dims: list[Dim] = []
    for x, y in zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True):
        if x == y or y == 1:
            dims.append(x)
        elif x == 1:
            dims.append(y)
        elif isinstance(x, int) and isinstance(y, int):
            return None
        else:  # an unknown dimension can only be 1 or equal to the other one
            dims.append(x if isinstance(x, int) else y if isinstance(y, int) else None)
    return tuple(dims)


def _differ(x: Dim, y: Dim) -> bool:
    return isinstance(x, int) and isinstance(y, int) and x != y
