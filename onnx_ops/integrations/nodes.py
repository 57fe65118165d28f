"""Nodes of the domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper
from onnx.defs import OpSchema

from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.errors import OpError, at_node, node_words
from onnx_ops.core.op import Op
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.types import TensorType
from onnx_ops.ops import op_named


def make_node(
    op_type: str,
    inputs: Sequence[str | None] | Mapping[str, str | None],
    outputs: Sequence[str],
    name: str | None = None,
    doc_string: str | None = None,
    **attributes: Any,
) -> onnx.NodeProto:
    """A node of the domain, its names checked against the op's schema.

    Args:
        op_type: name of the op.
        inputs: names of the values in the order of the schema, or by input name; "" or None for an input left out.
        outputs: name of the one output, in a sequence.
        name, doc_string: as in onnx.helper.make_node.
        attributes: by name; `reduction` also by its name ("none", "mean", "sum", "batchmean"), flags also as bools.

    Raises:
        OpError: an op, input or attribute that does not exist, a value that an attribute cannot have, a required input
            that is missing.
    """
    with at_node(node_words(name or "", _first(outputs))):
        op = op_named(op_type)
        values = _input_values(op, inputs)
        if isinstance(outputs, str):
            raise OpError(op_type, f"outputs are '{outputs}', expected a sequence of names, ['{outputs}']")
        if len(outputs) != 1:
            raise OpError(op_type, f"got {len(outputs)} outputs, expected 1")
        settled: dict[str, Any] = {key: _attribute_value(op, key, value) for key, value in attributes.items()}
        op.kernel.infer(op.call([TensorType() if value else None for value in values], settled))
    return helper.make_node(op_type, values, list(outputs), name=name, doc_string=doc_string, domain=DOMAIN, **settled)


def _first(outputs: Sequence[str]) -> str:
    return outputs if isinstance(outputs, str) else next(iter(outputs), "")


def _input_values(op: Op, inputs: Sequence[str | None] | Mapping[str, str | None]) -> list[str]:
    """Names of values in the order of the schema, without those left out at the end."""
    if isinstance(inputs, str):
        raise OpError(op.name, f"inputs are '{inputs}', expected a sequence of names, or a mapping from input names")
    if isinstance(inputs, Mapping):
        if unknown := sorted(set(inputs) - set(op.input_names)):
            raise OpError(op.name, f"unknown input '{unknown[0]}', expected {', '.join(op.input_names)}")
        inputs = [inputs.get(i) for i in op.input_names]
    values = [i or "" for i in inputs]
    while values and not values[-1]:
        values.pop()
    return values


def _attribute_value(op: Op, name: str, value: Any) -> int | float:
    floating = op.attribute(name).type == OpSchema.AttrType.FLOAT
    try:
        if name == "reduction":
            return int(_reduction(op, value))
        if floating:
            return float(value)
        if int(value) != value:
            raise ValueError
        return int(value)
    except (OverflowError, TypeError, ValueError):
        expected = "a number" if floating else "a whole number"
        if name == "reduction":
            expected = ", ".join(r.name.lower() for r in Reduction if _takes(op, r))
        raise OpError(op.name, f"attribute '{name}' is {value!r}, expected {expected}") from None


def _reduction(op: Op, value: Any) -> Reduction:
    """The reduction that a number or a name stands for; ValueError if the op has none such."""
    reduction = Reduction(value)
    if not _takes(op, reduction):
        raise ValueError
    return reduction


def _takes(op: Op, reduction: Reduction) -> bool:
    try:
        op.kernel.infer(op.call([TensorType()] * len(op.input_names), {"reduction": int(reduction)}))
    except OpError:
        return False
    return True
