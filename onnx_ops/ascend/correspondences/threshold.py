"""What ThresholdBackward corresponds to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
)

CORRESPONDENCES = {
    "ThresholdBackward": Correspondence(
        Aclnn(
            "ThresholdBackward",
            {"gradOutput": "grad_output", "self": "self", "threshold": "threshold", "out": "grad_input"},
            refused=(NO_DOUBLE,),
            missing=("Integers.",),
        ),
        GeOperator(
            "ThresholdGradV2D",
            {"gradients": "grad_output", "features": "self"},
            {"backprops": "grad_input"},
            {"threshold": GeAttribute("Float", "threshold", default=1.0)},
        ),
    ),
}
