"""What Silu and SiluBackward correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeOperator,
    same,
)

CORRESPONDENCES = {
    "Silu": Correspondence(
        Aclnn("Silu", same("self", "out"), refused=(NO_DOUBLE,)),
        GeOperator("Swish", {"x": "self"}, {"y": "out"}),
    ),
    "SiluBackward": Correspondence(
        Aclnn(
            "SiluBackward",
            {"gradOutput": "grad_output", "self": "self", "gradInput": "grad_input"},
            refused=(NO_DOUBLE,),
        ),
        GeOperator("SiluGrad", {"dy": "grad_output", "x": "self"}, {"dx": "grad_input"}),
    ),
}
