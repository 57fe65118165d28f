"""Parts of the function bodies of the binary cross entropy with logits."""

from __future__ import annotations

from onnx_ops.bodies.body import Body
from onnx_ops.graph.builder import Value


def written_softplus(b: Body, x: Value) -> Value:
    """log1p(exp(-abs(x))), accurate also where exp(-abs(x)) is small.

    With u = 1 + e rounded, log1p(e) = log(u) * e / (u - 1) up to rounding (Kahan), and e where u is 1.
    """
    e = b.op("Exp", (-b.op("Abs", x, name="size")).named("minus_size"), name="e")
    u = (e + 1.0).named("u")
    corrected = (b.op("Log", u, name="log_u") * (e / (u - 1.0).named("rounded_e")).named("correction")).named(
        "corrected"
    )
    return b.op("Where", u.equal(1.0).named("is_one"), e, corrected, name="softplus")
