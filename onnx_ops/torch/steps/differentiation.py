"""The loss and its gradients in a run of a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onnx_ops.core.step_format import OUTPUT
from onnx_ops.torch.base.arguments import children, tensors
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.tracing.program import Tensors


def follow_hooks(name: str, parameter: torch.Tensor, leaf: torch.Tensor) -> None:
    """Let the hooks of a parameter change the gradient with respect to the tensor that is differentiated in its place.

    Args:
        name: of the parameter, for errors.
    """
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise CaptureError(
            f"the parameter '{name}' has a hook of register_post_accumulate_grad_hook, which a capture does not follow:"
            " remove it. A hook of register_hook may change the gradient, and the optimizer is captured with the step"
        )
    if leaf.requires_grad:
        for hook in (parameter._backward_hooks or {}).values():
            leaf.register_hook(hook)


def gradients(loss: torch.Tensor, wanted: Tensors) -> dict[str, torch.Tensor | None]:
    """The gradient with respect to each leaf; None if the loss does not depend on it, or sets its `requires_grad` off.

    What the backward of an autograd function adds to the `grad` of a leaf, as that of reversible layers does, which
    differentiates the layers that it computes again, is part of it.
    """
    trained = {name: leaf for name, leaf in wanted.items() if leaf.requires_grad}
    try:
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True) if trained else ()
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            raise CaptureError(
                "the loss is differentiated before the step differentiates it: return it without a call of backward(),"
                " as the capture takes the gradients and updates the parameters"
            ) from error
        if "use_reentrant" not in str(error):
            raise
        raise CaptureError(
            "the model recomputes activations by CheckpointFunction, which a capture cannot differentiate: call"
            " torch.utils.checkpoint.checkpoint"
        ) from error
    gradients = dict.fromkeys(wanted) | dict(zip(trained, found, strict=True))
    for name, leaf in wanted.items():
        gradient = gradients[name]
        if leaf.grad is not None:
            gradient = gradients[name] = leaf.grad if gradient is None else gradient + leaf.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise CaptureError(f"the gradient of '{name}' is sparse; capture needs dense ones (sparse=False)")
    return gradients


def loss_and_outputs(result: object) -> tuple[torch.Tensor, Tensors]:
    """The loss, a tensor of one element, and the further tensors of the loss function's result, by name."""
    if isinstance(result, torch.Tensor):
        loss, rest = result, {}
    else:
        inner = children(result)
        if not inner:
            raise CaptureError(f"the loss returned {type(result).__name__}, expected a scalar, a tuple or a dict")
        prefix = "" if isinstance(result, Mapping) else f"{OUTPUT}."
        (_, loss), *others = inner.items()
        rest = {n: t for key, value in others for n, t in tensors(value, f"{prefix}{key}")}
    is_tensor = isinstance(loss, torch.Tensor)
    if not is_tensor or not statically_known_true(loss.numel() == 1) or not loss.is_floating_point():
        what = f"a tensor of shape {tuple(loss.shape)}" if is_tensor else type(loss).__name__
        raise CaptureError(f"the loss is {what}, expected a floating scalar: end it with .mean() or .sum()")
    if not loss.requires_grad:
        raise CaptureError("the loss depends on no parameter that requires a gradient")
    return loss, rest
