"""What the portable bodies of the binary cross entropy of a sigmoid share."""

from __future__ import annotations

from onnx_ops.bodies.body import Body
from onnx_ops.graph.builder import Value


def written_softplus(b: Body, x: Value) -> Value:
    """log(1 + exp(-|x|)), of which no digits are lost where exp(-|x|) is small.

    With u the rounded 1 + e, log(u) * e / (u - 1) is log(1 + e) to the last digits (Kahan); where u is 1, that is e.
    """
    e = b.op("Exp", (-b.op("Abs", x, name="size")).named("minus_size"), name="e")
    u = (e + 1.0).named("u")
    corrected = (b.op("Log", u, name="log_u") * (e / (u - 1.0).named("rounded_e")).named("correction")).named(
        "corrected"
    )
    return b.op("Where", u.equal(1.0).named("is_one"), e, corrected, name="softplus")
