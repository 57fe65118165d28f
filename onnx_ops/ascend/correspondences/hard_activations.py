"""What HardtanhBackward, HardsigmoidBackward and HardswishBackwardV2 correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    MIXED,
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
)

GRADIENT = {"gradOutput": "grad_output", "self": "self", "out": "grad_input"}

CORRESPONDENCES = {
    "HardtanhBackward": Correspondence(
        Aclnn(
            "HardtanhBackward",
            {"gradOutput": "grad_output", "self": "self", "min": "min", "max": "max", "out": "grad_input"},
            differences=("CANN's documentation lets the gradient pass at the bounds, where PyTorch's is 0.",),
            refused=(NO_DOUBLE, MIXED, "Shapes that differ."),
        ),
        GeOperator(
            "HardtanhGrad",
            {"result": "self", "grad": "grad_output"},
            {"y": "grad_input"},
            {"min_val": GeAttribute("Float", "min"), "max_val": GeAttribute("Float", "max")},
        ),
    ),
    "HardsigmoidBackward": Correspondence(
        Aclnn("HardsigmoidBackward", GRADIENT, refused=(NO_DOUBLE, "Shapes that differ.")),
        GeOperator("HardSigmoidGrad", {"grads": "grad_output", "input_x": "self"}, {"y": "grad_input"}),
    ),
    "HardswishBackwardV2": Correspondence(
        Aclnn("HardswishBackwardV2", GRADIENT, refused=(NO_DOUBLE, MIXED, "Shapes that differ.")),
        GeOperator("HardSwishGradV2", {"gradOutput": "grad_output", "self": "self"}, {"out": "grad_input"}),
    ),
}
