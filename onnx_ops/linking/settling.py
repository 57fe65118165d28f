"""What a portable body cannot say is settled at the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from onnx_ops.core.call import Call
from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op
from onnx_ops.core.signature import Default
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
        if name not in op.signature.defaults or len(lacking) == len(own):
            continue
        default = op.signature.defaults[name]
        for site in lacking:
            site.node.input.extend([""] * (index + 1 - len(site.node.input)))
            made = _filling(op, site.node, name, default, names)
            insertions.before(site.place, site.node, made)
            site.node.input[index] = made[-1].output[0]
            site.calls = [call.with_input(name, _filled_type(call, default)) for call in site.calls]


def _filled_type(call: Call, default: Default) -> TensorType:
    shape = call.shape(default.like) if default.like else ()
    if default.axis is not None and shape is not None:
        shape = shape[default.axis : default.axis + 1]
    return TensorType(call.dtype(default.dtype_of) if default.dtype_of else TensorProto.FLOAT, shape)


def _has_input(node: onnx.NodeProto, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])


def _filling(op: Op, node: onnx.NodeProto, name: str, default: Default, names: Names) -> list[onnx.NodeProto]:
    """Nodes of which the last makes what the input stands for."""

    def given(wanted: str) -> str:
        return str(node.input[op.input_names.index(wanted)])

    first = next(filter(None, node.output))
    out = names.new(f"{first}_{name}_filled")
    if default.like is None:
        made = [helper.make_node("Constant", [], [out], value_float=default.value)]
    else:
        shape = names.new(f"{out}_shape")
        span: dict[str, Any] = {} if default.axis is None else {"start": default.axis, "end": default.axis + 1}
        value = helper.make_tensor("value", TensorProto.FLOAT, [1], [default.value])
        made = [
            helper.make_node("Shape", [given(default.like)], [shape], **span),
            helper.make_node("ConstantOfShape", [shape], [out], value=value),
        ]
    if default.dtype_of:
        made.append(helper.make_node("CastLike", [out, given(default.dtype_of)], [names.new(f"{out}_cast")]))
    return made


def spell_out_where_uses_differ(op: Op, own: Sequence[Site]) -> None:
    """Give an op's nodes the attributes that its body refers to: onnx.inliner forgets defaults."""
    calls = {call.key: call for site in own for call in site.calls}.values()
    wanted = [name for name in op.schema.attributes if len({call.attributes[name] for call in calls}) > 1]
    for site in own:
        given = {attribute.name for attribute in site.node.attribute}
        site.node.attribute.extend(op.schema.attributes[n].default_value for n in wanted if n not in given)


def declare_outputs(own: Sequence[Site], count: int) -> None:
    """Let an op's nodes list as many outputs as the functions declare: onnxruntime refuses fewer or more."""
    for site in own:
        outputs = list(site.node.output)[:count]
        del site.node.output[:]
        site.node.output.extend(outputs + [""] * (count - len(outputs)))


def settle_dtypes(
    op: Op, own: Sequence[Site], misfits: Mapping[str, Sequence[str]], insertions: Insertions, names: Names
) -> None:
    """Cast inputs of an op's nodes, or set attributes, where one body cannot follow the dtypes of the outputs.

    Args:
        op: the op.
        own: its nodes.
        misfits: by output the inputs, and the attributes, one of which is to have the dtype of the output.
        insertions: where the Casts go.
        names: of the model's values.
    """
    for output, like in misfits.items():
        for name in like:
            for site in own:
                # Not one that is not used, or by several calls of a function that bring different dtypes.
                if len(mixtures(op, site)) == 1 and (dtype := _dtype_of(op, site.calls[0], output)) is not None:
                    _settle(op, site, name, dtype, insertions, names)
            if all(call.held_dtype(name) == _dtype_of(op, call, output) for site in own for call in site.calls):
                break


def _dtype_of(op: Op, call: Call, output: str) -> int | None:
    return op.infer(call)[op.output_names.index(output)].dtype


def _settle(op: Op, site: Site, name: str, dtype: int, insertions: Insertions, names: Names) -> None:
    """Give a node's input, or attribute, a dtype, unless that would change the dtypes of its outputs."""
    settled = [call.holding(name, dtype) for call in site.calls]
    if not all(_same_outputs(op, call, other) for call, other in zip(site.calls, settled, strict=True)):
        return
    node = site.node
    if name in op.schema.attributes:
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, dtype)])
    elif site.calls[0].dtype(name) not in (dtype, None):
        index = op.input_names.index(name)
        cast = names.new(f"{next(filter(None, node.output))}_{name}_cast")
        insertions.before(site.place, node, [helper.make_node("Cast", [node.input[index]], [cast], to=dtype)])
        node.input[index] = cast
    else:
        return
    site.calls = settled


def _same_outputs(op: Op, call: Call, other: Call) -> bool:
    """Whether the op takes the other call too, with the same dtypes of the outputs that are wanted."""
    try:
        return all(_dtype_of(op, call, name) == _dtype_of(op, other, name) for name in call.outputs)
    except OpError:
        return False
