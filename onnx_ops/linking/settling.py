"""What a portable body cannot say is settled at the nodes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from onnx_ops.core.op import Op
from onnx_ops.core.schema import is_optional
from onnx_ops.core.types import TensorType
from onnx_ops.graph.edits import Insertions, Names
from onnx_ops.linking.sites import Site
from onnx_ops.loops.space import Role


def mixtures(op: Op, site: Site) -> set[tuple[int | None, ...]]:
    """The dtypes of the inputs of a node, one mixture for each that calls of the function around it bring."""
    return {tuple(map(call.dtype, op.input_names)) for call in site.calls}


def fill_missing(op: Op, own: Sequence[Site], insertions: Insertions, names: Names) -> None:
    """Give ones to nodes that leave out an input that another node of the op has."""
    for index, parameter in enumerate(op.schema.inputs):
        lacking = [site for site in own if not _has_input(site.node, index)]
        if not is_optional(parameter) or len(lacking) == len(own):
            continue
        for site in lacking:
            site.node.input.extend([""] * (index + 1 - len(site.node.input)))
            made = _ones(op, site.node, parameter.name, names)
            insertions.before(site.place, site.node, made)
            site.node.input[index] = made[-1].output[0]
            like = _channel_input(op, parameter.name)
            site.calls = [
                call.with_input(parameter.name, TensorType(TensorProto.FLOAT, call.shape(like) if like else ()))
                for call in site.calls
            ]


def _has_input(node: onnx.NodeProto, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])


def _channel_input(op: Op, name: str) -> str | None:
    """For an input of one number per channel, another that is always there; None for an input that broadcasts."""
    roles: dict[str, Role] = getattr(op.kernel, "roles", {})
    return next(n for n, own in roles.items() if own & Role.CHANNEL) if roles[name] & Role.CHANNEL else None


def _ones(op: Op, node: onnx.NodeProto, name: str, names: Names) -> list[onnx.NodeProto]:
    out = names.new(f"{node.output[0]}_{name}_ones")
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    like = _channel_input(op, name)
    if like is None:
        return [helper.make_node("Constant", [], [out], value_float=1.0)]
    shape = names.new(f"{out}_shape")
    return [
        helper.make_node("Shape", [node.input[op.input_names.index(like)]], [shape]),
        helper.make_node("ConstantOfShape", [shape], [out], value=one),
    ]


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
        dtype = op.kernel.infer(site.calls[0]).dtype
        for index, name in enumerate(op.input_names):
            if site.calls[0].dtype(name) not in (dtype, None) and dtype is not None:
                cast = names.new(f"{site.node.output[0]}_{name}_cast")
                made = helper.make_node("Cast", [site.node.input[index]], [cast], to=dtype)
                insertions.before(site.place, site.node, [made])
                site.node.input[index] = cast
                site.calls = [call.with_input(name, TensorType(dtype, call.shape(name))) for call in site.calls]
