"""What depthwise convolutions and their gradients correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    Correspondence,
)

CORRESPONDENCES = {
    "DepthwiseConv2D": Correspondence(
        None,
        None,
        "CANN's list of aclnn functions does not have this name: it is that of an operator of graphs, DepthwiseConv2D,"
        " whose filters have another layout. aclnnConvolution computes the same with as many groups as channels.",
    ),
    "DepthwiseConv2DBackpropFilter": Correspondence(
        None,
        None,
        "CANN's list of aclnn functions does not have this name: it is that of an operator of graphs,"
        " DepthwiseConv2DBackpropFilterD, whose filters have another layout. aclnnConvolutionBackward computes the same"
        " with as many groups as channels.",
    ),
    "DepthwiseConv2DBackpropInput": Correspondence(
        None,
        None,
        "CANN's list of aclnn functions does not have this name: it is that of an operator of graphs,"
        " DepthwiseConv2DBackpropInputD, whose filters have another layout. aclnnConvolutionBackward computes the same"
        " with as many groups as channels.",
    ),
}
