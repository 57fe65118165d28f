"""What FlashAttentionScore and FlashAttentionScoreGrad correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    same,
)

NO_INDICES = {
    **dict.fromkeys(("prefixOptional", "qStartIdxOptional", "kvStartIdxOptional"), "no such input"),
    "scaleValueOptional": "scale_value",
    "keepProbOptional": "keep_prob",
    **dict.fromkeys(("preTokensOptional", "nextTokensOptional", "headNum"), "no such attribute"),
    "inputLayout": "input_layout",
    "innerPreciseOptional": "no such attribute",
    "sparseModeOptional": "sparse_mode",
    "pseTypeOptional": "pse_type",
}
STATISTICS_REPEATED = (
    "softmaxMax and softmaxSum have a last axis of eight equal numbers in aclnn.",
    "dropMask has eight elements in a byte in aclnn, here bool.",
)
NOT_WRITTEN = (
    "The mask of dropout and the statistics have another layout there, so a node has no single operator of a graph."
)

CORRESPONDENCES = {
    "FlashAttentionScore": Correspondence(
        Aclnn(
            "FlashAttentionScoreV2",
            {
                **same("query", "key", "value"),
                "realShiftOptional": "real_shift",
                "dropMaskOptional": "drop_mask",
                "paddingMaskOptional": "no such input",
                "attenMaskOptional": "atten_mask",
                **NO_INDICES,
                "softmaxMaxOut": "softmax_max",
                "softmaxSumOut": "softmax_sum",
                "softmaxOutOut": "no such output",
                "attentionOutOut": "attention_out",
            },
            differences=STATISTICS_REPEATED,
            refused=(NO_DOUBLE,),
        ),
        None,
        NOT_WRITTEN,
    ),
    "FlashAttentionScoreGrad": Correspondence(
        Aclnn(
            "FlashAttentionScoreGradV2",
            {
                "query": "query",
                "keyIn": "key_in",
                "value": "value",
                "dy": "dy",
                "pseShiftOptional": "pse_shift",
                "dropMaskOptional": "drop_mask",
                "paddingMaskOptional": "no such input",
                "attenMaskOptional": "atten_mask",
                "softmaxMaxOptional": "softmax_max",
                "softmaxSumOptional": "softmax_sum",
                "softmaxInOptional": "no such input",
                "attentionInOptional": "attention_in",
                **NO_INDICES,
                "dqOut": "dq",
                "dkOut": "dk",
                "dvOut": "dv",
                "dpseOut": "no such output",
            },
            differences=STATISTICS_REPEATED,
            refused=(NO_DOUBLE,),
        ),
        None,
        NOT_WRITTEN,
    ),
}
