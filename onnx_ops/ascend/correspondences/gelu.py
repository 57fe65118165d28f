"""What GeluBackwardV2 corresponds to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
)

CORRESPONDENCES = {
    "GeluBackwardV2": Correspondence(
        Aclnn(
            "GeluBackwardV2",
            {"gradOutput": "grad_output", "self": "self", "approximate": "approximate", "gradInput": "grad_input"},
            differences=('aclnn takes approximate as a text, "none" or "tanh"; a node as 0 or 1.',),
            refused=(NO_DOUBLE,),
        ),
        GeOperator(
            "GeluGradV2",
            {"dy": "grad_output", "x": "self"},
            {"z": "grad_input"},
            {"approximate": GeAttribute("String", "approximate")},
        ),
    ),
}
