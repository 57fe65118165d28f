"""What the ops of `onnx_ops.ops.batch_norm` correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    COMPOSED,
    MIXED,
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    same,
)

CORRESPONDENCES = {
    "BatchNormElemt": Correspondence(
        Aclnn(
            "BatchNormElemt",
            {**same("input", "weight", "bias", "mean", "invstd", "eps"), "output": "out"},
            refused=(NO_DOUBLE, MIXED),
        ),
        None,
        COMPOSED,
    ),
    "BatchNormElemtBackward": Correspondence(
        Aclnn(
            "BatchNormElemtBackward",
            {
                "gradOut": "grad_out",
                "input": "input",
                "mean": "mean",
                "invstd": "invstd",
                "weight": "weight",
                "sumDy": "sum_dy",
                "sumDyXmu": "sum_dy_xmu",
                "counter": "counter",
                "gradInput": "grad_input",
            },
            differences=(
                "The documents describe sumDy and sumDyXmu as means, but the formula and the implementation divide both"
                " by the sum of `counter`, as here: they are sums. The operator of graphs, SyncBatchNormBackwardElemt,"
                " takes the means (mean_dy, mean_dy_xmu) and no counter.",
                "In earlier documents a parenthesis of the formula is misplaced, so that only the second term would be"
                " multiplied by `invstd` and `weight`.",
            ),
            refused=(NO_DOUBLE, "A `counter` of rank 0, or of bfloat16."),
        ),
        None,
        "The operator of graphs, SyncBatchNormBackwardElemt, takes inputs of the shape of `input`, to which a"
        " parser cannot expand a vector, as it does not know the rank.",
        ("SyncBatchNormBackwardElemt",),
    ),
    "BatchNormGatherStatsWithCounts": Correspondence(
        Aclnn(
            "BatchNormGatherStatsWithCounts",
            {
                "input": "input",
                "mean": "mean",
                "invstd": "invstd",
                "runningMean": "running_mean, running_mean_out",
                "runningVar": "running_var, running_var_out",
                "momentum": "momentum",
                "eps": "eps",
                "counts": "counts",
                "meanAll": "mean_all",
                "invstdAll": "invstd_all",
            },
            differences=("aclnn updates runningMean and runningVar in place; a node has outputs for the new values.",),
            refused=(NO_DOUBLE,),
        ),
        None,
        COMPOSED,
        ("SyncBatchNormGatherStats",),
    ),
    "BatchNormReduceBackward": Correspondence(
        Aclnn(
            "BatchNormReduceBackward",
            {
                "gradOut": "grad_out",
                **same("input", "mean", "invstd", "weight"),
                "inputG": "given with the outputs `sum_dy` and `sum_dy_xmu`",
                "weightG": "given with the output `grad_weight`",
                "biasG": "given with the output `grad_bias`",
                "sumDy": "sum_dy",
                "sumDyXmu": "sum_dy_xmu",
                "gradWeight": "grad_weight",
                "gradBias": "grad_bias",
            },
            refused=(NO_DOUBLE, MIXED),
        ),
        None,
        "The operator of graphs, SyncBatchNormBackwardReduce, takes sums over the elements of each channel, whose axes"
        " a parser does not know.",
        ("SyncBatchNormBackwardReduce",),
    ),
    "BatchNormStats": Correspondence(
        Aclnn("BatchNormStats", same("input", "eps", "mean", "invstd"), refused=(NO_DOUBLE,)), None, COMPOSED
    ),
}
