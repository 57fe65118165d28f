"""Builds functions and graphs of ONNX operators from handles to their values.

    b = Builder()
    x = b.input("x", TensorType(TensorProto.FLOAT, ("n",)))
    b.output("y", 1.0 / (1.0 + b.op("Exp", -x)), TensorType(TensorProto.FLOAT, ("n",)))
    graph = b.graph("sigmoid")

Values are named when the graph is finished, by hints of the caller with a number appended where they clash. Nodes that
no output depends on are dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnx_ops.core.types import TensorType
from onnx_ops.graph.edits import Names
from onnx_ops.graph.types import value_info

CONSTANT_FIELDS: dict[int, str] = {
    AttributeProto.FLOAT: "value_float",
    AttributeProto.INT: "value_int",
    AttributeProto.STRING: "value_string",
    AttributeProto.FLOATS: "value_floats",
    AttributeProto.INTS: "value_ints",
}
"""The attribute of Constant for each type of value."""

NUMBER_NAMES = {-1: "minus_one", 0: "zero", 1: "one", 2: "two"}


@dataclass(eq=False)
class Value:
    """A value of a graph that is being built.

    The operators + - * / write Add, Sub, Mul and Div, unary - writes Neg, and & | ~ write And, Or and Not. The other
    operand is any input of `Builder.op`.

    Attributes:
        builder: the builder of the graph.
        scope: the graph or subgraph of the value.
        hint: prefix of its name.
        is_made: whether a node computes it; False for inputs and initializers.
    """

    builder: Builder
    scope: Scope
    hint: str
    is_made: bool = True

    __array_ufunc__ = None  # a NumPy number as the left operand then defers to this class

    def named(self, hint: str) -> Value:
        """This value, with another hint for its name."""
        self.hint = hint
        return self

    def cast(self, dtype: int) -> Value:
        """The value cast to an element type, a TensorProto.DataType. Equal casts share one node."""

        def write() -> Value:
            return self.builder.op("Cast", self, name=f"{self.hint}_cast", to=dtype)

        return self.builder.shared(("cast", id(self), dtype), write)

    def equal(self, other: Operand) -> Value:
        return self.builder.op("Equal", self, other)

    def less(self, other: Operand) -> Value:
        return self.builder.op("Less", self, other)

    def less_or_equal(self, other: Operand) -> Value:
        return self.builder.op("LessOrEqual", self, other)

    def greater(self, other: Operand) -> Value:
        return self.builder.op("Greater", self, other)

    def greater_or_equal(self, other: Operand) -> Value:
        return self.builder.op("GreaterOrEqual", self, other)

    def __add__(self, other: Operand) -> Value:
        return self.builder.op("Add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.builder.op("Add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.builder.op("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.builder.op("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.builder.op("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.builder.op("Mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.builder.op("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.builder.op("Div", other, self)

    def __neg__(self) -> Value:
        return self.builder.op("Neg", self)

    def __and__(self, other: Operand) -> Value:
        return self.builder.op("And", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.builder.op("Or", self, other)

    def __invert__(self) -> Value:
        return self.builder.op("Not", self)

    def __bool__(self) -> bool:
        raise TypeError(f"'{self.hint}' is known only when the graph runs; compare a handle with None by `is`")


Operand = Value | bool | int | float | Sequence[bool | int | float] | np.ndarray | np.generic | None
"""An input of a node: a value, an argument of `Builder.constant`, or None for an omitted input."""


@dataclass(frozen=True)
class Reference:
    """An attribute of a node that refers to an attribute of the function.

    Attributes:
        name: name of the function's attribute.
        type: an AttributeProto.AttributeType.
    """

    name: str
    type: AttributeProto.AttributeType


@dataclass(eq=False)
class Node:
    """A node whose inputs and outputs have no names yet."""

    op_type: str
    domain: str
    inputs: list[Value | None]
    outputs: list[Value]
    attributes: Mapping[str, Any]


@dataclass(eq=False)
class Scope:
    """A graph or subgraph: its nodes in topological order, its inputs and outputs.

    Attributes:
        shared: constants and casts by key, for reuse.
    """

    name: str
    parent: Scope | None = None
    nodes: list[Node] = field(default_factory=list)
    inputs: list[tuple[Value, TensorType | None]] = field(default_factory=list)
    outputs: list[tuple[Value, TensorType | None]] = field(default_factory=list)
    shared: dict[Hashable, Value] = field(default_factory=dict)

    def chain(self) -> Iterable[Scope]:
        """This scope and the enclosing ones, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def giving(self, value: Value, builder: Builder) -> Value:
        """The value itself if a node of this scope computes it and it is no output yet, else a copy."""
        if value.scope is self and value.is_made and all(value is not given for given, _ in self.outputs):
            return value
        return builder.op("Identity", value, name=value.hint)


class Builder:
    """Nodes in topological order, for a FunctionProto or a GraphProto.

    Attributes:
        float_dtype: element type of constants from Python floats.
    """

    def __init__(self, float_dtype: int = TensorProto.FLOAT) -> None:
        self.float_dtype = float_dtype
        self._whole = Scope("")
        self._scope = self._whole
        self._initializers: list[tuple[Value, TensorProto]] = []
        self._output_names: list[str] = []
        self._kept: set[int] = set()

    def input(self, name: str, tensor: TensorType | None = None) -> Value:
        """An input, under this very name. A graph needs its type, a function does not."""
        value = Value(self, self._whole, name, is_made=False)
        self._whole.inputs.append((value, tensor))
        return value

    def initializer(self, name: str, array: np.ndarray) -> Value:
        """An initializer of the graph, with exactly this name."""
        value = Value(self, self._whole, name, is_made=False)
        self._initializers.append((value, numpy_helper.from_array(array, name)))
        return value

    def output(self, name: str, value: Operand, tensor: TensorType | None = None) -> None:
        """Append an output with exactly this name.

        A value that is an input or an output already is copied.
        """
        if self._scope is not self._whole:
            raise ValueError(f"output '{name}' is given inside a subgraph")
        given = self._whole.giving(self._value(value, "output"), self)
        self._whole.outputs.append((given, tensor))
        self._output_names.append(name)

    def op(self, op_type: str, *inputs: Operand, name: str = "", domain: str = "", **attributes: Any) -> Value:
        """A node with one output.

        Args:
            op_type: an operator of `domain`.
            inputs: values; numbers and arrays become constants; None for an omitted input.
            name: hint for the output's name; derived from op_type by default.
            domain: domain of the operator.
            attributes: arguments of onnx.helper.make_attribute, NumPy arrays for tensors, a Reference, a `subgraph`, or
                an AttributeProto; None for an omitted one.

        Raises:
            ValueError: an input that is out of scope, from another subgraph or builder.
        """
        (output,) = self.several(op_type, *inputs, names=(name or _words(op_type),), domain=domain, **attributes)
        return output

    def several(
        self, op_type: str, *inputs: Operand, names: Sequence[str], domain: str = "", **attributes: Any
    ) -> tuple[Value, ...]:
        """As `op`, for a node with one output per name; "" for an omitted output."""
        values = [None if given is None else self._value(given, op_type) for given in inputs]
        while values and values[-1] is None:
            values.pop()
        given_attributes = {key: value for key, value in attributes.items() if value is not None}
        outputs = [Value(self, self._scope, name) for name in names]
        self._scope.nodes.append(Node(op_type, domain, values, outputs, given_attributes))
        return tuple(outputs)

    def constant(self, value: Operand, dtype: int | None = None, name: str = "") -> Value:
        """A constant: a scalar, or a tensor with the shape of the numbers. Equal constants share one node.

        Args:
            value: numbers. Python floats have `float_dtype`, ints int64, bools bool, also in lists; NumPy arrays and
                scalars keep their dtype.
            dtype: another element type.
            name: hint for the name.
        """
        array = self.array(value, dtype)

        def write() -> Value:
            return self.op("Constant", name=name or _constant_words(array), value=array)

        return self.shared(("constant", array.dtype, array.shape, array.tobytes()), write)

    def shared(self, key: Hashable, write: Callable[[], Value]) -> Value:
        """The value with this key, in this scope or an enclosing one; if there is none, what `write` returns."""
        for scope in self._scope.chain():
            if key in scope.shared:
                return scope.shared[key]
        made = self._scope.shared[key] = write()
        return made

    def array(self, value: Operand, dtype: int | None = None) -> np.ndarray:
        """The array of a constant, also for attributes that are tensors."""
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
        else:
            array = np.array(value)
            kinds = {"f": self.float_dtype, "i": TensorProto.INT64, "b": TensorProto.BOOL}
            if array.dtype.kind not in kinds:
                raise TypeError(f"{value!r} is no number, expected a float, an int, a bool, a list of them or an array")
            # Empty lists are lists of axes or sizes.
            own = TensorProto.INT64 if array.size == 0 else kinds[array.dtype.kind]
            dtype = own if dtype is None else dtype
        return array if dtype is None else array.astype(helper.tensor_dtype_to_np_dtype(dtype))

    def attribute_value(self, name: str, kind: AttributeProto.AttributeType) -> Value:
        """The value of an attribute of the function, of type AttributeProto.AttributeType."""
        attributes: dict[str, Any] = {CONSTANT_FIELDS[kind]: Reference(name, kind)}
        return self.op("Constant", name=name, **attributes)

    def subgraph(
        self,
        write: Callable[..., Operand | tuple[Operand, ...]],
        inputs: Mapping[str, TensorType | None] | None = None,
        outputs: Sequence[TensorType | None] = (),
        name: str = "",
    ) -> Scope:
        """A graph for an attribute of If, Scan or Loop; to be used in one node.

        Args:
            write: called once, with a value for each input; writes the nodes and returns the outputs. It may use values
                of enclosing graphs.
            inputs: types by name; the names are hints.
            outputs: types, where known.
            name: name of the graph; by default that of `write`.
        """
        scope = Scope(name or write.__name__.strip("_<>"), self._scope)
        for hint, tensor in (inputs or {}).items():
            scope.inputs.append((Value(self, scope, hint, is_made=False), tensor))
        self._scope = scope
        try:
            result = write(*(value for value, _ in scope.inputs))
            for index, given in enumerate(result if isinstance(result, tuple) else (result,)):
                value = scope.giving(self._value(given, scope.name), self)
                scope.outputs.append((value, outputs[index] if index < len(outputs) else None))
        finally:
            assert scope.parent is not None
            self._scope = scope.parent
        return scope

    def choose(
        self,
        condition: Value,
        then: Callable[[], Operand],
        otherwise: Callable[[], Operand],
        tensor: TensorType | None = None,
        name: str = "chosen",
    ) -> Value:
        """An If: the value that `then` writes if a scalar condition holds at run time, else that of `otherwise`."""
        branches = [self.subgraph(write, outputs=(tensor,)) for write in (then, otherwise)]
        return self.op("If", condition, name=name, then_branch=branches[0], else_branch=branches[1])

    def keep(self, value: Value) -> None:
        """Keep the node that computes a value even if no output depends on it."""
        self._kept.add(id(value))

    def function(
        self,
        domain: str,
        name: str,
        imports: Iterable[onnx.OperatorSetIdProto],
        attributes: Iterable[AttributeProto | str] = (),
        documentation: str = "",
    ) -> onnx.FunctionProto:
        """The nodes as a function.

        Args:
            domain, name: of the function.
            imports: versions of the domains of its nodes.
            attributes: the default of each attribute, or its name if it has none.
            documentation: its doc_string.

        Raises:
            ValueError: a node refers to an attribute that the function lacks, or there are initializers.
        """
        if self._initializers:
            raise ValueError(f"function {domain}.{name} has initializers, which only a graph can have")
        listed = list(attributes)
        writing = _Writing(self, {a if isinstance(a, str) else a.name for a in listed})
        function = helper.make_function(
            domain,
            name,
            [value.hint for value, _ in self._whole.inputs],
            self._output_names,
            writing.nodes(self._whole),
            list(imports),
            [a for a in listed if isinstance(a, str)],
            [a for a in listed if not isinstance(a, str)],
        )
        function.doc_string = documentation
        return function

    def graph(self, name: str) -> onnx.GraphProto:
        """The nodes as a graph; ValueError if a node refers to an attribute."""
        graph = _Writing(self, set()).graph(self._whole)
        graph.name = name
        graph.initializer.extend(tensor for _, tensor in self._initializers)
        return graph

    def _value(self, given: Operand, user: str) -> Value:
        if not isinstance(given, Value):
            return self.constant(given)
        if not given.hint:
            raise ValueError(f"{user} uses an output that is omitted")
        if given.builder is not self or all(given.scope is not scope for scope in self._scope.chain()):
            where = "by another builder" if given.builder is not self else f"in subgraph '{given.scope.name}'"
            raise ValueError(f"'{given.hint}', which {user} uses, is made {where} and is out of scope here")
        return given


class _Writing:
    """Names values and writes the nodes that outputs depend on."""

    def __init__(self, builder: Builder, attributes: set[str]) -> None:
        whole = builder._whole
        self._attributes = attributes
        self._kept = builder._kept
        self._used: set[int] = set()
        self._look_at(whole)
        given = [value for value, _ in (*whole.inputs, *builder._initializers)]
        fixed = {id(value): value.hint for value in given}
        outputs = zip(whole.outputs, builder._output_names, strict=True)
        fixed.update({id(value): name for (value, _), name in outputs})
        formal = [value.hint for value in given] + builder._output_names
        if twice := {name for name in formal if formal.count(name) > 1}:
            raise ValueError(f"several inputs or outputs are named {', '.join(map(repr, sorted(twice)))}")
        self._names = fixed
        self._taken = Names(formal)

    def _look_at(self, scope: Scope) -> None:
        """Find the values that outputs depend on, in reverse topological order."""
        self._used.update(id(value) for value, _ in scope.outputs)
        for node in reversed(scope.nodes):
            if self._is_needed(node):
                self._used.update(id(value) for value in node.inputs if value is not None)
                for attribute in node.attributes.values():
                    if isinstance(attribute, Scope):
                        self._look_at(attribute)

    def _is_needed(self, node: Node) -> bool:
        return any(id(value) in self._used or id(value) in self._kept for value in node.outputs)

    def name(self, value: Value) -> str:
        if id(value) not in self._names:
            self._names[id(value)] = self._taken.new(value.hint)
        return self._names[id(value)]

    def graph(self, scope: Scope) -> onnx.GraphProto:
        return helper.make_graph(
            inputs=[self._info(value, tensor) for value, tensor in scope.inputs],
            nodes=self.nodes(scope),
            outputs=[self._info(value, tensor) for value, tensor in scope.outputs],
            name=scope.name,
        )

    def _info(self, value: Value, tensor: TensorType | None) -> onnx.ValueInfoProto:
        if tensor is None:
            return onnx.ValueInfoProto(name=self.name(value))
        return value_info(self.name(value), tensor)

    def nodes(self, scope: Scope) -> list[onnx.NodeProto]:
        return [self._node(node) for node in scope.nodes if self._is_needed(node)]

    def _node(self, node: Node) -> onnx.NodeProto:
        made = helper.make_node(
            node.op_type,
            ["" if value is None else self.name(value) for value in node.inputs],
            [self.name(value) if value.hint else "" for value in node.outputs],
            domain=node.domain,
        )
        made.attribute.extend(self._attribute(key, value) for key, value in node.attributes.items())
        return made

    def _attribute(self, key: str, value: object) -> AttributeProto:
        if isinstance(value, Reference):
            if value.name not in self._attributes:
                raise ValueError(f"attribute '{key}' refers to '{value.name}', which is no attribute of the function")
            return AttributeProto(name=key, type=value.type, ref_attr_name=value.name)
        if isinstance(value, AttributeProto):
            return value
        if isinstance(value, Scope):
            value = self.graph(value)
        elif isinstance(value, np.ndarray | np.generic):
            value = _tensor(np.asarray(value))
        return helper.make_attribute(key, value)


def _tensor(array: np.ndarray) -> TensorProto:
    """A constant tensor; onnx before 1.20 cannot print raw bools as text."""
    if array.dtype.kind == "b":
        return helper.make_tensor("", TensorProto.BOOL, array.shape, array.ravel())
    return numpy_helper.from_array(array)


def _words(op_type: str) -> str:
    """ReduceSum as reduce_sum."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_type).lower()


def _constant_words(array: np.ndarray) -> str:
    if array.size != 1:
        return "numbers"
    number = array.reshape(()).item()
    if array.dtype.kind == "b" or number != number or abs(number) == math.inf:
        word = str(number).lower().replace("-", "minus_")
    else:
        word = NUMBER_NAMES.get(number, "number")
    return f"{word}_1d" if array.ndim == 1 else word
