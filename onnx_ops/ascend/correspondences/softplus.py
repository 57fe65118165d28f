"""What SoftplusV2 and SoftplusBackward correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
    same,
)

ATTRIBUTES = {"beta": GeAttribute("Float", "beta"), "threshold": GeAttribute("Float", "threshold")}

CORRESPONDENCES = {
    "SoftplusV2": Correspondence(
        Aclnn(
            "Softplus",
            same("self", "beta", "threshold", "out"),
        ),
        GeOperator("SoftplusV2", {"x": "self"}, {"y": "out"}, ATTRIBUTES),
    ),
    "SoftplusBackward": Correspondence(
        Aclnn(
            "SoftplusBackward",
            {"gradOutput": "grad_output", **same("self", "beta", "threshold"), "gradInput": "grad_input"},
            refused=("Shapes that differ.",),
        ),
        GeOperator(
            "SoftplusV2Grad",
            {"input_gradients": "grad_output", "input_features": "self"},
            {"output_backprops": "grad_input"},
            ATTRIBUTES,
        ),
    ),
}
