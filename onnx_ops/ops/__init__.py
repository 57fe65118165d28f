"""The ops of the domain, one file each: schema, checks, NumPy reference, kernel and portable body together."""

from types import MappingProxyType

from onnx_ops.ops import (
    batch_norm_elemt_backward,
    binary_cross_entropy_with_logits_backward,
    ctc_loss_backward,
    hardshrink_backward,
    kl_div_backward,
)

OPS = MappingProxyType(
    {
        module.OP.name: module.OP
        for module in (
            kl_div_backward,
            binary_cross_entropy_with_logits_backward,
            ctc_loss_backward,
            batch_norm_elemt_backward,
            hardshrink_backward,
        )
    }
)
"""All ops by op_type."""
