"""What MaxPool2dWithIndices and MaxPool2dWithIndicesBackward correspond to in CANN."""

from __future__ import annotations

from collections.abc import Mapping

from onnx_ops.ascend.records import (
    NO_DOUBLE,
    Aclnn,
    Constant,
    Correspondence,
    GeAttribute,
    GeOperator,
    same,
)

POOL = {
    "ksize": GeAttribute("ListInt", "kernel_size"),
    "strides": GeAttribute("ListInt", "stride", "kernel_size"),
    "pads": GeAttribute("ListInt", "padding", (0, 0)),
    "dilation": GeAttribute("ListInt", "dilation", (1, 1)),
    "ceil_mode": GeAttribute("Bool", "ceil_mode"),
}
POOL_CONSTANTS: Mapping[str, Constant] = {"dtype": 9, "data_format": "NCHW"}
"""dtype: ge::DT_INT64, that of the indices."""
POOL_ARGUMENTS = {
    "kernelSize": "kernel_size",
    "stride": "stride",
    "padding": "padding",
    "dilation": "dilation",
    "ceilMode": "ceil_mode",
}
POOL_REFUSED = (
    NO_DOUBLE,
    "Pooling over one or three spatial axes.",
    "NaN and minus infinity in `self`, on the devices whose documents exclude them.",
)

CORRESPONDENCES = {
    "MaxPool2dWithIndices": Correspondence(
        Aclnn(
            "MaxPool2dWithIndices",
            {"self": "self", **POOL_ARGUMENTS, **same("out", "indices")},
            differences=("aclnn's indices are int32 or int64, here int64.",),
            refused=POOL_REFUSED,
        ),
        GeOperator("MaxPoolWithArgmaxV3", {"x": "self"}, {"y": "out", "argmax": "indices"}, POOL, POOL_CONSTANTS),
    ),
    "MaxPool2dWithIndicesBackward": Correspondence(
        Aclnn(
            "MaxPool2dWithIndicesBackward",
            {"gradOutput": "grad_output", **same("self", "indices"), **POOL_ARGUMENTS, "gradInput": "out"},
            differences=("aclnn's sums depend on the order of the additions unless determinism is switched on.",),
            refused=(
                *POOL_REFUSED,
                "Indices into the whole tensor, as of ONNX's MaxPool; a call without `kernel_size`.",
            ),
        ),
        GeOperator(
            "MaxPoolGradWithArgmaxV3",
            {"x": "self", "grad": "grad_output", "argmax": "indices"},
            {"y": "out"},
            POOL,
            POOL_CONSTANTS,
        ),
    ),
}
