"""What SiluBackward corresponds to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeOperator,
)

CORRESPONDENCES = {
    "SiluBackward": Correspondence(
        Aclnn(
            "SiluBackward",
            {"gradOutput": "grad_output", "self": "self", "gradInput": "grad_input"},
            refused=(NO_DOUBLE,),
        ),
        GeOperator("SiluGrad", {"dy": "grad_output", "x": "self"}, {"dx": "grad_input"}),
    ),
}
