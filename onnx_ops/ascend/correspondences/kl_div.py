"""What KlDiv, KlDivBackward and KlDivTargetBackward correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    COMPOSED,
    NO_DOUBLE,
    RANK_0,
    REDUCTION,
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
    same,
)

CORRESPONDENCES = {
    "KlDiv": Correspondence(
        Aclnn(
            "KlDiv",
            {**same("self", "target", "reduction"), "logTarget": "log_target", "out": "out"},
            refused=(NO_DOUBLE, RANK_0),
        ),
        None,
        COMPOSED,
    ),
    "KlDivBackward": Correspondence(
        Aclnn(
            "KlDivBackward",
            {
                "gradOutput": "grad_output",
                **same("self", "target", "reduction"),
                "logTarget": "log_target",
                "out": "out",
            },
            refused=(NO_DOUBLE, RANK_0),
        ),
        GeOperator(
            "KlDivLossGrad",
            {"grad": "grad_output", "input": "self", "target": "target"},
            {"y": "out"},
            {"reduction": REDUCTION, "log_target": GeAttribute("Bool", "log_target")},
        ),
    ),
    "KlDivTargetBackward": Correspondence(
        Aclnn(
            "KlDivTargetBackward",
            {
                "gradOutput": "grad_output",
                **same("self", "target", "reduction"),
                "logTarget": "log_target",
                "gradTarget": "grad_target",
            },
            refused=(NO_DOUBLE, RANK_0),
        ),
        GeOperator(
            "KlDivTargetLossGrad",
            {"grad": "grad_output", "input": "self", "target": "target"},
            {"y": "grad_target"},
            {"reduction": REDUCTION, "log_target": GeAttribute("Bool", "log_target")},
        ),
    ),
}
