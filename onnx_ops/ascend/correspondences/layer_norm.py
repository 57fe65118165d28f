"""What LayerNormBackward corresponds to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    same,
)

CORRESPONDENCES = {
    "LayerNormBackward": Correspondence(
        Aclnn(
            "LayerNormBackward",
            {
                "gradOut": "grad_out",
                "input": "input",
                "normalizedShape": "normalized_shape",
                **same("mean", "rstd"),
                "weightOptional": "weight",
                "biasOptional": "none: its values are not used, and `grad_bias` has the dtype of `grad_weight`",
                "outputMask": "given with the outputs that a node names",
                "gradInputOut": "grad_input",
                "gradWeightOut": "grad_weight",
                "gradBiasOut": "grad_bias",
            },
            refused=(
                NO_DOUBLE,
                "A `mean` of a narrower dtype than `input`, and a `weight` of neither float nor the dtype of `input`.",
            ),
        ),
        None,
    ),
}
