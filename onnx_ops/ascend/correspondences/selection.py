"""What SWhere corresponds to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    Aclnn,
    Correspondence,
    GeOperator,
    same,
)

CORRESPONDENCES = {
    "SWhere": Correspondence(
        Aclnn(
            "SWhere",
            same("condition", "self", "other", "out"),
            missing=("`condition` of uint8, and `self` and `other` of integers, bool and complex numbers.",),
        ),
        GeOperator(
            "SelectV2",
            {"condition": "condition", "then": "self", "else": "other"},
            {"result": "out"},
        ),
    ),
}
