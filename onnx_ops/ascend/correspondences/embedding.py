"""What EmbeddingDenseBackward corresponds to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
    same,
)

CORRESPONDENCES = {
    "EmbeddingDenseBackward": Correspondence(
        Aclnn(
            "EmbeddingDenseBackward",
            {
                **same("grad", "indices"),
                "numWeights": "num_weights",
                "paddingIdx": "padding_idx",
                "scaleGradByFreq": "scale_grad_by_freq",
                "out": "out",
            },
            differences=("aclnn's sums depend on the order of the additions unless determinism is switched on.",),
            refused=(NO_DOUBLE,),
            missing=("`indices` of other dtypes than int32 and int64.",),
        ),
        GeOperator(
            "EmbeddingDenseGrad",
            same("grad", "indices"),
            {"y": "out"},
            {
                "num_weights": GeAttribute("Int", "num_weights"),
                "padding_idx": GeAttribute("Int", "padding_idx"),
                "scale_grad_by_freq": GeAttribute("Bool", "scale_grad_by_freq"),
            },
        ),
        "EmbeddingDenseGradV2 takes indices that are sorted already, which a node does not have.",
    ),
}
