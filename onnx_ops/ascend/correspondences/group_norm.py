"""What GroupNormBackward corresponds to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    same,
)

CORRESPONDENCES = {
    "GroupNormBackward": Correspondence(
        Aclnn(
            "GroupNormBackward",
            {
                "gradOut": "grad_out",
                **same("input", "mean", "rstd", "gamma"),
                "N": "the size of `input` at axis 0",
                "C": "the size of `input` at axis 1",
                "HxW": "the product of the other sizes of `input`",
                **same("group"),
                "outputMask": "given with the outputs that a node names",
                "gradInput": "grad_input",
                "gradGammaOut": "grad_gamma",
                "gradBetaOut": "grad_beta",
            },
            refused=(NO_DOUBLE, "Inputs of several dtypes."),
        ),
        None,
    ),
}
