"""What the ops of the binary cross entropy of a sigmoid share."""

from __future__ import annotations

from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.op import Missing
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.schema import attribute, tensor_types
from onnx_ops.core.types import FLOATS
from onnx_ops.loops.space import Role

REDUCTIONS = {int(r): r.name.lower() for r in (Reduction.NONE, Reduction.MEAN, Reduction.SUM)}

ROLES = {"self": Role.SHAPE, "target": Role.SAME, "weight": Role.INTO, "pos_weight": Role.INTO}
"""How the inputs of the loss take part in its index space."""

MISSING = {"weight": Missing(1.0), "pos_weight": Missing(1.0)}
"""What weights that are left out stand for."""


def loss_inputs() -> list[OpSchema.FormalParameter]:
    """The inputs of the loss, for the schemas of it and of its gradients."""
    optional = OpSchema.FormalParameterOption.Optional
    return [
        OpSchema.FormalParameter("self", "TSelf", "Logits."),
        OpSchema.FormalParameter("target", "T", "Labels, meant to be in [0, 1]; self's shape."),
        OpSchema.FormalParameter(
            "weight", "TWeight", "Factor of each element's loss. Broadcasts to self.", param_option=optional
        ),
        OpSchema.FormalParameter(
            "pos_weight", "TPosWeight", "Factor of the positive class. Broadcasts to self.", param_option=optional
        ),
    ]


def grad_output_input() -> OpSchema.FormalParameter:
    """The first input of the gradients."""
    return OpSchema.FormalParameter("grad_output", "TGrad", "Gradient with respect to the loss. Broadcasts to self.")


def constraints(*names: str) -> list[tuple[str, list[str], str]]:
    """The type constraints of a schema."""
    return [(name, tensor_types(FLOATS), "Floating types.") for name in names]


def reduction_attribute() -> OpSchema.Attribute:
    """The attribute, for a schema."""
    return attribute("reduction", int(Reduction.MEAN), "0 none, 1 mean, 2 sum.")


def check_reduction(call: Call) -> None:
    """Refuse a value that the attribute cannot have."""
    call.check_choice("reduction", REDUCTIONS)
