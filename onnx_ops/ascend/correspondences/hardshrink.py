"""What Hardshrink and HardshrinkBackward correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    MIXED,
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
    same,
)

CORRESPONDENCES = {
    "Hardshrink": Correspondence(
        Aclnn("Hardshrink", same("self", "lambd", "out"), refused=(NO_DOUBLE,)),
        GeOperator("HardShrink", {"input_x": "self"}, {"output_y": "out"}, {"lambd": GeAttribute("Float", "lambd")}),
    ),
    "HardshrinkBackward": Correspondence(
        Aclnn(
            "HardshrinkBackward",
            {"gradOutput": "grad_output", "self": "self", "lambd": "lambd", "gradInput": "grad_input"},
            refused=(NO_DOUBLE, MIXED),
        ),
        GeOperator(
            "HardShrinkGrad",
            {"gradients": "grad_output", "features": "self"},
            {"backprops": "grad_input"},
            {"lambd": GeAttribute("Float", "lambd")},
        ),
    ),
}
