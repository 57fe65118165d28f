"""What ScatterMax corresponds to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import NO_DOUBLE, Aclnn, Correspondence, GeOperator, same

CORRESPONDENCES = {
    "ScatterMax": Correspondence(
        Aclnn(
            "ScatterMax",
            {"varRef": "var, out", **same("indices", "updates"), "useLocking": "has no effect"},
            differences=(
                "aclnn updates `varRef` in place; a node has an output for it.",
                "The operator's README skips indices outside of `var`, which the page of aclnnScatterMax excludes.",
            ),
            refused=(NO_DOUBLE,),
            missing=("`var` of integers.",),
        ),
        GeOperator("ScatterMax", same("var", "indices", "updates"), {"var": "out"}),
    ),
}
