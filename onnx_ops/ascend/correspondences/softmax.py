"""What SoftmaxV2 and SoftmaxBackward correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    RANK_0,
    Aclnn,
    Correspondence,
    same,
)

CORRESPONDENCES = {
    "SoftmaxV2": Correspondence(
        Aclnn("Softmax", same("self", "dim", "out"), missing=(RANK_0,)),
        None,
        "The operator of graphs has a list of axes; the name of the function, Softmax, is that of an ONNX operator.",
    ),
    "SoftmaxBackward": Correspondence(
        Aclnn(
            "SoftmaxBackward",
            {"gradOutput": "grad_output", "output": "output", "dim": "dim", "out": "grad_input"},
            refused=(NO_DOUBLE,),
        ),
        None,
        "The operator of graphs, SoftmaxGrad, has a list of axes.",
    ),
}
