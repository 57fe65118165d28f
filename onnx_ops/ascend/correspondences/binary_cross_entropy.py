"""What the ops of `onnx_ops.ops.binary_cross_entropy` correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    COMPOSED,
    MIXED,
    NO_DOUBLE,
    RANK_0,
    REDUCTION,
    Aclnn,
    Correspondence,
    GeOperator,
    same,
)

CORRESPONDENCES = {
    "BinaryCrossEntropyWithLogits": Correspondence(
        Aclnn(
            "BinaryCrossEntropyWithLogits",
            {
                **same("self", "target"),
                "weightOptional": "weight",
                "posWeightOptional": "pos_weight",
                **same("reduction", "out"),
            },
            differences=("With a reduction aclnn's out has shape (1,), here ().",),
            refused=(NO_DOUBLE, MIXED, RANK_0),
        ),
        GeOperator(
            "SigmoidCrossEntropyWithLogitsV2",
            {"predict": "self", **same("target", "weight", "pos_weight")},
            {"loss": "out"},
            {"reduction": REDUCTION},
        ),
    ),
    "BinaryCrossEntropyWithLogitsBackward": Correspondence(
        Aclnn(
            "BinaryCrossEntropyWithLogitsBackward",
            {
                "gradOutput": "grad_output",
                **same("self", "target"),
                "weightOptional": "weight",
                "posWeightOptional": "pos_weight",
                **same("reduction", "out"),
            },
            refused=(NO_DOUBLE, MIXED, RANK_0, "A `target` outside [0, 1], which the documents exclude."),
        ),
        GeOperator(
            "SigmoidCrossEntropyWithLogitsGradV2",
            {"predict": "self", "target": "target", "dout": "grad_output", **same("weight", "pos_weight")},
            {"gradient": "out"},
            {"reduction": REDUCTION},
        ),
    ),
    "BinaryCrossEntropyWithLogitsTargetBackward": Correspondence(
        Aclnn(
            "BinaryCrossEntropyWithLogitsTargetBackward",
            {
                "gradOutput": "grad_output",
                **same("self", "target"),
                "weightOptional": "weight",
                "posWeightOptional": "pos_weight",
                "reduction": "reduction",
                "gradTarget": "grad_target",
            },
            refused=(NO_DOUBLE, RANK_0),
        ),
        None,
        COMPOSED,
    ),
}
