"""Keeps float64 constants next to 0 and 1 from onnxruntime's optimizer.

Its NoopElimination removes `Add`, `Sub`, `Mul` and `Div` by a constant that is neutral, and compares the constant in
float32, in which 1 + 1e-9 is 1 and 1e-46 is 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_ops.graph.edits import Insertions, Names
from onnx_ops.graph.functions import Key, function_key
from onnx_ops.graph.imports import normalized
from onnx_ops.graph.walk import Place, placed_nodes, places

NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
"""Operators that onnxruntime removes where an operand is this constant."""


def is_neutral_in_float32(op_type: str, constant: np.ndarray) -> bool:
    """Whether a float64 operand of an operator is its neutral element only once rounded to float32."""
    neutral = NEUTRAL.get(op_type)
    if neutral is None or constant.dtype != np.float64 or constant.size != 1:
        return False
    value = constant.item()
    with np.errstate(over="ignore"):
        return bool(value != neutral and np.float32(value) == neutral)


def protect_constants(model: onnx.ModelProto) -> None:
    """Pass such constants through a sequence of one tensor, which onnxruntime does not fold, in place."""
    constants: defaultdict[tuple[Key | None, str], list[np.ndarray]] = defaultdict(list)  # branches may share a name
    for place in places(model):
        for name, array in _scalars(place):
            constants[_scope(place), name].append(array)
    if not constants:
        return
    names, insertions = Names.of(model), Insertions()
    for place, node in placed_nodes(model):
        if node.op_type not in NEUTRAL or normalized(node.domain):
            continue
        for index, name in enumerate(node.input):
            if any(is_neutral_in_float32(node.op_type, value) for value in constants.get((_scope(place), name), ())):
                first, sequence, protected = (names.new(f"{name}_{what}") for what in ("first", "list", "protected"))
                made = [
                    helper.make_node("Constant", [], [first], value_int=0),
                    helper.make_node("SequenceConstruct", [name], [sequence]),
                    helper.make_node("SequenceAt", [sequence, first], [protected]),
                ]
                insertions.before(place, node, made)
                node.input[index] = protected
    insertions.apply(model)


def _scope(place: Place) -> Key | None:
    """The function in which the names of this place are defined; None is the graph."""
    return None if isinstance(place.importer, onnx.ModelProto) else function_key(place.importer)


def _scalars(place: Place) -> Iterator[tuple[str, np.ndarray]]:
    """The float64 constants of one element of a graph or function, by name."""
    container = place.container
    tensors = (
        [(tensor.name, tensor) for tensor in container.initializer] if isinstance(container, onnx.GraphProto) else []
    )
    for node in container.node:
        if node.op_type == "Constant" and not normalized(node.domain) and node.attribute[0].name == "value":
            tensors.append((node.output[0], node.attribute[0].t))
    for name, tensor in tensors:
        if tensor.data_type == TensorProto.DOUBLE and math.prod(tensor.dims) == 1:
            yield name, numpy_helper.to_array(tensor)
