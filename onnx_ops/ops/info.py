"""What users are given of each op: its schema, its documentation and its definition in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from onnx.defs import OpSchema

from onnx_ops.core.op import Op
from onnx_ops.ops import OPS


@dataclass(frozen=True)
class OpInfo:
    """An op of the domain.

    Attributes:
        name: its op_type.
        schema: inputs, outputs, attributes and their dtypes, as `onnx.defs.get_schema` returns it.
        doc: formula, shapes, dtypes and edge rules.
        reference: NumPy definition, reference(*inputs, dtype=None, **attributes), with None for an omitted input.
            Returns an array, or a tuple for several outputs, with None for one that cannot be computed. With
            dtype=numpy.float64, computes and returns float64 whatever the dtypes of the inputs. It does not check the
            call; the classes of `reference_ops` do.
    """

    name: str
    schema: OpSchema = field(repr=False)
    doc: str = field(repr=False)
    reference: Callable[..., Any] = field(repr=False)

    @classmethod
    def of(cls, op: Op) -> OpInfo:
        return cls(op.name, op.schema, op.schema.doc or "", op.reference)


def op_infos() -> Mapping[str, OpInfo]:
    """All ops by name."""
    return MappingProxyType({name: OpInfo.of(op) for name, op in OPS.items()})
