"""What Convolution and ConvolutionBackward correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    COMPOSED,
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    same,
)

CORRESPONDENCES = {
    "Convolution": Correspondence(
        Aclnn(
            "Convolution",
            {
                **same("input", "weight", "bias", "stride", "padding", "dilation"),
                "transposed": "none: false",
                "outputPadding": "none: for transposed convolutions only",
                "groups": "groups",
                "output": "output",
                "cubeMathType": "none: products are exact, and summed in float or double",
            },
            refused=(NO_DOUBLE,),
            missing=("Transposed convolutions; ONNX's ConvTranspose has them.",),
        ),
        None,
        "ATC has parsers for ONNX's Conv, which computes the same.",
    ),
    "ConvolutionBackward": Correspondence(
        Aclnn(
            "ConvolutionBackward",
            {
                "gradOutput": "grad_output",
                **same("input", "weight"),
                "biasSizes": "none: `grad_bias` has one element per channel",
                **same("stride", "padding", "dilation"),
                "transposed": "none: false",
                "outputPadding": "none: for transposed convolutions only",
                "groups": "groups",
                "outputMask": "given with the outputs that a node names",
                "cubeMathType": "none: products are exact, and summed in float or double",
                "gradInput": "grad_input",
                "gradWeight": "grad_weight",
                "gradBias": "grad_bias",
            },
            refused=(NO_DOUBLE,),
            missing=("Gradients of transposed convolutions.",),
        ),
        None,
        COMPOSED,
    ),
}
