"""Records of what an op corresponds to, and what several of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["Float", "Int", "Bool", "String", "ListInt"]
Constant = bool | int | str


@dataclass(frozen=True)
class Aclnn:
    """An aclnn function.

    Attributes:
        name: without the prefix.
        arguments: its arguments in order, without workspaceSize and executor: for each the input, attribute or output
            here, or words for one that has none.
        differences: of meaning, and between documents of CANN; sentences.
        refused: what aclnn rejects and this package computes; sentences.
        missing: what aclnn accepts and this package does not have; sentences.
    """

    name: str
    arguments: Mapping[str, str]
    differences: Sequence[str] = ()
    refused: Sequence[str] = ()
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class GeAttribute:
    """An attribute of an operator of a graph.

    Attributes:
        kind: its type.
        source: the attribute here.
        empty: what replaces an empty list: numbers, or the name of another attribute here.
        default: its default, if that is not the one here.
    """

    kind: Kind
    source: str
    empty: tuple[int, ...] | str | None = None
    default: Constant | float | None = None


@dataclass(frozen=True)
class GeOperator:
    """An operator of a graph (GE), as REG_OP or its definition in CANN declares it.

    Attributes:
        name: its type.
        inputs: in its order, with the input here.
        outputs: likewise; outputs here that it does not have come last in the schema.
        attributes: by its names.
        constants: attributes that have one value for all nodes.
        given: attributes that say whether a node has an input, by its name here.
        only: integer attributes here that must have one value.
        divided: inputs here that it takes divided by another one.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    attributes: Mapping[str, GeAttribute] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, int] = field(default_factory=dict)
    divided: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Correspondence:
    """What an op corresponds to.

    Attributes:
        aclnn: the function of its name; None for a name of this package's own.
        operator: the operator of a graph that a parser plugin makes of a node; None if there is none.
        note: on the name of an op that is not aclnn's, or on the operator that is missing; a sentence.
        related: further operators of graphs, for which there are golden functions.
    """

    aclnn: Aclnn | None
    operator: GeOperator | None
    note: str = ""
    related: Sequence[str] = ()


NO_DOUBLE = "double (float64)."
MIXED = "Inputs of different dtypes."
RANK_0 = "Scalars (rank 0)."
REDUCTION = GeAttribute("String", "reduction")
COMPOSED = "aclnn composes it of several operators, so a node has no single operator of a graph."


def same(*names: str) -> dict[str, str]:
    return {name: name for name in names}
