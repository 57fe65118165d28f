"""Products with transposed weights, as Gemm, which reads the weight as it is.

onnxruntime fuses a Transpose with the product that is its only reader. That of a weight has a second one, as the
gradient of the product transposes it back: each step would compute the transposes of all weights.
"""

from __future__ import annotations

import onnx_ir as ir

RANK = 2
GEMM = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The dtypes for which MatMul becomes Gemm: not all versions of onnxruntime have a Gemm of others."""


def fuse_transposes(model: ir.Model) -> None:
    """Let Gemm transpose its operands, and let products with a transposed second operand be Gemm, in place."""
    for node in model.graph.all_nodes():
        if node.domain != "" or node.op_type not in ("MatMul", "Gemm"):
            continue
        for operand, flag in enumerate(("transA", "transB")):
            source, is_transposed = _source(node.inputs[operand])
            if source is None or source is node.inputs[operand]:
                continue
            if is_transposed:
                if node.op_type == "MatMul":
                    if not (operand == 1 and _is_matrix(node.inputs[0]) and source.dtype in GEMM):
                        continue
                    node.op_type = "Gemm"
                node.attributes[flag] = ir.AttrInt64(flag, 1 - node.attributes.get_int(flag, 0))
            node.replace_input_with(operand, source)


def _source(value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """The matrix that a value is, or is the transpose of, and whether it is the transpose."""
    is_transposed = False
    while value is not None and (node := value.producer()) is not None:
        if node.domain != "" or node.op_type != "Transpose" or not _is_matrix(node.inputs[0]):
            break
        if tuple(node.attributes.get_ints("perm", (1, 0))) == (1, 0):
            is_transposed = not is_transposed
        value = node.inputs[0]
    return value, is_transposed


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and len(value.shape) == RANK
