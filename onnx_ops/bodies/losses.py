"""Reductions of losses in function bodies."""

from __future__ import annotations

from onnx_ops.bodies.body import Body
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value


def loss_of(b: Body, terms: Value) -> Value:
    """The terms, reduced by the attribute `reduction`: terms, sum, mean or batchmean."""

    def total() -> Value:
        whole, divisor = b.op("ReduceSum", terms, name="total", keepdims=0), b.divisor(terms)
        return whole if divisor is None else (whole / divisor).named("quotient")

    kinds = {Reduction(c.attributes["reduction"]) for c in b.calls}
    if kinds == {Reduction.NONE}:
        return terms
    if Reduction.NONE not in kinds:
        return total()
    keeps_all = b.value_of("reduction").equal(int(Reduction.NONE)).named("keeps_all")
    return b.choose(keeps_all, lambda: terms, total, TensorType(b.compute), name="loss")
