"""What a portable body cannot say is settled at the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from onnx_ops.core.call import Call
from onnx_ops.core.op import Missing, Op
from onnx_ops.core.types import TensorType
from onnx_ops.graph.edits import Insertions, Names
from onnx_ops.linking.sites import Site


def mixtures(op: Op, site: Site) -> set[tuple[int | None, ...]]:
    """The dtypes of the inputs of a node, one mixture for each that calls of the function around it bring."""
    return {tuple(map(call.dtype, op.input_names)) for call in site.calls}


def fill_missing(op: Op, own: Sequence[Site], insertions: Insertions, names: Names) -> None:
    """Give nodes that leave out an input that another node of the op has what it stands for."""
    for index, name in enumerate(op.input_names):
        lacking = [site for site in own if not _has_input(site.node, index)]
        if name not in op.missing or len(lacking) == len(own):
            continue
        missing = op.missing[name]
        for site in lacking:
            site.node.input.extend([""] * (index + 1 - len(site.node.input)))
            made = _filling(op, site.node, name, missing, names)
            insertions.before(site.place, site.node, made)
            site.node.input[index] = made[-1].output[0]
            site.calls = [call.with_input(name, _filled_type(call, missing)) for call in site.calls]


def _filled_type(call: Call, missing: Missing) -> TensorType:
    shape = call.shape(missing.like) if missing.like else ()
    if missing.axis is not None and shape is not None:
        shape = shape[missing.axis : missing.axis + 1]
    return TensorType(call.dtype(missing.dtype_of) if missing.dtype_of else TensorProto.FLOAT, shape)


def _has_input(node: onnx.NodeProto, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])


def _filling(op: Op, node: onnx.NodeProto, name: str, missing: Missing, names: Names) -> list[onnx.NodeProto]:
    """Nodes of which the last makes what the input stands for."""

    def given(wanted: str) -> str:
        return str(node.input[op.input_names.index(wanted)])

    first = next(filter(None, node.output))
    out = names.new(f"{first}_{name}_filled")
    if missing.like is None:
        made = [helper.make_node("Constant", [], [out], value_float=missing.value)]
    else:
        shape = names.new(f"{out}_shape")
        span: dict[str, Any] = {} if missing.axis is None else {"start": missing.axis, "end": missing.axis + 1}
        value = helper.make_tensor("value", TensorProto.FLOAT, [1], [missing.value])
        made = [
            helper.make_node("Shape", [given(missing.like)], [shape], **span),
            helper.make_node("ConstantOfShape", [shape], [out], value=value),
        ]
    if missing.dtype_of:
        made.append(helper.make_node("CastLike", [out, given(missing.dtype_of)], [names.new(f"{out}_cast")]))
    return made


def spell_out_where_uses_differ(op: Op, own: Sequence[Site]) -> None:
    """Give an op's nodes the attributes that its body refers to: onnx.inliner forgets defaults."""
    calls = {call.key: call for site in own for call in site.calls}.values()
    wanted = [name for name in op.schema.attributes if len({call.attributes[name] for call in calls}) > 1]
    for site in own:
        given = {attribute.name for attribute in site.node.attribute}
        site.node.attribute.extend(op.schema.attributes[n].default_value for n in wanted if n not in given)


def cast_inputs(op: Op, own: Sequence[Site], insertions: Insertions, names: Names) -> None:
    """Cast the inputs of an op's nodes with mixed dtypes, where one body cannot serve all the mixtures."""
    for site in own:
        if len(mixtures(op, site)) != 1:
            continue  # not used, or by several calls of a function that bring different dtypes
        dtype = op.infer(site.calls[0])[0].dtype
        for index, name in enumerate(op.input_names):
            if site.calls[0].dtype(name) not in (dtype, None) and dtype is not None:
                cast = names.new(f"{next(filter(None, site.node.output))}_{name}_cast")
                made = helper.make_node("Cast", [site.node.input[index]], [cast], to=dtype)
                insertions.before(site.place, site.node, [made])
                site.node.input[index] = cast
                site.calls = [call.with_input(name, TensorType(dtype, call.shape(name))) for call in site.calls]
