"""What CtcLoss and CtcLossBackward correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
    same,
)

CORRESPONDENCES = {
    "CtcLoss": Correspondence(
        Aclnn(
            "CtcLoss",
            {
                "logProbs": "log_probs",
                "targets": "targets",
                "inputLengths": "input_lengths",
                "targetLengths": "target_lengths",
                "blank": "blank",
                "zeroInfinity": "zero_infinity",
                "negLogLikelihoodOut": "neg_log_likelihood",
                "logAlphaOut": "log_alpha",
            },
            differences=(
                "aclnn takes the lengths as arrays of the host, a node as tensors.",
                "The output `loss` is this package's own: `neg_log_likelihood` with infinities set to 0 by"
                " `zero_infinity`.",
                "The attribute `stash_type` is this package's own; with 0 the outputs have the dtypes of aclnn.",
            ),
            refused=(
                "Targets without labels, labels equal to `blank`, and targets longer than their inputs, for which the"
                " documents promise no results.",
            ),
            missing=("`log_probs` without a batch, (T, C): give it an axis of size 1.",),
        ),
        GeOperator(
            "CTCLossV2",
            same("log_probs", "targets", "input_lengths", "target_lengths"),
            same("neg_log_likelihood", "log_alpha"),
            {"blank": GeAttribute("Int", "blank"), "zero_infinity": GeAttribute("Bool", "zero_infinity")},
            {"reduction": "none"},
            only={"stash_type": 0},
        ),
        related=("CTCLossV3",),
    ),
    "CtcLossBackward": Correspondence(
        Aclnn(
            "CtcLossBackward",
            {
                "gradOut": "grad_out",
                "logProbs": "log_probs",
                "targets": "targets",
                "inputLengths": "input_lengths",
                "targetLengths": "target_lengths",
                "negLogLikelihood": "neg_log_likelihood",
                "logAlpha": "log_alpha",
                "blank": "blank",
                "zeroInfinity": "zero_infinity",
                "out": "out",
            },
            differences=(
                "aclnn takes the lengths as arrays of the host, a node as tensors.",
                "The attribute `through_log_softmax` is this package's own; 1, the default, is aclnn's gradient.",
            ),
            refused=(
                "`neg_log_likelihood` and `log_alpha` of a wider dtype than `log_probs`, which long sequences need.",
                "`targets` of bool, float or float16.",
            ),
        ),
        GeOperator(
            "CTCLossV2Grad",
            {
                **same("grad_out", "log_probs", "targets", "input_lengths", "target_lengths"),
                **same("neg_log_likelihood", "log_alpha"),
            },
            {"grad": "out"},
            {"blank": GeAttribute("Int", "blank"), "zero_infinity": GeAttribute("Bool", "zero_infinity")},
            {"reduction": "none"},
            only={"through_log_softmax": 1},
        ),
        related=("CTCLossV3Grad",),
    ),
}
