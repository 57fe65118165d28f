"""Outputs that may have the memory of an input: GetMayInplace of an OrtCustomOp.

Facts (onnxruntime 1.23 to 1.32): the last node that reads a value, which is neither input nor output of the graph, may
write its output there. It does if both have one shape, by sizes and names of dimensions, and elements of one size;
dtypes are not compared. Where equal names hide that the output is larger, the run fails. The functions of the struct
get no `op`.
"""

from __future__ import annotations

import functools

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.cpu import CPUContext
from numba.core.datamodel import DataModelManager
from numba.core.typing import Context as TypingContext
from numba.core.typing import Signature
from numba.extending import intrinsic, models, register_model

from onnx_ops.core.op import Op
from onnx_ops.loops.in_place import in_place_pairs
from onnx_ops.runtime.compiler import Function, compile_native
from onnx_ops.runtime.declarations import Declaration
from onnx_ops.runtime.native import WORD, Typed, Values
from onnx_ops.runtime.pointers import pointer_at, store

Pairs = tuple[tuple[int, int], ...]
"""Indices of inputs and outputs."""


class _Constants(types.Type):  # type: ignore[misc]
    """An address, whose type has pairs of indices."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        super().__init__(name=f"Constants{pairs}")


@register_model(_Constants)
class _ConstantsModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: DataModelManager, constants: types.Type) -> None:
        super().__init__(manager, constants, WORD)


@intrinsic
def _store_arrays(typing: TypingContext, inputs: types.Type, outputs: types.Type) -> Typed:
    """Store the addresses of constant arrays of the indices; returns their length."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        for address, indices in zip(args, zip(*inputs.pairs, strict=True), strict=True):
            numbers = ir.Constant(ir.ArrayType(ir.IntType(32), len(indices)), indices)
            array = cgutils.global_constant(builder, "indices", numbers)
            store(builder, builder.ptrtoint(array, WORD), pointer_at(builder, address, WORD))
        return WORD(len(inputs.pairs))

    return types.int64(inputs, types.int64), codegen


def may_inplace(inputs, outputs):
    """GetMayInplace: int** of the indices of inputs and of outputs."""
    return _store_arrays(inputs, outputs)


def release(inputs, outputs):
    """ReleaseMayInplace: the arrays are constants."""


def functions(pairs: Pairs) -> dict[str, Function]:
    """The functions by field of OrtCustomOp."""
    if not pairs:
        return {}
    return {
        "GetMayInplace": (may_inplace, types.int64(_Constants(pairs), types.int64)),
        "ReleaseMayInplace": (release, types.void(types.int64, types.int64)),
    }


@functools.cache
def addresses(pairs: Pairs) -> dict[str, int]:
    """Addresses of the functions by field of OrtCustomOp."""
    return {field: compile_native(*function) for field, function in functions(pairs).items()}


def pairs_of(op: Op, declared: Declaration) -> Pairs:
    """The inputs whose memory outputs may have, by index."""
    types_of = dict(zip(op.input_names, declared.input_types, strict=True))
    kinds = [types_of[given.like or given.name] for given in op.signature.inputs]
    indices = ((op.input_names.index(name), op.output_names.index(output)) for name, output in in_place_pairs(op))
    return tuple((i, k) for i, k in indices if kinds[i] != 0 and kinds[i] == declared.output_types[k])
