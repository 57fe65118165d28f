"""What DropoutBackward and DropoutV3 correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    same,
)

CORRESPONDENCES = {
    "DropoutBackward": Correspondence(
        Aclnn(
            "DropoutBackward",
            {"gradOutput": "grad_output", "mask": "mask", "scale": "scale", "out": "grad_input"},
            differences=("aclnn's mask has one bit for each element, in uint8; here `mask` is a tensor of bool.",),
            refused=(NO_DOUBLE,),
        ),
        None,
        "The masks differ.",
    ),
    "DropoutV3": Correspondence(
        Aclnn(
            "DropoutV3",
            {
                "input": "input",
                "optionalNoiseShape": "none: each element has a random number of its own",
                **same("p", "seed", "offset"),
                "out": "output",
                "maskOut": "mask",
            },
            differences=(
                "aclnn's maskOut has one bit for each element, in uint8; here `mask` is a tensor of bool.",
                "The random numbers differ: a mask of a device is not reproduced.",
            ),
            refused=(NO_DOUBLE,),
        ),
        None,
        "The masks differ.",
    ),
}
