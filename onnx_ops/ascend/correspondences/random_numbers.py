"""What InplaceNormal and InplaceUniform correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    same,
)

DIFFERENCES = (
    "aclnn writes the numbers into `selfRef`; here they are an output, which may have the memory of `self`.",
    "aclnn's seed is an attribute, here it is an input, so that each step has another.",
    "The random numbers differ: those of a device are not reproduced.",
)
CORRESPONDENCES = {
    "InplaceNormal": Correspondence(
        Aclnn(
            "InplaceNormal",
            {"selfRef": "self, out", **same("mean", "std", "seed", "offset")},
            differences=DIFFERENCES,
            refused=(NO_DOUBLE,),
        ),
        None,
        "The random numbers differ.",
    ),
    "InplaceUniform": Correspondence(
        Aclnn(
            "InplaceUniform",
            {"selfRef": "self, out", "from": "low", "to": "high", **same("seed", "offset")},
            differences=DIFFERENCES,
            refused=(NO_DOUBLE,),
        ),
        None,
        "The random numbers differ.",
    ),
}
