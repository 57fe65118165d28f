"""Sums over the axes along which an input is broadcast, in function bodies."""

from __future__ import annotations

from onnx_ops.bodies.body import Body
from onnx_ops.graph.builder import Value


def sum_to_input(b: Body, terms: Value, name: str) -> Value:
    """The terms, summed over the axes along which an input has size 1."""
    shape = b.op("Shape", b.inputs[name], name=f"{name}_shape")
    rank = b.op("Size", b.op("Shape", terms, name="space"), name="rank")
    lead = (rank - b.op("Size", shape, name=f"{name}_rank")).named("lead")
    leads = b.op("Reshape", lead, [1], name="leads")
    padding = b.op("ConstantOfShape", leads, name="padding", value=b.array([1]))
    # An additional leading axis: onnxruntime before 1.30 reduces all axes if `axes` is empty.
    padded_shape = b.op("Concat", [1], padding, shape, name="padded_shape", axis=0)
    is_single = padded_shape.equal([1]).named("is_single")
    axes = b.op("Squeeze", b.op("NonZero", is_single, name="single"), [0], name="axes")
    terms_under_one = b.op("Unsqueeze", terms, [0], name="terms_under_one")
    total = b.op("ReduceSum", terms_under_one, axes, name="total", keepdims=1)
    return b.op("Reshape", total, shape, name="result", allowzero=1)
