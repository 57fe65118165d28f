"""Parts of the function bodies of the Kullback-Leibler divergence."""

from __future__ import annotations

from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.graph.builder import Value


def covers(call: Call, name: str, other: str) -> bool:
    """Whether an input is known to have the broadcast shape of it and another, so that nothing is summed.

    Equal symbolic dimensions do not count as equal sizes, as one of them may be 1.
    """
    own, against = call.shape(name), call.shape(other)
    return (
        own is not None
        and against is not None
        and len(own) >= len(against)
        and all(
            y == 1 or (isinstance(x, int) and x != 1)
            for x, y in zip(own[len(own) - len(against) :], against, strict=True)
        )
    )


def by_log_target(b: Body, of_probability: Value, of_logarithm: Value, name: str) -> Value:
    """One of two values, by the attribute `log_target`; an unused one is dropped from the graph."""
    log_target = b.attribute("log_target")
    if log_target is not None:
        return of_logarithm if log_target else of_probability
    is_logarithm = b.value_of("log_target").cast(TensorProto.BOOL).named("is_logarithm")
    return b.op("Where", is_logarithm, of_logarithm, of_probability, name=name)
