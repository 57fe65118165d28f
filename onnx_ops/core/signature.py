"""The declaration of an op: its inputs, outputs and attributes, from which ONNX schema and index space are derived."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx.defs import OpSchema

from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.schema import Interface, tensor_types
from onnx_ops.core.space import IndexSpace, Role
from onnx_ops.core.types import FLOATS, MAX_RANK, dtype_name


@dataclass(frozen=True)
class Default:
    """The default of an optional input: a tensor whose elements all have one value.

    Attributes:
        value: of all elements.
        like: a required input whose shape the default has; None for a scalar, where the input broadcasts.
        axis: the only axis of `like` that the default has; None for all of them.
        shape: a required attribute that is its shape, instead of `like`.
        dtype_of: a required input whose dtype the default has, if the input shares its dtype with none; None where its
            dtype does not matter.
    """

    value: float
    like: str | None = None
    axis: int | None = None
    shape: str | None = None
    dtype_of: str | None = None


@dataclass(frozen=True)
class Input:
    """One input of an op.

    Attributes:
        name: as in aclnn.
        description: one sentence, for documentation.
        role: in the index space of the op's loop; None for an input that is not part of it.
        dtypes: the element types that it may have.
        like: another input whose dtype it shares.
        default: makes the input optional; its value where it is omitted.
    """

    name: str
    description: str
    role: Role | None = None
    dtypes: Sequence[int] = FLOATS
    like: str | None = None
    default: Default | None = None


@dataclass(frozen=True)
class OutputType:
    """The dtype of outputs that do not have the dtype of one input.

    Attributes:
        rule: in words, for documentation.
        dtypes: the element types that it may be.
        inputs: those whose dtypes determine it.
        by_attribute: whether it depends on attributes too.
    """

    rule: str
    dtypes: Sequence[int] = FLOATS
    inputs: tuple[str, ...] = ()
    by_attribute: bool = False


def promoted_type(*inputs: str) -> OutputType:
    """The dtype that inputs promote to."""
    names = " and ".join(f"`{name}`" for name in inputs)
    return OutputType(f"The type that {names} promote to.", inputs=inputs)


@dataclass(frozen=True)
class Output:
    """One output of an op.

    Attributes:
        name: as in aclnn.
        description: one sentence, for documentation.
        dtype: the name of the input whose dtype it has, or a rule. Outputs with one `OutputType` have one dtype.
        optional: whether a node may omit it.
        requires: an optional input without which it cannot be computed.
    """

    name: str
    description: str
    dtype: str | OutputType
    optional: bool = False
    requires: str | None = None


@dataclass(frozen=True)
class Signature:
    """Name, documentation, inputs, outputs and attributes of an op.

    Attributes:
        name: the op_type.
        doc: formula, shapes, dtypes and edge rules.
        inputs, outputs: in the order of the schema.
        attributes: by `onnx_ops.core.schema.attribute` and `required_attribute`.
        choices: of attributes with enumerated values, by name: their values, with PyTorch's word for each.
        ranks: least and greatest rank of the index space.
        version: of the op: the version of the domain that it was added or changed in.
    """

    name: str
    doc: str
    inputs: Sequence[Input]
    outputs: Sequence[Output]
    attributes: Sequence[OpSchema.Attribute] = ()
    choices: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    ranks: tuple[int, int] = (0, MAX_RANK)
    version: int = 1

    @functools.cached_property
    def schema(self) -> OpSchema:
        """The ONNX schema. Inputs have type variables of their own, but for those that share one by `like`."""
        constraints: dict[str, tuple[str, list[str], str]] = {}

        def variable(name: str, dtypes: Sequence[int], rule: str) -> str:
            camel = "T" + name.title().replace("_", "")
            constraints.setdefault(camel, (camel, tensor_types(dtypes), rule))
            return camel

        inputs = [
            OpSchema.FormalParameter(
                given.name,
                variable(given.like or given.name, given.dtypes, _names(given.dtypes)),
                given.description,
                param_option=_option(given.default is not None),
            )
            for given in self.inputs
        ]
        variables = {given.name: parameter.type_str for given, parameter in zip(self.inputs, inputs, strict=True)}
        first: dict[int, str] = {}
        outputs = []
        for output in self.outputs:
            if isinstance(output.dtype, str):
                own = variables[output.dtype]
            else:
                name = first.setdefault(id(output.dtype), f"{output.name}_out")
                own = variable(name, output.dtype.dtypes, output.dtype.rule)
            option = _option(output.optional)
            outputs.append(OpSchema.FormalParameter(output.name, own, output.description, param_option=option))
        return OpSchema(
            self.name,
            DOMAIN,
            self.version,
            self.doc,
            inputs=inputs,
            outputs=outputs,
            type_constraints=list(constraints.values()),
            attributes=list(self.attributes),
        )

    @functools.cached_property
    def interface(self) -> Interface:
        """The same, as calls are checked against it."""
        return Interface.of(self.schema)

    @functools.cached_property
    def space(self) -> IndexSpace:
        """The index space that the inputs with a role make up."""
        return IndexSpace({given.name: given.role for given in self.inputs if given.role is not None}, self.ranks)

    @functools.cached_property
    def defaults(self) -> Mapping[str, Default]:
        """The defaults of the optional inputs, by name, with the inputs whose dtypes they have."""
        return {
            given.name: replace(given.default, dtype_of=given.default.dtype_of or given.like)
            for given in self.inputs
            if given.default is not None
        }

    @functools.cached_property
    def typed_inputs(self) -> tuple[str, ...]:
        """The inputs whose dtypes determine those of the outputs, as far as attributes do not."""
        kinds = [output.dtype for output in self.outputs]
        named = {name for kind in kinds for name in ((kind,) if isinstance(kind, str) else kind.inputs)}
        return tuple(given.name for given in self.inputs if given.name in named)

    @functools.cached_property
    def outputs_typed_by_attributes(self) -> tuple[str, ...]:
        """The outputs whose dtypes depend on attributes."""
        return tuple(o.name for o in self.outputs if isinstance(o.dtype, OutputType) and o.dtype.by_attribute)


def _names(dtypes: Sequence[int]) -> str:
    return "Floating types." if tuple(dtypes) == FLOATS else f"{', '.join(map(dtype_name, dtypes))}."


def _option(optional: bool) -> OpSchema.FormalParameterOption:
    option = OpSchema.FormalParameterOption
    return option.Optional if optional else option.Single
