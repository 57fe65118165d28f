"""What each op corresponds to in CANN: the aclnn function and the operator of graphs (GE).

Source: the documents and definitions of the operators in CANN's repository ops-nn 9.1 (gitcode.com/cann/ops-nn: `docs`,
`op_graph` and `op_host` of each operator); for what it does not have (BatchNormStats, KlDiv, dropout) the
documents of the aclnn functions.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx_ops.ascend.correspondences import (
    attention,
    batch_norm,
    binary_cross_entropy,
    convolution,
    ctc,
    depthwise_convolution,
    dropout,
    embedding,
    gelu,
    hardshrink,
    kl_div,
    lstm,
    max_pool,
    optimizers,
    threshold,
)
from onnx_ops.ascend.correspondences.records import Correspondence

FAMILIES = (
    attention,
    batch_norm,
    binary_cross_entropy,
    convolution,
    ctc,
    depthwise_convolution,
    dropout,
    embedding,
    gelu,
    hardshrink,
    kl_div,
    lstm,
    max_pool,
    optimizers,
    threshold,
)
CORRESPONDENCES: Mapping[str, Correspondence] = {
    op: found for family in FAMILIES for op, found in family.CORRESPONDENCES.items()
}
"""By op; an op that is not in it has a name of this package's own."""

OWN = Correspondence(None, None, "CANN's list of aclnn functions does not have this name: it is this package's own.")


def correspondence(op_type: str) -> Correspondence:
    """What an op corresponds to."""
    return CORRESPONDENCES.get(op_type, OWN)
