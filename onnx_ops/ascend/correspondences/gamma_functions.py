"""What Lgamma and Digamma correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import Aclnn, Correspondence, GeOperator, same

CORRESPONDENCES = {
    name: Correspondence(Aclnn(name, same("self", "out")), GeOperator(name, {"x": "self"}, {"y": "out"}))
    for name in ("Lgamma", "Digamma")
}
