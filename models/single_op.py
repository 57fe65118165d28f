"""A model of one `aclnn` node, for any op, dtypes and shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import AttributeProto, helper

import onnx_ops

ONNX_OPSET = 21
IR_VERSION = 10

Dimension = int | str | None
TensorType = tuple[DTypeLike, Sequence[Dimension]]


def single_op_model(
    op_type: str,
    input_types: Sequence[TensorType | None],
    attributes: Mapping[str, Any] | None = None,
    outputs: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """A model with one node, whose inputs and outputs are named as in the op's schema.

    Invalid nodes are built too (a wrong shape, a missing input, an attribute out of range), for tests of errors.

    Args:
        op_type: an op of the `aclnn` domain, such as "HardshrinkBackward".
        input_types: (dtype, shape) of each input, in the order of the schema; None omits an input, and trailing inputs
            may be missing. A dimension is a number, a name or None.
        attributes: attributes by name; `reduction` may be a string.
        outputs: names of the requested outputs; None for all.

    Returns:
        The model. The types of its outputs are inferred by the schema; if that fails, they are the type of the first
        input.

    Raises:
        ValueError: more input types than the op has inputs.
    """
    schema = onnx.defs.get_schema(op_type, onnx_ops.OPSET_VERSION, onnx_ops.DOMAIN)
    formal_names = [parameter.name for parameter in schema.inputs]
    if len(input_types) > len(formal_names):
        raise ValueError(f"{op_type}: {len(input_types)} input types given, expected at most {len(formal_names)}")
    names = ["" if input_type is None else name for name, input_type in zip(formal_names, input_types, strict=False)]
    wanted = [p.name if outputs is None or p.name in outputs else "" for p in schema.outputs]
    while wanted and not wanted[-1]:
        wanted.pop()
    values = dict(attributes or {})
    if isinstance(values.get("reduction"), str):
        values["reduction"] = onnx_ops.Reduction[values["reduction"].upper()]

    node = helper.make_node(op_type, names, wanted, domain=onnx_ops.DOMAIN)
    for name, value in sorted(values.items()):
        kind = AttributeProto.INTS if isinstance(value, list | tuple) and not value else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    graph = helper.make_graph(
        [node],
        op_type,
        [
            helper.make_tensor_value_info(name, onnx_element_type(input_type[0]), input_type[1])
            for name, input_type in zip(names, input_types, strict=True)
            if input_type is not None
        ],
        [helper.make_empty_tensor_value_info(name) for name in wanted if name],
    )
    model = helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", ONNX_OPSET), onnx_ops.opset_import()],
    )
    for value, inferred in zip(model.graph.output, _output_types(model), strict=True):
        value.type.CopyFrom(inferred)
    return model


def _output_types(model: onnx.ModelProto) -> list[onnx.TypeProto]:
    try:
        inferred = onnx.shape_inference.infer_shapes(model).graph
    except onnx_ops.OpError:
        inferred = onnx.GraphProto()
    known = {v.name: v.type for v in [*inferred.value_info, *inferred.output] if v.type.HasField("tensor_type")}
    # onnx.checker requires a type of every output before it checks the node.
    inputs = [value.type for value in model.graph.input]
    default = inputs[0] if inputs else helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    return [known.get(value.name, default) for value in model.graph.output]


def onnx_element_type(dtype: DTypeLike | int) -> int:
    """TensorProto.DataType of a NumPy dtype (bfloat16: `ml_dtypes.bfloat16`); a TensorProto.DataType is unchanged."""
    return dtype if isinstance(dtype, int) else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
