"""What the ops of `onnx_ops.ops.layer_norm` correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
    same,
)

MIXED_GAMMA = "A `gamma` of neither float nor the dtype of `x`."

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
    "RmsNorm": Correspondence(
        Aclnn(
            "RmsNorm",
            {**same("x", "gamma", "epsilon"), "yOut": "y", "rstdOut": "rstd"},
            refused=(NO_DOUBLE, MIXED_GAMMA, "A `gamma` without elements."),
        ),
        GeOperator("RmsNorm", same("x", "gamma"), same("y", "rstd"), {"epsilon": GeAttribute("Float", "epsilon")}),
    ),
    "RmsNormGrad": Correspondence(
        Aclnn(
            "RmsNormGrad",
            {**same("dy", "x", "rstd", "gamma"), "dxOut": "dx", "dgammaOut": "dgamma"},
            differences=(
                "The documents give `rstd` the shape (A1, ..., Ai). Here it is that of rstdOut of aclnnRmsNorm.",
            ),
            refused=(NO_DOUBLE, MIXED_GAMMA, "An `rstd` of another dtype than float."),
        ),
        GeOperator("RmsNormGrad", same("dy", "x", "rstd", "gamma"), same("dx", "dgamma")),
    ),
}
