"""Inputs and reductions of the binary cross entropy with logits."""

from __future__ import annotations

from onnx_ops.core.reduction import Reduction
from onnx_ops.core.signature import Default, Input
from onnx_ops.core.space import Role

REDUCTIONS = (Reduction.NONE, Reduction.MEAN, Reduction.SUM)

GRAD_OUTPUT = Input("grad_output", "Gradient with respect to the loss. Broadcasts to `self`.", Role.INTO)
LOGITS = Input("self", "Logits.", Role.SHAPE)
LABELS = Input("target", "Labels, in [0, 1] by convention; shape of `self`.", Role.SAME)
WEIGHTS = (
    Input("weight", "Factor of each element's loss. Broadcasts to `self`.", Role.INTO, default=Default(1.0)),
    Input("pos_weight", "Factor of the positive class. Broadcasts to `self`.", Role.INTO, default=Default(1.0)),
)
