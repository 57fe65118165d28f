"""Rewrites of nodes that a shared function body needs: materialize omitted inputs, spell out attributes, add casts."""

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


def combinations(op: Op, site: Site) -> set[tuple[int | None, ...]]:
    """The combinations of dtypes of the inputs in the calls of a node."""
    return {tuple(map(call.dtype, op.input_names)) for call in site.calls}


def materialize_omitted(op: Op, own: Sequence[Site], insertions: Insertions, names: Names) -> None:
    """Materialize the default of an optional input at nodes that omit it, if another node of the op has it."""
    for index, name in enumerate(op.input_names):
        lacking = [site for site in own if not _has_input(site.node, index)]
        if name not in op.signature.defaults or len(lacking) == len(own):
            continue
        default = op.signature.defaults[name]
        for site in lacking:
            site.node.input.extend([""] * (index + 1 - len(site.node.input)))
            made = _default_nodes(op, site.node, name, default, names)
            insertions.before(site.place, site.node, made)
            site.node.input[index] = made[-1].output[0]
            site.calls = [call.with_input(name, _default_type(op, call, name)) for call in site.calls]


def _default_type(op: Op, call: Call, name: str) -> TensorType:
    default = op.signature.defaults[name]
    shape = call.attributes[default.shape] if default.shape else call.shape(default.like) if default.like else ()
    if default.axis is not None and shape is not None:
        shape = shape[default.axis : default.axis + 1]
    return TensorType(call.dtype(default.dtype_of) if default.dtype_of else _dtype_made(op, name), shape)


def _dtype_made(op: Op, name: str) -> int:
    """The dtype in which the default of an input is written: float, or bool for a mask."""
    dtypes = op.signature.inputs[op.input_names.index(name)].dtypes
    return int(TensorProto.FLOAT if TensorProto.FLOAT in dtypes else dtypes[0])


def _has_input(node: onnx.NodeProto, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])


def _default_nodes(op: Op, node: onnx.NodeProto, name: str, default: Default, names: Names) -> list[onnx.NodeProto]:
    """Nodes that compute the default of an input; its value is the output of the last one."""

    def given(wanted: str) -> str:
        return str(node.input[op.input_names.index(wanted)])

    first = next(filter(None, node.output))
    out = names.new(f"{first}_{name}_filled")
    if default.like is None and default.shape is None:
        scalar = helper.make_tensor("value", _dtype_made(op, name), [], [default.value])
        made = [helper.make_node("Constant", [], [out], value=scalar)]
    else:
        shape = names.new(f"{out}_shape")
        if default.like is None:
            sizes = next(helper.get_attribute_value(a) for a in node.attribute if a.name == default.shape)
            made = [helper.make_node("Constant", [], [shape], value_ints=sizes)]
        else:
            span: dict[str, Any] = {} if default.axis is None else {"start": default.axis, "end": default.axis + 1}
            made = [helper.make_node("Shape", [given(default.like)], [shape], **span)]
        value = helper.make_tensor("value", TensorProto.FLOAT, [1], [default.value])
        made.append(helper.make_node("ConstantOfShape", [shape], [out], value=value))
    if default.dtype_of:
        made.append(helper.make_node("CastLike", [out, given(default.dtype_of)], [names.new(f"{out}_cast")]))
    return made


def spell_out_attributes(op: Op, own: Sequence[Site]) -> None:
    """Write out defaults of attributes whose values differ between calls: onnx.inliner drops defaults."""
    calls = {call.key: call for site in own for call in site.calls}.values()
    wanted = [name for name in op.attributes if len({call.attributes[name] for call in calls}) > 1]
    for site in own:
        given = {attribute.name for attribute in site.node.attribute}
        site.node.attribute.extend(op.attributes[n].default_value for n in wanted if n not in given)


def declare_outputs(own: Sequence[Site], count: int) -> None:
    """Make nodes list as many outputs as the functions declare: onnxruntime rejects fewer or more."""
    for site in own:
        outputs = list(site.node.output)[:count]
        del site.node.output[:]
        site.node.output.extend(outputs + [""] * (count - len(outputs)))


def resolve_dtypes(
    op: Op, own: Sequence[Site], misfits: Mapping[str, Sequence[str]], insertions: Insertions, names: Names
) -> None:
    """Cast inputs, or set dtype attributes, of nodes where one body cannot follow the dtypes of their outputs.

    Args:
        op: the op.
        own: its nodes.
        misfits: by output, the inputs and attributes that could determine its dtype.
        insertions: receives the Cast nodes.
        names: names of values in the model.
    """
    for output, like in misfits.items():
        for name in like:
            for site in own:
                # Not a node that is never called, or that is called with different dtypes.
                if len(combinations(op, site)) == 1 and (dtype := _dtype_of(op, site.calls[0], output)) is not None:
                    _resolve(op, site, name, dtype, insertions, names)
            if all(call.held_dtype(name) == _dtype_of(op, call, output) for site in own for call in site.calls):
                break


def _dtype_of(op: Op, call: Call, output: str) -> int | None:
    return op.infer(call)[op.output_names.index(output)].dtype


def _resolve(op: Op, site: Site, name: str, dtype: int, insertions: Insertions, names: Names) -> None:
    """Give an input or attribute of a node a dtype, unless that changes the dtypes of its outputs."""
    resolved = [call.holding(name, dtype) for call in site.calls]
    if not all(_same_outputs(op, call, other) for call, other in zip(site.calls, resolved, strict=True)):
        return
    node = site.node
    if name in op.attributes:
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
    site.calls = resolved


def _same_outputs(op: Op, call: Call, other: Call) -> bool:
    """Whether the op accepts the other call, with the same dtypes of the requested outputs."""
    try:
        return all(_dtype_of(op, call, name) == _dtype_of(op, other, name) for name in call.outputs)
    except OpError:
        return False
