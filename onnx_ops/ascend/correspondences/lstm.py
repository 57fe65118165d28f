"""What the steps of an LSTM correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    MIXED,
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeOperator,
    same,
)

CORRESPONDENCES = {
    "DynamicRNN": Correspondence(
        None,
        None,
        "CANN's list of aclnn functions does not have this name: it is that of an operator of graphs, which multiplies"
        " the input by its weights too, has the gates in another order, and each of them as an output of its own."
        " aclnnLSTM computes several layers.",
    ),
    "DynamicRNNGrad": Correspondence(
        None,
        None,
        "CANN's list of aclnn functions does not have this name: it is that of an operator of graphs, which computes"
        " the gradients of the input and of the weights too. aclnnLstmBackward computes those of several layers.",
    ),
    "ThnnFusedLstmCell": Correspondence(
        Aclnn(
            "ThnnFusedLstmCell",
            {
                "inputGates": "input_gates",
                "hiddenGates": "hidden_gates",
                "cx": "cx",
                "inputBiasOptional": "none: add it to `input_gates`",
                "hiddenBiasOptional": "none: add it to `hidden_gates`",
                "hyOut": "hy",
                "cyOut": "cy",
                "storageOut": "storage",
            },
            refused=(NO_DOUBLE, "bfloat16.", MIXED),
            missing=("The biases.",),
        ),
        None,
        "The operator of graphs, ThnnFusedLstmCell, requires biases.",
        ("ThnnFusedLstmCell",),
    ),
    "ThnnFusedLstmCellBackward": Correspondence(
        Aclnn(
            "ThnnFusedLstmCellBackward",
            {
                "gradHyOptional": "grad_hy",
                "gradCOptional": "grad_cy",
                **same("cx", "cy", "storage"),
                "hasBias": "none: false",
                "gradGatesOut": "grad_gates",
                "gradCxOut": "grad_cx",
                "gradBiasOut": "none: the sum of `grad_gates` over the batch",
            },
            refused=(NO_DOUBLE, "bfloat16.", MIXED, "Infinities, which give NaN in aclnn."),
        ),
        GeOperator(
            "ThnnFusedLstmCellGrad",
            {"dhy": "grad_hy", "dc": "grad_cy", **same("cx", "cy", "storage")},
            {"dgates": "grad_gates", "dc_prev": "grad_cx"},
            constants={"has_bias": False},
        ),
    ),
}
